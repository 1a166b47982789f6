"""A secondary tier for vLLM's offloading connector that keeps the host tier's rows in prefixd.

Loaded by module path, without a change to the engine::

    "secondary_tiers": [{"type": "PrefixdTier", "module_path": "prefixd_vllm.tier",
                         "socket": "/run/prefixd/prefixd.sock",
                         "revision": "...", "tenant": "default", "salt": ""}]

All methods run in the scheduler's process and return at once: the daemon is asked by threads
(``tier_jobs``), a lookup says "try again" until it has an answer or its deadline has passed, and a job
that cannot be done is reported as failed.  No method raises for anything that the daemon does; a
configuration that would share too much is refused when the tier is made.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from typing import Any, Collection, Dict, Iterable, List, Optional

import numpy as np
import prefixd
from prefixd.errors import Status
from prefixd.identity import IdentityError
from vllm.v1.kv_offload.base import LookupResult, RequestOffloadingContext
from vllm.v1.kv_offload.tiering import base as tiering

from .tier_identity import GROUP_BYTES, seed_probe, tier_identity, tier_layout
from .tier_jobs import Done, Job, Lookups, Store, Transfers
from .tier_options import TierOptions

__all__ = ["PrefixdTier"]

_log = logging.getLogger(__name__)


def _row_bytes(view: memoryview) -> int:
    """Bytes of one row; refused unless a row is one run of bytes.  Looks, and holds nothing."""
    if (
        view.ndim != 2
        or view.itemsize != 1
        or view.strides != (view.shape[1], 1)
        or view.shape[1] == 0
        or view.readonly
    ):
        raise IdentityError(
            Status.ARGUMENT,
            f"the primary tier's view has shape {view.shape} with strides {view.strides}; "
            "writable rows of bytes, one behind the other, are supported",
            "block_bytes",
        )
    return view.shape[1]


def _engine() -> str:
    """Engine, version and kind of machine: none of them promises the layout of another one."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    kind = current_platform.device_type
    if kind == "cpu":  # attention kernels pack K by the instruction set
        kind = f"cpu {torch.backends.cpu.get_cpu_capability()} amx={int(torch.cpu._is_amx_tile_supported())}"
    return f"vllm {vllm.__version__} {kind}"


def _position(job: Any, key: bytes) -> int:
    """Where the key's block ends in its prompt; 0 where this version does not say it."""
    find = getattr(getattr(job, "req_context", None), "get_offload_key_position", None)
    return (find(key) or 0) if find is not None else 0


