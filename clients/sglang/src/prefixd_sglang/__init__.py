"""HiCache storage back end for SGLang that keeps pages in prefixd.

SGLang loads `prefixd_sglang.PrefixdHiCache` by its `dynamic` mechanism.  Importing this package loads
neither SGLang nor torch: the class is fetched when it is first asked for, so that identity.py can be
used and tested on machines without an engine.
"""

from typing import Any

__all__ = ["PrefixdHiCache"]


def __getattr__(name: str) -> Any:
    if name == "PrefixdHiCache":
        from .storage import PrefixdHiCache

        return PrefixdHiCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
