"""`PrefixdConnector`: vLLM's K/V connector interface, version 1, on prefixd.

    --kv-transfer-config '{"kv_connector": "PrefixdConnector",
      "kv_connector_module_path": "prefixd_vllm.connector",
      "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"tenant": "default", "salt": "", "revision": "..."}}'

The engine makes one object for its scheduler and one in each worker process; this class hands over to
`SchedulerSide` or `WorkerSide`.  When the engine starts, what would share wrongly is refused by raising.
After that nothing is ever raised into the engine: every method has an answer that means "compute".

Loads are asynchronous in the engine's sense: a request waits for its blocks beside the running ones, and only
blocks that arrived enter the engine's own prefix cache.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, TypeVar

import torch
from prefixd import Owner
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.logger import init_logger

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # before vLLM told sources apart
    CacheHitSource = None

from .identity import identity_of
from .layout import Pages, check_config
from .meta import Meta
from .scheduling import SchedulerSide
from .session import Link, Say, client_maker
from .settings import Settings
from .stats import PrefixdStats
from .working import WorkerSide

__all__ = ["PrefixdConnector"]

log = init_logger("vllm.prefixd")  # below "vllm", whose handlers the engine sets up
F = TypeVar("F", bound=Callable[..., Any])


def _guarded(otherwise: Callable[[], Any]) -> Callable[[F], F]:
    """A method of which the engine gets `otherwise()` where it would get an exception."""

    def wrap(method: F) -> F:
        @functools.wraps(method)
        def inner(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self._say(
                    method.__name__,
                    "%s failed: %r; requests are computed",
                    method.__name__,
                    error,
                    trace=True,
                )
                return otherwise()

        return inner  # type: ignore[return-value]

    return wrap


def _machine() -> str:
    """What the order of bytes in a page depends on besides the engine's version; "" if it cannot be told."""
    try:
        return f"cpu {torch.backends.cpu.get_cpu_capability()} amx={int(torch.cpu._is_amx_tile_supported())}"
    except AttributeError:
        return ""  # the identity is refused then: AMX kernels pack K otherwise


