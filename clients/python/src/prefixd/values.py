"""What goes into calls and comes out of them: options, owners, results.

All are plain immutable values.  Codes are enums where this version knows them and bare integers where a
newer daemon says more.  Nothing that names something has a default: a forgotten field would share what
must not be shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Optional, Type, Union

import numpy as np
import numpy.typing as npt

from .errors import PrefixdError, Status

Slots = npt.NDArray[np.int64]

KEYS_TOKENS = 1
KEYS_DIGEST = 2
NS_OPAQUE = 1
NS_EXTRA = 2


class Reason(IntEnum):
    """Why a match is not longer, or a load brought fewer blocks than there were."""

    NONE = 0
    NEVER_SEEN = 1
    DIVERGED = 2
    EVICTED = 3
    BELOW_BLOCK = 4
    PENDING = 5
    NO_ROOM = 6
    NAMESPACE = 7
    SEED_MISMATCH = 8
    TIER_LOST = 9
    TIER_DOWN = 10
    QUOTA = 11
    CORRUPT = 12
    DECLINED = 13


class WaitState(IntEnum):
    """What a wait came to."""

    READY = 0  # n more blocks are usable: extend
    LEAD = 2  # nobody computes them: extend if n is not 0, reserve, compute
    FAILED = 3  # nobody will: compute without storing


class ChangeKind(IntEnum):
    """What a subscriber is told."""

    STORED = 1
    REMOVED = 2
    MOVED = 3
    CLEARED = 4
    RESYNC = 5


class Removal(IntEnum):
    """Why a block is gone."""

    NONE = 0
    CAPACITY = 1
    FLUSH = 2
    EVICT = 3
    CORRUPT = 4
    QUOTA = 5
    TIER_LOST = 6
    DROPPED = 7


class Tier(IntEnum):
    """Where a block lies, the fastest first."""

    DEVICE = 0
    HOST = 1
    REDIS = 2


def code(kind: Type[IntEnum], number: int) -> int:
    """The enum's member of this number, or the number where a newer daemon says more."""
    try:
        return kind(number)
    except ValueError:
        return number


@dataclass(frozen=True)
class NamespaceOptions:
    """What must agree for K/V to be interchangeable: one member per field of OPEN.

    Only the last two have a default: how blocks lie below the pool ("none", "int8", "fp8"; "": as the
    daemon was told to), and the layers that stay exact all the same ("0-1,31").

    `flags`: NS_OPAQUE, NS_EXTRA, no others (ARGUMENT).  `block_bytes`: K and V of all layers of one block,
    of this rank.
    The daemon judges the values, not this class: a wrong one is BAD_NAMESPACE with its name.
    """

    key_mode: int
    flags: int
    model: str
    revision: str
    dtype: str
    scales: str
    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    block_bytes: int
    layout: str
    windows: str
    adapter: str
    tp_size: int
    tp_rank: int
    engine: str
    digest_len: int
    seed_probe: bytes
    cold_codec: str = ""
    exact_layers: str = ""


@dataclass(frozen=True)
class Owner:
    """Whose prompts these are: a tenant, by name or number, and a salt.

    Both are needed, since a default would let prompts of two owners share blocks.  `b""` is a salt like
    any other.  What is missing raises MISSING_FIELD, what is too long or of another type ARGUMENT.
    """

    tenant: Union[str, int]
    salt: bytes

    def __post_init__(self) -> None:
        tenant: Any = self.tenant
        salt: Any = self.salt
        if tenant is None or tenant == "":
            raise PrefixdError(Status.MISSING_FIELD, "name the tenant; there is no default", "tenant")
        if salt is None:
            raise PrefixdError(Status.MISSING_FIELD, 'give a salt; b"" is one, and none is not', "salt")
        if isinstance(tenant, bool) or not isinstance(tenant, (str, int)):
            raise PrefixdError(Status.ARGUMENT, "a tenant is a name or a number", "tenant")
        if isinstance(tenant, int) and not 0 <= tenant < 1 << 32:
            raise PrefixdError(Status.ARGUMENT, f"{tenant} is no number of a tenant", "tenant")
        if not isinstance(salt, (bytes, bytearray, memoryview)):
            raise PrefixdError(Status.ARGUMENT, "a salt is bytes", "salt")
        object.__setattr__(self, "salt", bytes(salt))
        if len(self.salt) > 255:
            raise PrefixdError(Status.ARGUMENT, "a salt has at most 255 bytes", "salt")


