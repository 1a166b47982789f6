"""LMCache on prefixd: chunks of K/V that LMCache computes or loads, kept in the machine's prefixd.

Two ways in, each loaded by LMCache from its own configuration (README.md):

* ``prefixd_lmcache.remote.PrefixdConnectorAdapter`` for LMCache inside the engine's process,
* ``prefixd_lmcache.l2.PrefixdL2Adapter`` for LMCache's server of several processes.

Importing this package imports no engine; the two modules above import LMCache.
"""

__version__ = "0.1.0"
