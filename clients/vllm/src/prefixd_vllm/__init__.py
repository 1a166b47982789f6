"""prefixd for vLLM: a KV connector (`connector`) and a secondary tier of the offloading connector (`tier`).

Both are named to vLLM by module path; importing this package imports no engine.
"""

__version__ = "0.1.0"