class MatchResult(NamedTuple):
    """What MATCH or EXTEND found.  Counts are blocks; the device's are first, then host, Redis, pending."""

    n_device: int  # of EXTEND: those that this call added
    n_host: int
    n_redis: int
    n_pending: int  # further ones that another worker is computing
    tail_tokens: int  # tokens of the next block that tail_slot holds; copy them, do not write there
    tail_slot: int
    advice: int  # 0: load what lies lower; 1: computing takes less time, no load was begun
    reason: int  # Reason: why not longer
    load_us: int  # estimated time to load the host and Redis blocks
    miss_token: int  # position of the first token that no tier has
    reuse: int  # for Pool.stale
    root: bytes  # differs whenever namespace, tenant or salt do
    slots: Slots  # device slots of the n_device blocks, in path order
    loading: bool  # a load was begun for this lease: load_wait tells its end, then extend its slots
    n_lossy: int = 0  # of all these blocks: changed by a cold codec, or they would be on their way up
    first_lossy: int = 0  # path position of the first of them


class WaitResult(NamedTuple):
    """`n` blocks behind the lease's path are usable now; others wait `leader_us` for one that leads."""

    state: int  # WaitState
    n: int
    leader_us: int


class LoadResult(NamedTuple):
    """`n` blocks came up: extend gives their slots.  `reason` says why not all of them did."""

    n: int
    reason: int  # Reason


class ReserveResult(NamedTuple):
    """Places to fill: block first + i of the path goes to slots[i]."""

    n: int
    first: int
    slots: Slots
    reuse: int


class CommitResult(NamedTuple):
    """`slots` are the canonical ones of the committed blocks: another's where that one was faster."""

    n_stored: int
    n_duplicate: int
    slots: Slots
    reuse: int


class ReleaseResult(NamedTuple):
    """What became of the prompt's tokens; the last five add up to the first."""

    queried_tokens: int
    hit_device_tokens: int
    hit_host_tokens: int
    hit_redis_tokens: int
    hit_pending_tokens: int
    miss_tokens: int


class ProbeResult(NamedTuple):
    """What was there a moment ago.  `bitmap`: for each key whether it is a member; None if not asked for."""

    n_device: int
    n_host: int
    n_redis: int
    root: bytes
    bitmap: Optional[npt.NDArray[np.bool_]]


class PrefetchResult(NamedTuple):
    """Blocks per tier when the daemon read the request."""

    n_device: int
    n_host: int
    n_redis: int


class ExplainResult(NamedTuple):
    """Why a prompt is not served further than `position`."""

    matched_tokens: int
    position: int
    reason: int  # Reason
    own_token: Optional[int]
    stored_token: Optional[int]
    lost_tokens: int
    text: str


class QuiescedResult(NamedTuple):
    """Leases that ended and slots that became free."""

    n_leases: int
    n_slots: int


class Change(NamedTuple):
    """One event of a subscription; which members mean something depends on its kind."""

    kind: int  # ChangeKind
    tier: int  # Tier
    from_tier: int
    reason: int  # Removal
    number: int
    ns: int
    tenant: Optional[int]
    root: bytes
    position: Optional[int]  # stored, token mode: blocks before it
    n_tokens: int
    slot: Optional[int]
    revision: int
    block: bytes
    parent: bytes
