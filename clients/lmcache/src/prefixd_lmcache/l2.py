"""LMCache's server of several processes: an L2 adapter that keeps objects in prefixd.

The server loads :class:`PrefixdL2Adapter` from its ``--l2-adapter`` option (README.md).  Its controllers
submit stores, lookups and loads, go on at once, and are told by three event descriptors when one is over.
It guarantees:

* every task that was submitted is over some time, and its event is told: behind its deadline at the latest,
  whatever the daemon does; what could not be had or stored is a 0 in the bitmap, or a store that failed;
* memory objects are touched until their task is over and never afterwards;
* objects of another model, layout, group or rank, or of another size than their layout says, are never
  mixed: each has a namespace of the daemon of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
from lmcache import __version__ as lmcache_version
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc, L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from lmcache.v1.platform import create_event_notifier
from prefixd import BlockStore, Owner, PrefixdError

from . import keys as names
from .identity import ServerSettings, object_identity
from .lanes import Job, Lane

__all__ = ["PrefixdL2Adapter", "PrefixdL2AdapterConfig"]

log = logging.getLogger("prefixd.lmcache")

_STEP = 64  # objects in one call of the store
_STORES_MAX = 64  # layouts, groups and ranks: more than any server has, and an end to mistakes
_CLOSE = 5.0

_Layout = Tuple[Tuple[Tuple[int, ...], ...], Tuple[str, ...]]


class PrefixdL2AdapterConfig(L2AdapterConfigBase):
    """``adapter_params`` of the plug-in, checked; LMCache finds this class by its name."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings

    @classmethod
    def from_dict(cls, d: Dict[str, Any]) -> PrefixdL2AdapterConfig:
        """Raises IdentityError, a ValueError, which names the setting at fault: the server does not start."""
        return cls(ServerSettings.from_options(d))

    @classmethod
    def help(cls) -> str:
        return "prefixd L2 adapter: tenant, salt, hash_algorithm, chunk_size, models; see its README"


@dataclass
class _Part:
    """The objects of one task that lie in one namespace."""

    store: BlockStore
    size: int
    places: List[int]
    digests: List[bytes]


