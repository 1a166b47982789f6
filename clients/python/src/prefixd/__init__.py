"""prefixd for Python: prompt prefixes' K/V blocks, shared between the inference workers of a machine.

See README.md beside this package for a start, and client.py for what calls guarantee.
"""

from .blockstore import BlockStore
from .client import Client, Lease, Namespace, Subscription
from .core import NamespaceOptions, Owner
from .errors import PrefixdError, Status
from .identity import Identity
from .pool import Pool
from .values import (
    KEYS_DIGEST,
    KEYS_TOKENS,
    NS_EXTRA,
    NS_OPAQUE,
    Change,
    ChangeKind,
    CommitResult,
    ExplainResult,
    LoadResult,
    MatchResult,
    PrefetchResult,
    ProbeResult,
    QuiescedResult,
    Reason,
    ReleaseResult,
    Removal,
    ReserveResult,
    Tier,
    WaitResult,
    WaitState,
)

__version__ = "0.1.0"
__all__ = [
    "KEYS_DIGEST",
    "KEYS_TOKENS",
    "NS_EXTRA",
    "NS_OPAQUE",
    "BlockStore",
    "Change",
    "ChangeKind",
    "Client",
    "CommitResult",
    "ExplainResult",
    "Identity",
    "Lease",
    "LoadResult",
    "MatchResult",
    "Namespace",
    "NamespaceOptions",
    "Owner",
    "Pool",
    "PrefetchResult",
    "PrefixdError",
    "ProbeResult",
    "QuiescedResult",
    "Reason",
    "ReleaseResult",
    "Removal",
    "ReserveResult",
    "Status",
    "Subscription",
    "Tier",
    "WaitResult",
    "WaitState",
]
