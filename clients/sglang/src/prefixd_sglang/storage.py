"""PrefixdHiCache: SGLang's HiCache storage interface on a prefixd.BlockStore.

Raises while the server starts (construction, registration of host pools) and never later: what the
controller's threads call answers a miss, or "not stored", whatever happens, within its deadline.  A raise
there would end SGLang's prefetch or backup of the request; a hang would stop all of them.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.mem_cache.utils import get_hash_str
from sglang.version import __version__ as SGLANG_VERSION

from prefixd import Owner

from .chains import ChainStore
from .identity import Settings, geometry_of, identity_of, model_of, settings_of
from .pages import HostPages

__all__ = ["PrefixdHiCache"]

log = logging.getLogger("prefixd.sglang")

T = TypeVar("T")

_DIGEST = 32  # bytes of SGLang's page hashes, SHA-256
_CONNECT = 10.0  # seconds that the start may wait for the daemon to make the pool
_SAY_EVERY = 60.0  # seconds between two log lines of a kind


class PrefixdHiCache(HiCacheStorage):
    """One rank's pages in prefixd.  Made by SGLang's storage factory, `dynamic` mechanism.

    ValueError (IdentityError with the name of the field) at construction or registration: this instance
    could share too much, or its pages cannot be kept.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Optional[Dict[str, Any]] = None) -> None:
        self.settings: Settings = settings_of(storage_config.extra_config)
        model_of(storage_config)
        self._config = storage_config
        self._owner = Owner(tenant=self.settings.tenant, salt=self.settings.salt)
        self._store: Optional[ChainStore] = None
        self._pages: Optional[HostPages] = None
        self._said: Dict[str, float] = {}
        self._refused: Optional[str] = None

    # Registration, while the server starts

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        geometry = geometry_of(mem_pool_host)
        pages = HostPages(mem_pool_host, geometry)
        identity = identity_of(self._config, self.settings, geometry, SGLANG_VERSION)
        # SGLang's own hash of the first page of the tokens 0, 1, 2 ...: should it ever depend on more
        # than the tokens, instances that hash differently see it instead of never sharing.
        probe = bytes.fromhex(
            get_hash_str(list(range(geometry.page_tokens)), None, page_size=geometry.page_tokens)[0]
        )
        super().register_mem_pool_host(mem_pool_host)
        self.close()
        self._pages = pages
        self._store = ChainStore(
            self.settings.socket,
            identity.digests(_DIGEST, probe),
            self._owner,
            deadline=self.settings.deadline,
            name=f"sglang tp{self._config.tp_rank} pp{self._config.pp_rank}",
        )
        # Now, since a new pool may take longer than a request may wait.  A daemon that comes later is found.
        there = self._store.connect(_CONNECT)
        log.info(
            "pages of %s are kept in prefixd%s", identity, "" if there else ", which does not answer yet"
        )

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name == PoolName.KV:
            return
        # K/V alone would be used without what belongs to it, so from here on this instance keeps nothing.
        self._refused = str(host_pool_name)
        raise ValueError(
            f"prefixd cannot keep the host pool {host_pool_name} ({type(host_pool).__name__}): models with "
            "further pools beside K/V (windows, Mamba states, sparse indexers, drafts) are not supported"
        )

    # Pages, by the controller's threads

    def batch_exists(self, keys: List[str], extra_info: Optional[HiCacheStorageExtraInfo] = None) -> int:
        return self._safely("batch_exists", lambda: self._count(keys), 0)

    def batch_get_v1(
        self,
        keys: List[str],
        host_indices: torch.Tensor,
        extra_info: Optional[HiCacheStorageExtraInfo] = None,
    ) -> List[bool]:
        return self._safely("batch_get_v1", lambda: self._get(keys, host_indices), [False] * len(keys))

    def batch_set_v1(
        self,
        keys: List[str],
        host_indices: torch.Tensor,
        extra_info: Optional[HiCacheStorageExtraInfo] = None,
    ) -> List[bool]:
        return self._safely(
            "batch_set_v1", lambda: self._set(keys, host_indices, extra_info), [False] * len(keys)
        )

    def batch_exists_v2(
        self,
        keys: List[str],
        pool_transfers: Optional[List[PoolTransfer]] = None,
        extra_info: Optional[HiCacheStorageExtraInfo] = None,
    ) -> PoolTransferResult:
        if pool_transfers:
            return PoolTransferResult.empty()
        return PoolTransferResult(self.batch_exists(keys, extra_info), {})

    def batch_get_v2(
        self, transfers: List[PoolTransfer], extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> Dict[str, List[bool]]:
        return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}

    def batch_set_v2(
        self, transfers: List[PoolTransfer], extra_info: Optional[HiCacheStorageExtraInfo] = None
    ) -> Dict[str, List[bool]]:
        return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}

    # The older interface, used without "interface_v1": one copy more, the same bytes

    def get(
        self, key: str, target_location: Optional[Any] = None, target_sizes: Optional[Any] = None
    ) -> Optional[torch.Tensor]:
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: List[str], target_locations: Optional[Any] = None, target_sizes: Optional[Any] = None
    ) -> List[Optional[torch.Tensor]]:
        return self._safely("batch_get", lambda: self._get_flat(keys, target_locations), [None] * len(keys))

    def set(
        self,
        key: str,
        value: Optional[Any] = None,
        target_location: Optional[Any] = None,
        target_sizes: Optional[Any] = None,
    ) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: List[str],
        values: Optional[Any] = None,
        target_locations: Optional[Any] = None,
        target_sizes: Optional[Any] = None,
    ) -> bool:
        return self._safely("batch_set", lambda: self._set_flat(keys, values), False)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    # The rest

    def clear(self) -> None:
        """Says that it does nothing: other instances use the same pages, and emptying is an operator's."""
        log.warning("clear: prefixd is shared; use prefixctl flush")

    def stats(self) -> Dict[str, Any]:
        """Counts of this instance's calls by outcome; see prefixd.BlockStore.stats."""
        return self._store.stats() if self._store is not None else {}

    def close(self) -> None:
        """Ends the connections.  Calls after this miss."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    # What the above do

    def _count(self, keys: List[str]) -> int:
        store, _ = self._ready()
        return store.count_chain(_digests(keys), deadline=self.settings.probe_deadline)

    def _get(self, keys: List[str], indices: torch.Tensor) -> List[bool]:
        store, pages = self._ready()
        starts = pages.starts(indices, len(keys))
        n = store.read_chain(_digests(keys), lambda i, slot: pages.load(starts[i], slot))
        return [True] * n + [False] * (len(keys) - n)

    def _set(
        self, keys: List[str], indices: torch.Tensor, info: Optional[HiCacheStorageExtraInfo]
    ) -> List[bool]:
        store, pages = self._ready()
        starts = pages.starts(indices, len(keys))
        before = _digests((info.prefix_keys or [])[-1:]) if info is not None else []
        stored = store.write_chain(
            _digests(keys), lambda i, slot: pages.store(starts[i], slot), parent=before[0] if before else b""
        )
        return stored + [False] * (len(keys) - len(stored))

    def _get_flat(
        self, keys: List[str], targets: Optional[List[torch.Tensor]]
    ) -> List[Optional[torch.Tensor]]:
        store, _ = self._ready()
        outs = list(targets) if targets is not None else [None] * len(keys)
        outs = [self.mem_pool_host.get_dummy_flat_data_page() if out is None else out for out in outs]
        n = store.read_chain(_digests(keys), lambda i, slot: np.copyto(_bytes_of(outs[i]), slot))
        return outs[:n] + [None] * (len(keys) - n)

    def _set_flat(self, keys: List[str], values: Optional[List[torch.Tensor]]) -> bool:
        store, _ = self._ready()
        if values is None or len(values) != len(keys):
            return False
        flat = [_bytes_of(value) for value in values]
        stored = store.write_chain(_digests(keys), lambda i, slot: np.copyto(slot, flat[i]))
        return len(stored) == len(keys) and all(stored)

    def _ready(self) -> Tuple[ChainStore, HostPages]:
        if self._refused is not None:
            raise _Idle(f"host pool {self._refused} was refused at registration")
        if self._store is None or self._pages is None:
            raise _Idle("no host pool is registered, or this back end was closed")
        return self._store, self._pages

    def _safely(self, what: str, call: Callable[[], T], miss: T) -> T:
        try:
            return call()
        except Exception as error:  # the controller's thread must live, whatever this was
            now = time.monotonic()
            kind = f"{what} {type(error).__name__}"
            if now - self._said.get(kind, -_SAY_EVERY) >= _SAY_EVERY:
                self._said[kind] = now
                log.warning("%s: counts as a miss: %s", what, error, exc_info=not isinstance(error, _Idle))
            return miss


class _Idle(Exception):
    """This instance keeps nothing; which is told once a minute and costs nothing."""


def _digests(keys: List[str]) -> List[bytes]:
    """SGLang's page hashes as bytes, up to the first that is none."""
    out: List[bytes] = []
    for key in keys:
        try:
            digest = bytes.fromhex(key)
        except ValueError:
            break
        if len(digest) != _DIGEST:
            break
        out.append(digest)
    return out


def _bytes_of(page: torch.Tensor) -> np.ndarray:
    """A flat page's bytes where they lie, or of a copy if it is not contiguous."""
    return page.contiguous().view(torch.uint8).flatten().numpy()