class PrefixdL2Adapter(L2AdapterInterface):
    """See the module.  Stores, lookups and loads have a thread each, so that none waits for another kind."""

    def __init__(self, config: PrefixdL2AdapterConfig, l1_memory_desc: Optional[L1MemoryDesc] = None) -> None:
        # No capacity is told: the daemon knows what is full, and decides by itself what goes.
        super().__init__(max_capacity_bytes=0)
        self.settings = config.settings
        hasher = TokenHasher(self.settings.chunk_size, self.settings.hash_algorithm)
        first = hasher.compute_chunk_hashes(list(range(self.settings.chunk_size)))
        self._probe = names.probe_digest(first[0])
        self._owner = Owner(self.settings.tenant, self.settings.salt)
        self._events = {kind: create_event_notifier() for kind in ("store", "lookup", "load")}
        self._lanes = {kind: Lane(f"prefixd-{kind}") for kind in self._events}
        self._lock = threading.Lock()
        self._stores: Dict[Tuple[Any, ...], Optional[Tuple[BlockStore, int]]] = {}
        self._next_task = 0
        self._pending = 0
        self._counts: Dict[str, int] = {}
        self._closed = False
        self._stored: Dict[int, L2StoreResult] = {}
        self._looked_up: Dict[int, Bitmap] = {}
        self._loaded: Dict[int, Bitmap] = {}

    # Events

    def get_store_event_fd(self) -> int:
        return self._events["store"].fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._events["lookup"].fileno()

    def get_load_event_fd(self) -> int:
        return self._events["load"].fileno()

    # Stores

    def submit_store_task(self, keys: List[ObjectKey], objects: List[MemoryObj]) -> int:
        size = sum(obj.get_size() for obj in objects)
        with self._lock:
            room = size <= self.settings.pending_bytes - self._pending
            if room:
                self._pending += size

        def work() -> L2StoreResult:
            return self._store(keys, objects, until) if room else L2StoreResult(False, 0)

        def after() -> None:
            if room:
                with self._lock:
                    self._pending -= size

        if not room:
            self._count("dropped_pending", len(keys))
        until = time.monotonic() + self.settings.put_deadline
        job: Job[L2StoreResult] = Job(work, L2StoreResult(False, 0), until, after=after)
        return self._submit("store", job)

    def pop_completed_store_tasks(self) -> Dict[int, L2StoreResult]:
        with self._lock:
            done, self._stored = dict(self._stored), {}
        return done

    # Lookups

    def submit_lookup_and_lock_task(
        self, keys: List[ObjectKey], group_layout_descs: Dict[int, MemoryLayoutDesc]
    ) -> int:
        """Finds objects; locks none: one that is gone before its load is a 0 in the load's bitmap."""
        layouts = {group: _layout(desc.shapes, desc.dtypes) for group, desc in group_layout_descs.items()}

        def work() -> Bitmap:
            return self._look_up(keys, [layouts.get(key.object_group_id) for key in keys], until)

        until = time.monotonic() + self.settings.lookup_deadline
        return self._submit("lookup", Job(work, Bitmap(len(keys)), until))

    def query_lookup_and_lock_result(self, task_id: int) -> Optional[Bitmap]:
        with self._lock:
            return self._looked_up.pop(task_id, None)

    def submit_unlock(self, keys: List[ObjectKey]) -> None:
        """Nothing is locked."""

    # Loads

    def submit_load_task(self, keys: List[ObjectKey], objects: List[MemoryObj]) -> int:
        def work() -> Bitmap:
            return self._load(keys, objects, until)

        until = time.monotonic() + self.settings.deadline
        return self._submit("load", Job(work, Bitmap(len(keys)), until))

    def query_load_result(self, task_id: int) -> Optional[Bitmap]:
        with self._lock:
            return self._loaded.pop(task_id, None)

    # The rest

    def delete(self, keys: List[ObjectKey]) -> None:
        """Nothing: blocks are shared by all workers of the machine, and the daemon decides when one goes."""

    def report_status(self) -> Dict[str, Any]:
        """Healthy as long as it takes tasks: a daemon that is away makes misses, no damage."""
        with self._lock:
            stores = [entry[0] for entry in self._stores.values() if entry]
            found: Dict[str, Any] = {
                "is_healthy": not self._closed,
                "type": type(self).__name__,
                "pending_bytes": self._pending,
                "counts": dict(self._counts),
            }
        found["stores"] = [store.stats() for store in stores]
        return found

    def close(self) -> None:
        """Ends threads and sessions, at most some seconds.  Tasks that are in line are over, as missed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        until = time.monotonic() + _CLOSE
        for lane in self._lanes.values():
            if not lane.close(max(0.0, until - time.monotonic())):
                log.error("prefixd: a task is still under way while the adapter closes")
        with self._lock:
            stores = [entry[0] for entry in self._stores.values() if entry]
            for event in self._events.values():
                event.close()
        for store in stores:
            store.close()

    # What follows is how

    def _submit(self, kind: str, job: Job[Any]) -> int:
        with self._lock:
            task, self._next_task = self._next_task, self._next_task + 1

        def over() -> None:
            result = job.leave()
            with self._lock:
                # Looked up now: pop_completed_store_tasks() puts another mapping in its place.
                results = {"store": self._stored, "lookup": self._looked_up, "load": self._loaded}
                results[kind][task] = result
                if self._events[kind].fileno() >= 0:
                    self._events[kind].notify()

        job.listen(over)
        self._lanes[kind].submit(job)
        return task

    def _count(self, what: str, n: int = 1) -> None:
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + n

    def _store_of(self, key: ObjectKey, layout: Optional[_Layout]) -> Optional[Tuple[BlockStore, int]]:
        """The store of the key's objects and their size; None: they cannot be kept, which is said once."""
        if layout is None:
            return None
        name = (key.model_name, key.object_group_id, key.kv_rank, layout)
        with self._lock:
            if name in self._stores:
                return self._stores[name]
            entry = None
            try:
                if self._closed or len(self._stores) >= _STORES_MAX:
                    raise ValueError(f"more than {_STORES_MAX} layouts")
                entry = self._open(key, layout)
            except (PrefixdError, ValueError) as error:
                log.warning("prefixd: objects of model %r are not kept: %s", key.model_name, error)
            if len(self._stores) < _STORES_MAX:
                self._stores[name] = entry
            return entry

    def _open(self, key: ObjectKey, layout: _Layout) -> Tuple[BlockStore, int]:
        identity = object_identity(
            key.model_name,
            self.settings.model(key.model_name),
            layout[0],
            layout[1],
            world_size=key.kv_rank >> 24,
            rank=(key.kv_rank >> 16) & 0xFF,
            group=key.object_group_id,
            chunk_tokens=self.settings.chunk_size,
            lmcache_version=lmcache_version,
        )
        options = identity.digests(names.DIGEST_LEN, self._probe)
        # Each call says its own deadline; this one is of closing.
        return BlockStore(self.settings.socket, options, self._owner, deadline=1.0), identity.block_bytes

    def _parts(self, keys: Sequence[ObjectKey], layouts: Sequence[Optional[_Layout]]) -> List[_Part]:
        """The keys by namespace, in steps; keys without one are left out."""
        parts: List[_Part] = []
        open_: Dict[int, _Part] = {}
        for place, (key, layout) in enumerate(zip(keys, layouts)):
            entry = self._store_of(key, layout)
            if entry is None:
                continue
            part = open_.get(id(entry[0]))
            if part is None or len(part.places) == _STEP:
                part = open_[id(entry[0])] = _Part(entry[0], entry[1], [], [])
                parts.append(part)
            part.places.append(place)
            part.digests.append(names.object_digest(key))
        return parts

    def _with_memory(
        self,
        keys: Sequence[ObjectKey],
        objects: Sequence[MemoryObj],
        until: float,
        call: Callable[..., List[bool]],
    ) -> List[bool]:
        done = [False] * len(keys)
        for part in self._parts(keys, [_layout_of(obj) for obj in objects]):
            left = until - time.monotonic()
            fit = [n for n, place in enumerate(part.places) if objects[place].get_size() == part.size]
            if left <= 0 or not fit:
                continue
            views = [np.frombuffer(objects[part.places[n]].byte_array, dtype=np.uint8) for n in fit]
            for n, good in zip(fit, call(part.store, [part.digests[n] for n in fit], views, deadline=left)):
                done[part.places[n]] = good
        return done

    def _store(self, keys: Sequence[ObjectKey], objects: Sequence[MemoryObj], until: float) -> L2StoreResult:
        done = self._with_memory(keys, objects, until, BlockStore.put)
        self._count("stored", sum(done))
        self._count("not_stored", len(done) - sum(done))
        size = sum(obj.get_size() for obj, good in zip(objects, done) if good)
        return L2StoreResult(all(done), size)

    def _look_up(
        self, keys: Sequence[ObjectKey], layouts: Sequence[Optional[_Layout]], until: float
    ) -> Bitmap:
        found = Bitmap(len(keys))
        for part in self._parts(keys, layouts):
            left = until - time.monotonic()
            if left <= 0:
                break
            there = part.store.contains(part.digests, deadline=left)
            found.batched_set([place for place, good in zip(part.places, there) if good])
        return found

    def _load(self, keys: Sequence[ObjectKey], objects: Sequence[MemoryObj], until: float) -> Bitmap:
        done = self._with_memory(keys, objects, until, BlockStore.get)
        found = Bitmap(len(keys))
        found.batched_set([place for place, good in enumerate(done) if good])
        return found


def _layout(shapes: Sequence[Sequence[int]], dtypes: Sequence[object]) -> _Layout:
    return tuple(tuple(int(n) for n in shape) for shape in shapes), tuple(str(dtype) for dtype in dtypes)


def _layout_of(obj: MemoryObj) -> Optional[_Layout]:
    if obj.meta.shapes is not None and obj.meta.dtypes is not None:
        return _layout(obj.meta.shapes, obj.meta.dtypes)
    return None if obj.meta.dtype is None else _layout([obj.meta.shape], [obj.meta.dtype])