class PrefixdTier(tiering.SecondaryTierManager):
    """Rows of the primary tier, by key, in the daemon's pool; see the module and TIER.md."""

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        """Refuses by name what is missing; does not talk to the daemon yet.

        `offloading_spec`: with its `config`.  `primary_kv_view`: rows x bytes, borrowed until
        `shutdown`.  `options`: :class:`TierOptions`.
        """
        given: Dict[str, Any] = {
            "offloading_spec": offloading_spec,
            "primary_kv_view": primary_kv_view,
            "tier_type": tier_type,
            "backpressure_detector": backpressure_detector,
        }
        takes = inspect.signature(tiering.SecondaryTierManager.__init__).parameters
        super().__init__(**{name: value for name, value in given.items() if name in takes})
        self._options = TierOptions.parse(options)
        config = offloading_spec.config
        self._row_bytes = _row_bytes(primary_kv_view)
        self._identity = tier_identity(
            config,
            row_bytes=self._row_bytes,
            engine=_engine(),
            revision=self._options.revision,
            model=self._options.model,
            adapter=self._options.adapter,
            scales=self._options.scales,
        )
        self._owner = prefixd.Owner(tenant=self._options.tenant, salt=self._options.salt)
        self._tokens_per_hash = int(config.cache.tokens_per_hash)
        self._result_fields = {field.name for field in dataclasses.fields(tiering.JobResult)}
        self._store = Store(self._make_store)
        self._lookups = Lookups(self._store, self._options.lookup_deadline)
        self._transfers = Transfers(
            np.asarray(primary_kv_view).view(np.uint8),
            self._store,
            threads=self._options.threads,
            load_deadline=self._options.load_deadline,
            store_deadline=self._options.store_deadline,
        )
        self._stopped = False
        locality = getattr(tiering, "Locality", None)
        if locality is not None:
            self.locality = locality(self._options.locality or "LOCAL")
        self.counts = {"loaded": 0, "not_loaded": 0, "stored": 0, "not_stored": 0}
        _log.info("prefixd tier: %r, rows as %s", self._identity, tier_layout(config)[1])

    def _make_store(self, key_len: int) -> prefixd.BlockStore:
        """In a helper thread, at the first key; only then is the engine's seed set."""
        probe = seed_probe(self._tokens_per_hash, key_len - GROUP_BYTES, self._options.hash_algo)
        return prefixd.BlockStore(
            self._options.socket,
            self._identity.digests(key_len, probe),
            self._owner,
            deadline=self._options.deadline,
        )

    # ---- lookups

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """HIT, MISS, or RETRY while the daemon has not answered and the deadline has not passed."""
        if self._stopped:
            return LookupResult.MISS
        there = self._lookups.ask(req_context.req_id, key)
        if there is None:
            return LookupResult.RETRY
        return LookupResult.HIT if there else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.forget(req_context.req_id)

    # ---- jobs

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(job_metadata, load=False)

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(job_metadata, load=True)

    def _submit(self, job: Any, load: bool) -> None:
        keys = [bytes(key) for key in job.keys]
        rows = [int(row) for row in (job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids)]
        if len(keys) == len(rows):
            # Keys come as a set.  What is stored last is evicted last, and a prompt's first blocks are
            # those without which the others are of no use: store them last, load them first.
            order = sorted(range(len(keys)), key=lambda i: _position(job, keys[i]), reverse=not load)
            keys, rows = [keys[i] for i in order], [rows[i] for i in order]
        self._transfers.submit(Job(job.job_id, load, keys, rows))

    def get_finished_jobs(self) -> Iterable[Any]:
        results: List[Any] = []
        for done in self._transfers.take():
            self._count(done)
            if done.load and done.failed:
                self._lookups.missing(done.failed)
            fields = {
                "job_id": done.job_id,
                "success": done.success,
                "successful_keys": tuple(done.ok) if done.load and done.ok and not done.success else None,
                "transfer_time": done.seconds,
                "transfer_bytes": len(done.ok) * self._row_bytes,
            }
            results.append(tiering.JobResult(**{k: v for k, v in fields.items() if k in self._result_fields}))
        return results

    get_finished = get_finished_jobs  # its name in older versions

    def _count(self, done: Done) -> None:
        good, bad = ("loaded", "not_loaded") if done.load else ("stored", "not_stored")
        self.counts[good] += len(done.ok)
        self.counts[bad] += len(done.failed)

    def has_pending_work(self) -> bool:
        return self._transfers.open > 0

    def drain_jobs(self) -> None:
        """Wait for the open jobs, a bounded time, and cancel those that have not begun by then.

        The engine calls this when it resets its caches, as after new weights were loaded: what was
        stored under this identity may be wrong for it from now on, and it does not say what changed.
        So nothing is shared any more unless `on_reset` is "keep".
        """
        self._transfers.drain(self._options.drain)
        if self._options.on_reset == "stop" and not self._stopped:
            self._stopped = True
            self._transfers.refuse()
            _log.warning("prefixd tier: the engine reset its caches; nothing is shared until it starts again")

    def shutdown(self) -> None:
        """End the threads and let go of the primary tier's rows.

        Raises RuntimeError only if a thread is stuck in a copy: then the rows must not be unmapped,
        and raising is how this interface says that.
        """
        self._stopped = True
        self._lookups.close()
        if not self._transfers.close():
            raise RuntimeError("prefixd tier: a copy did not end; the primary tier's memory is still in use")
        self._store.close()

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Nothing: recency is written when blocks are read or stored."""

    def take_events(self) -> Iterable[Any]:
        return ()

    def get_stats(self) -> Optional[Any]:
        return None
