"""What the scheduler's half of the connector tells the workers' half in each step.  Plain data, pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Set

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

__all__ = ["Load", "Meta", "Save"]


@dataclass
class Load:
    """Copy blocks of the pool into the engine's.

    `slots[rank][i]` of the life `boot` goes to block `blocks[i]`; the scheduler's lease holds the slots
    until the request is told as received.  `reuse` is the daemon's counter at the match, for telling a
    slot that was reused all the same.  `slots` is empty where the plan failed: then all blocks are told
    as not loaded.
    """

    req_id: str
    blocks: List[int]
    boot: bytes = b""
    reuse: List[int] = field(default_factory=list)
    slots: List[List[int]] = field(default_factory=list)


@dataclass
class Save:
    """Blocks of a prompt that are full after this step: keys[i] is the digest of blocks[i].

    They come behind the `start` blocks that were told for this request before; 0 begins anew.
    """

    req_id: str
    start: int
    keys: List[bytes]
    blocks: List[int]


@dataclass
class Meta(KVConnectorMetadata):
    """`options` are the namespaces by rank, empty until they are known.

    `preempted`: requests whose blocks may be overwritten from now on.  `delayed`: requests that are finished
    and whose blocks the engine keeps until the workers tell them as sent.
    """

    options: List[Any] = field(default_factory=list)
    loads: List[Load] = field(default_factory=list)
    saves: List[Save] = field(default_factory=list)
    preempted: Set[str] = field(default_factory=set)
    delayed: Set[str] = field(default_factory=set)
