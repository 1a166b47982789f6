"""LMCache inside the engine's process: a remote connector that keeps full chunks in prefixd.

LMCache loads :class:`PrefixdConnectorAdapter` from its configuration (README.md) and calls the
:class:`PrefixdConnector` that it makes, from its event loop and from the engine's threads.  It guarantees:

* no exception and no wait beyond the configured deadlines, whatever the daemon does: then a lookup finds
  nothing, a read brings nothing, a chunk is not stored;
* one copy each way between a block of the pool and LMCache's memory object;
* reference counts as LMCache wants them: an object that is being stored is held until its bytes have been
  copied, and an object whose reader has given up is freed when the copy into it has ended;
* chunks of full length only: a shorter one is not stored, as its key does not tell its length.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from lmcache import __version__ as lmcache_version
from lmcache.utils import CacheEngineKey
from lmcache.v1 import token_database
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext, extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
from prefixd import BlockStore, Client, Owner, PrefixdError
from prefixd.identity import Identity

from . import keys as names
from .identity import Settings, identity_of
from .lanes import Job, Lane

__all__ = ["PLUGIN_TYPE", "PrefixdConnector", "PrefixdConnectorAdapter"]

log = logging.getLogger("prefixd.lmcache")

PLUGIN_TYPE = "prefixd"
_GRACE = 0.05  # seconds past a job's time until its waiter goes: the daemon's client keeps its own deadline
_STEP = 16  # chunks that are allocated, or looked at, before the next call of the store
_OPEN = 10.0
_PING = 1.0
_CLOSE = 5.0


class PrefixdConnectorAdapter(ConnectorAdapter):
    """Makes the connector for plug-ins named ``prefixd`` or ``prefixd.<instance>``."""

    def __init__(self, schema: str = "plugin://" + PLUGIN_TYPE) -> None:
        super().__init__(schema)

    def can_parse(self, url: str) -> bool:
        start = "plugin://"
        return url.startswith(start) and extract_plugin_type(url[len(start) :]) == PLUGIN_TYPE

    def create_connector(self, context: ConnectorContext) -> RemoteConnector:
        """Raises IdentityError for a setting that is missing or wrong: LMCache logs it, and goes on."""
        return PrefixdConnector(context)


class PrefixdConnector(RemoteConnector):
    """See the module.  Lookups, reads and writes have a thread each, so that none waits for another kind."""

    def __init__(self, context: ConnectorContext) -> None:
        config, metadata = context.config, context.metadata
        if config is None or metadata is None:
            raise ValueError("prefixd needs LMCache's configuration and metadata")
        super().__init__(config, metadata)
        self.settings = Settings.from_extra_config(config.extra_config, context.plugin_name or PLUGIN_TYPE)
        self.identity: Identity = identity_of(
            metadata, config, self.settings, lmcache_version=lmcache_version
        )
        if self.identity.block_bytes != self.full_chunk_size_bytes:
            raise ValueError(
                f"prefixd: a chunk has {self.full_chunk_size_bytes} bytes, not {self.identity.block_bytes}"
            )
        self._model = metadata.model_name
        self._memory = context.local_cpu_backend
        self._ping = self._may_be_pinged(config)
        probe = names.probe_digest(_first_chunk_hash(config, metadata))
        options = self.identity.digests(names.DIGEST_LEN, probe)
        owner = Owner(self.settings.tenant, self.settings.salt)
        # The engine gives up at its own time: what comes later would be memory that nobody looks at.
        self._read_time = min(self.settings.deadline, 0.9 * float(config.blocking_timeout_secs))
        # Each call says its own deadline; this one is of closing.
        self._store = BlockStore(self.settings.socket, options, owner, deadline=1.0)
        self._client: Optional[Client] = None  # of pings
        self._lanes = {kind: Lane(f"prefixd-{kind}") for kind in ("lookup", "read", "write", "ping")}
        self._lock = threading.Lock()
        self._pending = 0  # bytes that wait to be stored
        self._counts: Dict[str, int] = {}
        self._nonce, self._checks = os.urandom(16), 0
        # The first to open a namespace waits while the daemon takes its pool: nobody's deadline is made for that.
        self._lanes["write"].submit(Job(self._open, False, time.monotonic() + _OPEN))
        log.info("prefixd: LMCache stores %r", self.identity)

    # Lookups

    def exists_sync(self, key: CacheEngineKey) -> bool:
        return self.batched_contains([key]) == 1

    async def exists(self, key: CacheEngineKey) -> bool:
        return await self._look([key]).arrive(_GRACE) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: List[CacheEngineKey]) -> int:
        """How many of `keys` are stored, from the first on without a gap."""
        return self._look(keys).wait(_GRACE)

    async def batched_async_contains(
        self, lookup_id: str, keys: List[CacheEngineKey], pin: bool = False
    ) -> int:
        """As batched_contains.  `pin` pins nothing: a block may be gone when it is read, which is a miss."""
        return await self._look(keys).arrive(_GRACE)

    # Reads

    async def get(self, key: CacheEngineKey) -> Optional[MemoryObj]:
        found = await self._read([key]).arrive(_GRACE)
        return found[0] if found else None

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: List[CacheEngineKey]) -> List[Optional[MemoryObj]]:
        """The leading chunks that could be read, then None: one behind a gap is of no use to a prefix."""
        found = await self._read(keys).arrive(_GRACE)
        return [*found, *([None] * (len(keys) - len(found)))]

    async def batched_get_non_blocking(self, lookup_id: str, keys: List[CacheEngineKey]) -> List[MemoryObj]:
        return list(await self._read(keys).arrive(_GRACE))

    # Writes

    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: List[CacheEngineKey], memory_objs: List[MemoryObj]) -> None:
        """Returns when the chunks are stored, or are given up.  The caller's references stay the caller's."""
        job = self._write(keys, memory_objs)
        if job is not None:
            await job.arrive(_GRACE)

    # The rest

    async def list(self) -> List[str]:
        """Empty: the daemon keeps digests of names, not names."""
        return []

    def remove_sync(self, key: CacheEngineKey) -> bool:
        """False: blocks are shared by all workers of the machine, and the daemon decides when one goes."""
        return False

    def support_ping(self) -> bool:
        """Whether LMCache's health monitor may ask.

        By default only where its ``fallback_policy`` is ``local_cpu``: with the other one, ``recompute``,
        LMCache switches its memory cache off as well while the daemon is away, although a daemon that is
        away costs this connector nothing.  The setting ``ping`` says otherwise.
        """
        return self._ping

    async def ping(self) -> int:
        """0 if the daemon answers in time, else 1."""
        job: Job[bool] = Job(self._answers, False, time.monotonic() + _PING)
        return 0 if await self._lanes["ping"].submit(job).arrive(_GRACE) else 1

    def stats(self) -> Dict[str, Any]:
        """Counters: of this connector under "connector", of its calls of the daemon under "store"."""
        with self._lock:
            return {
                "connector": dict(self._counts, pending_bytes=self._pending),
                "store": self._store.stats(),
            }

    async def close(self) -> None:
        """Ends the threads and the sessions; what waited is dropped.  At most a few seconds."""
        job: Job[bool] = Job(self._close, False, time.monotonic() + _CLOSE)
        await Lane("prefixd-close").submit(job).arrive(_GRACE)

    # What follows is how

    def _open(self) -> bool:
        return self._store.connect(deadline=_OPEN)

    def _close(self) -> bool:
        until = time.monotonic() + _CLOSE
        for lane in self._lanes.values():
            lane.close(max(0.0, until - time.monotonic()))
        self._store.close()
        if self._client is not None:
            self._client.close()
        return True

    def _answers(self) -> bool:
        if self._client is None:
            self._client = Client(self.settings.socket, name="lmcache-ping", deadline=_PING)
        try:
            self._client.ping()
        except PrefixdError:
            return False
        return True

    def _may_be_pinged(self, config: Any) -> bool:
        if self.settings.ping is not None:
            return self.settings.ping
        policy = config.get_extra_config_value("fallback_policy", None)
        return getattr(policy, "value", policy) == "local_cpu"

    def _count(self, what: str, n: int = 1) -> None:
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + n

    def _digest(self, key: CacheEngineKey) -> bytes:
        if key.model_name == self._model:
            return names.chunk_digest(key)
        # LMCache's health monitor stores ever other bytes under one key of a model "test".  A block never
        # changes, so each of its writes gets a name of its own, which nobody else knows.
        return names.chunk_digest(key, self._nonce + self._checks.to_bytes(8, "little"))

    def _look(self, keys: Sequence[CacheEngineKey]) -> Job[int]:
        digests = [self._digest(key) for key in keys]
        until = time.monotonic() + self.settings.lookup_deadline

        def work() -> int:
            return _leading(self._store.contains(digests, deadline=until - time.monotonic()))

        return self._lanes["lookup"].submit(Job(work, 0, until))

    def _read(self, keys: Sequence[CacheEngineKey]) -> Job[List[MemoryObj]]:
        digests = [self._digest(key) for key in keys]
        until = time.monotonic() + self._read_time
        job: Job[List[MemoryObj]] = Job(lambda: self._fetch(digests, until), [], until, dispose=_free)
        return self._lanes["read"].submit(job)

    def _fetch(self, digests: List[bytes], until: float) -> List[MemoryObj]:
        # Asked first, as memory for a chunk that is not there could drive another out of LMCache's cache.
        there = _leading(self._store.contains(digests, deadline=until - time.monotonic()))
        found: List[MemoryObj] = []
        while len(found) < there and time.monotonic() < until:
            step = digests[len(found) : min(there, len(found) + _STEP)]
            places: List[MemoryObj] = []
            good = 0
            try:
                for _ in step:
                    place = self._memory.allocate(
                        self.meta_shapes, self.meta_dtypes, self.meta_fmt, busy_loop=False
                    )
                    if place is None:
                        self._count("no_memory")
                        break
                    places.append(place)
                if places:
                    outs = [_bytes_of(place) for place in places]
                    good = _leading(
                        self._store.get(step[: len(outs)], outs, deadline=until - time.monotonic())
                    )
            except Exception as error:  # of LMCache's allocator: what has been read so far is good
                log.warning("prefixd: no memory for a chunk: %r", error)
            finally:
                found += places[:good]
                _free(places[good:])
            if good < len(step):
                break
        return found

    def _write(self, keys: Sequence[CacheEngineKey], objects: Sequence[MemoryObj]) -> Optional[Job[bool]]:
        digests, held, size = [], [], 0
        with self._lock:
            room = self.settings.pending_bytes - self._pending
        for key, obj in zip(keys, objects):
            if obj is None or not self._is_full_chunk(obj):
                self._count("not_full")
                continue
            if size + self.full_chunk_size_bytes > room:
                self._count("dropped_pending")
                continue
            if key.model_name != self._model:
                self._checks += 1
            digests.append(self._digest(key))
            obj.ref_count_up()
            held.append(obj)
            size += self.full_chunk_size_bytes
        if not held:
            return None
        with self._lock:
            self._pending += size

        def after() -> None:
            _free(held)
            with self._lock:
                self._pending -= size

        until = time.monotonic() + self.settings.put_deadline
        return self._lanes["write"].submit(
            Job(lambda: self._put(digests, held, until), False, until, after=after)
        )

    def _put(self, digests: List[bytes], objects: List[MemoryObj], until: float) -> bool:
        stored = 0
        for first in range(0, len(digests), _STEP):
            left = until - time.monotonic()
            if left <= 0:
                break
            step = slice(first, first + _STEP)
            stored += sum(
                self._store.put(digests[step], [_bytes_of(obj) for obj in objects[step]], deadline=left)
            )
        self._count("stored", stored)
        self._count("not_stored", len(digests) - stored)
        return stored == len(digests)

    def _is_full_chunk(self, obj: MemoryObj) -> bool:
        if obj.get_size() != self.full_chunk_size_bytes or obj.get_memory_format() != self.meta_fmt:
            return False
        if len(self.meta_shapes) > 1:
            return True
        return tuple(obj.get_shape()) == tuple(self.meta_shapes[0]) and obj.get_dtype() == self.meta_dtypes[0]


def _leading(there: Sequence[bool]) -> int:
    """How many are true before the first that is not."""
    for n, one in enumerate(there):
        if not one:
            return n
    return len(there)


def _free(objects: Sequence[MemoryObj]) -> None:
    for obj in objects:
        obj.ref_count_down()


def _bytes_of(obj: MemoryObj) -> np.ndarray:
    """The object's bytes, writable and without a copy.  The object must be held while they are used."""
    return np.frombuffer(obj.byte_array, dtype=np.uint8)


def _first_chunk_hash(config: Any, metadata: Any) -> int:
    """LMCache's own hash of a chunk of the tokens 0, 1, 2 ..., by its own function and start value.

    The token database is not made anew: its constructor seeds the engine's block hashes once more.
    """
    database = token_database.ChunkedTokenDatabase.__new__(token_database.ChunkedTokenDatabase)
    database.hash_func = database._get_vllm_hash_func(config.pre_caching_hash_algorithm)
    return database._hash_tokens(list(range(metadata.chunk_size)))