class PrefixdConnector(KVConnectorBase_V1, SupportsHMA):
    """See the module.  `kv_role` kv_producer only saves, kv_consumer only loads, kv_both does both."""

    if CacheHitSource is not None:
        _cache_hit_source = CacheHitSource.HOST  # what the engine's metrics call our hits

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        check_config(vllm_config, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._settings = Settings.of(transfer.kv_connector_extra_config)
        self._say = Say(log)
        self._owner = Owner(self._settings.tenant, self._settings.salt.encode())
        self._loads, self._saves = bool(transfer.is_kv_consumer), bool(transfer.is_kv_producer)
        self._config, self._cache_config = vllm_config, kv_cache_config
        self._epoch = ""
        self._scheduler: Optional[SchedulerSide] = None
        self._worker: Optional[WorkerSide] = None
        self._pid = os.getpid()
        if role == KVConnectorRole.SCHEDULER:
            self._start_scheduler()

    # ---- making the two sides ----

    def _start_scheduler(self) -> None:
        ranks = int(self._config.parallel_config.tensor_parallel_size)
        settings = self._settings
        first = identity_of(
            self._config,
            self._cache_config,
            tp_rank=0,
            version=vllm_version,
            machine=_machine(),
            model=settings.model,
            revision=settings.revision,
            adapter=settings.adapter,
            digest_limit_bytes=settings.digest_limit_bytes,
        )
        self._identities = [first.with_(tp_rank=rank) for rank in range(ranks)]
        log.info("prefixd: %r", first)
        link = Link(
            client_maker(
                settings.socket, settings.name + "/scheduler", settings.lookup_deadline_ms / 1000, True
            ),
            "no",
            self._say,
        )
        self._scheduler = SchedulerSide(
            settings, link, self._owner, self._namespaces, first.block_tokens,
            loads=self._loads, saves=self._saves, say=self._say,
        )  # fmt: skip

    def _namespaces(self) -> Optional[List[Any]]:
        """Options by rank; None before the engine has made the seed of its hashes."""
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils

        if not hasattr(kv_cache_utils, "NONE_HASH"):
            return None
        hash_fn = get_hash_fn_by_name(self._config.cache_config.prefix_caching_hash_algo)
        tokens = range(self._identities[0].block_tokens)
        probe = bytes(kv_cache_utils.hash_block_tokens(hash_fn, None, tokens))
        return [
            identity.with_(revision=identity.revision + self._epoch).digests(len(probe), probe)
            for identity in self._identities
        ]

    # ---- the worker's methods ----

    def register_kv_caches(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        """Raises where the tensors are not what can be shared: the engine does not start."""
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        pages = Pages.of(kv_caches, self._cache_config)
        rank = int(get_tensor_model_parallel_rank())
        settings = self._settings
        link = Link(
            client_maker(
                settings.socket, f"{settings.name}/worker{rank}", settings.save_deadline_ms / 1000, True
            ),
            "rw" if self._saves else "ro",
            self._say,
        )
        if self._worker is not None:
            self._worker.close()  # the engine has made its cache anew
        self._worker = WorkerSide(
            settings, link, self._owner, pages, rank, writable=self._saves, say=self._say
        )

    def _meta(self) -> Optional[Meta]:
        return self._connector_metadata if isinstance(self._connector_metadata, Meta) else None

    @_guarded(lambda: None)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if self._worker is not None and isinstance(kv_connector_metadata, Meta):
            self._worker.preempted(kv_connector_metadata)

    @_guarded(lambda: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._meta()
        if self._worker is not None and meta is not None:
            self._worker.load(meta)
            self._worker.options(meta)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request is scheduled when its blocks are there."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing by layer: whole blocks are saved behind the step."""

    @_guarded(lambda: None)
    def wait_for_save(self) -> None:
        meta = self._meta()
        if self._worker is not None and meta is not None:
            self._worker.save(meta)

    @_guarded(lambda: (None, None))
    def get_finished(self, finished_req_ids: Set[str]) -> Tuple[Optional[Set[str]], Optional[Set[str]]]:
        if self._worker is None:
            return None, None
        sent, received = self._worker.results(self._meta(), finished_req_ids)
        return sent or None, received or None

    @_guarded(set)
    def get_block_ids_with_load_errors(self) -> Set[int]:
        return set() if self._worker is None else self._worker.bad_blocks()

    # ---- the scheduler's methods ----

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    @_guarded(lambda: None)
    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.new(request)

    @_guarded(lambda: (0, False))
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> Tuple[Optional[int], bool]:
        return (
            (0, False) if self._scheduler is None else self._scheduler.matched(request, num_computed_tokens)
        )

    @_guarded(lambda: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    @_guarded(Meta)
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return Meta() if self._scheduler is None else self._scheduler.step(scheduler_output)

    @_guarded(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.received(
                connector_output.finished_recving or (),
                connector_output.finished_sending or (),
                set(connector_output.invalid_block_ids or ()),
            )

    def request_finished(self, request: Any, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return self.request_finished_all_groups(request, (block_ids,))

    @_guarded(lambda: (False, None))
    def request_finished_all_groups(
        self, request: Any, block_ids: Tuple[List[int], ...]
    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return self._scheduler is not None and self._scheduler.finished(request, list(block_ids[0])), None

    @_guarded(lambda: False)
    def has_pending_block_frees(self) -> bool:
        return self._scheduler is not None and self._scheduler.frees_pending

    @_guarded(lambda: False)
    def reset_cache(self) -> bool:
        """Nothing that is stored is used from now on, here: the engine says so when its weights change.

        What other engines have stored stays theirs; this one shares with nobody until it is started again.
        """
        if self._scheduler is None:
            return True
        self._epoch = f"+reset-{os.urandom(8).hex()}"
        self._scheduler.reset(self._namespaces)
        self._say("reset", "the cache was reset; until it is started again this engine shares with no other")
        return True

    # ---- both ----

    @_guarded(lambda: None)
    def get_kv_connector_stats(self) -> Optional[PrefixdStats]:
        if self._worker is not None:
            counts = self._worker.counts()
        elif self._scheduler is not None:
            counts, self._scheduler.counts = self._scheduler.counts, {}
        else:
            counts = {}
        return PrefixdStats.of(counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> Optional[PrefixdStats]:
        return PrefixdStats.of(data or {})

    @_guarded(lambda: None)
    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None and self._pid == os.getpid():
                side.close()
        self._scheduler = self._worker = None
