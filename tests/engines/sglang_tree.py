"""SGLang's prefix tree with its three levels on the CPU: device pool, host pool, storage; requests to it.

What is real: UnifiedRadixCache with its compiled core, HybridCacheController and its threads, pools,
allocators, storage factory.  Replaced, since they are CUDA's: the two kernels that copy between device and
host pool in layout page_first_direct (here loops of tensor assignments), and the pinning of host memory
(here nothing).  Not there: a model.  A page's K/V is a function of its hash, which is what computing is.
"""

import json
import time
from array import array
from types import SimpleNamespace

import sglang_pools
import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    EvictParams,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.pool_host import base, common, mha
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context


def device_to_host(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    """transfer_kv_all_layer_direct_lf_pf: rows of K, then V, by layer, into (page, layer, token ...)."""
    layers = len(src_ptrs) // 2
    for half, pages in enumerate(dst_ptrs):
        for layer in range(layers):
            for at in range(0, len(src_indices), page_size):
                rows = src_ptrs[half * layers + layer][src_indices[at : at + page_size]]
                pages[int(dst_indices[at]) // page_size, layer] = rows


def host_to_device(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    """transfer_kv_per_layer_direct_pf_lf: one layer of pages into its rows."""
    for pages, rows in zip(src_ptrs, dst_ptrs):
        for at in range(0, len(src_indices), page_size):
            rows[dst_indices[at : at + page_size]] = pages[int(src_indices[at]) // page_size, layer_id]


def stand_in_for_cuda():
    mha.transfer_kv_all_layer_direct_lf_pf = device_to_host
    mha.transfer_kv_per_layer_direct_pf_lf = host_to_device
    for module in (base, common, mha):
        for name in ("_cuda_host_register", "_cuda_host_unregister"):
            if hasattr(module, name):
                setattr(module, name, lambda *_: None)


class Tree:
    """One SGLang instance without its model."""

    count = 0

    def __init__(self, extra, pages=40, ratio=2.0, policy="wait_complete", **spec):
        """`pages` of the device pool, `ratio` times as many in the host pool."""
        stand_in_for_cuda()
        self.spec = {**sglang_pools.SPEC, "pages": pages, "layout": "page_first_direct", **spec}
        self.page = self.spec["page"]
        config = get_context().override_server_args(
            page_size=self.page,
            enable_hierarchical_cache=True,
            hicache_storage_backend="dynamic",
            hicache_storage_backend_extra_config=json.dumps({"prefetch_threshold": self.page, **extra}),
            hicache_storage_prefetch_policy=policy,
            hicache_mem_layout=self.spec["layout"],
            hicache_io_backend="direct",
            hicache_ratio=ratio,
            hicache_write_policy="write_through",
            served_model_name=self.spec["model"],
        )
        self.device = sglang_pools.pools(self.spec)[0]
        self.allocator = PagedTokenToKVPoolAllocator(
            self.device.size, self.page, self.device.dtype, "cpu", self.device, False
        )
        rows = ReqToTokenPool(size=8, max_context_len=4096, device="cpu", enable_memory_saver=False)
        # SGLang publishes its configuration for the life of a process; here several instances share one.
        self.published = config
        server_args = config.install()
        budget = sglang_pools.host_memory_budget_scope(sglang_pools.BUDGET)
        with sglang_pools.parallel(self.spec), budget:
            params = CacheInitParams(
                disable=False, req_to_token_pool=rows, token_to_kv_pool_allocator=self.allocator,
                page_size=self.page, tree_components=(ComponentType.FULL,),
            )  # fmt: skip
            self.tree = UnifiedRadixCache(params)
            self.tree.init_hicache(server_args, params)
        config.restore()

    @property
    def controller(self):
        return self.tree.cache_controller

    @property
    def backend(self):
        return self.controller.storage_backend

    def threads_alive(self):
        return sglang_pools.Instance.threads_alive(self)

    def settle(self, seconds=10.0):
        """As SGLang's scheduler does between batches, until nothing is under way."""
        end = time.monotonic() + seconds
        while True:
            self.tree.check_hicache_events()
            busy = (self.tree.ongoing_write_through, self.tree.ongoing_load_back, self.tree.ongoing_backup)
            if not any(busy):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"SGLang is still busy: {[len(what) for what in busy]}")
            time.sleep(0.002)

    def serve(self, tokens, label=""):
        """A request for `tokens`, whole pages, as the scheduler takes it through the levels.

        -> pages: found on the device, in host memory, fetched from storage, computed; right: pages whose K/V
        is on the device as computing would have made it; wait: seconds that the prefetch took.
        """
        tree, page = self.tree, self.page
        ids = array("q", tokens)
        key = RadixKey(ids)
        names = sglang_pools.hashes(tokens, self.spec)
        found = tree.match_prefix(MatchPrefixParams(key=key))
        held = found.device_prefix_len + found.host_hit_length
        out = {"device": found.device_prefix_len // page, "host": found.host_hit_length // page}
        Tree.count += 1
        handle = CacheRequestHandle(f"request {Tree.count}", 0)
        started = time.monotonic()
        node = found.last_host_node
        told = tree.get_prefix_hash_values(node) if tree.hicache_storage_pass_prefix_keys else None
        tree.prefetch_from_storage(
            handle, node, ids[held:], tree.get_last_hash_value(node), told, matched_prefix_tokens=ids[:held]
        )
        while not tree.check_prefetch_progress(handle):
            tree.check_hicache_events()
            if time.monotonic() - started > sglang_pools.WAIT:
                raise TimeoutError("the prefetch never ended")
            time.sleep(0.001)
        out["wait"] = time.monotonic() - started
        out["storage"] = tree.pop_prefetch_loaded_tokens(handle) // page

        found = tree.match_prefix(MatchPrefixParams(key=key))
        if found.host_hit_length:
            request = SimpleNamespace(
                rid=handle.rid, last_node=found.last_device_node,
                swa_host_hit_length=0, mamba_host_hit_length=0,
                kv=SimpleNamespace(mamba_pool_idx=None),
            )  # fmt: skip
            tree.init_load_back(
                InitLoadBackParams(
                    best_match_node=found.best_match_node, host_hit_length=found.host_hit_length, req=request
                )
            )
            tree.ready_to_load_host_cache()
            self.settle()
            found = tree.match_prefix(MatchPrefixParams(key=key))
        have = found.device_prefix_len
        rows = tree.path_device_indices(found.last_device_node)
        right = sum(self.is_right(rows[i * page], names[i], label) for i in range(have // page))
        out["computed"] = (len(tokens) - have) // page
        if out["computed"]:
            lock = tree.inc_lock_ref(found.last_device_node).to_dec_params()
            fresh = self.room(len(tokens) - have)
            for i in range(out["computed"]):
                self.compute(fresh[i * page], names[have // page + i], label)
            rows = torch.cat([rows, fresh])
            # The first rows are the tree's own already; without that word it would free them as duplicates.
            tree.insert(InsertParams(key=key, value=rows, prev_prefix_len=have, inserted_len=have))
            tree.dec_lock_ref(found.last_device_node, lock)
            right += out["computed"]
        out["right"] = right
        self.settle()
        return out

    def room(self, need):
        fresh = self.allocator.alloc(need)
        if fresh is None:
            self.tree.evict_for_alloc(EvictParams(num_tokens=need - self.allocator.available_size()))
            fresh = self.allocator.alloc(need)
        if fresh is None:
            raise MemoryError("the device pool is too small for this request")
        return fresh

    def forget(self):
        """Empties device and host pool: what is found afterwards came from storage."""
        self.settle()
        self.tree.reset()
        self.allocator.clear()

    def parts(self, row):
        return [buffer[row : row + self.page] for buffer in (*self.device.k_buffer, *self.device.v_buffer)]

    def compute(self, row, key, label):
        parts = self.parts(int(row))
        data = sglang_pools.pattern(key, sum(part.numel() * part.element_size() for part in parts), label)
        at = 0
        for part in parts:
            size = part.numel() * part.element_size()
            part.copy_(torch.from_numpy(data[at : at + size].copy()).view(part.dtype).reshape(part.shape))
            at += size

    def is_right(self, row, key, label):
        have = b"".join(
            part.contiguous().view(torch.uint8).numpy().tobytes() for part in self.parts(int(row))
        )
        return have == sglang_pools.pattern(key, len(have), label).tobytes()

    def close(self):
        self.tree.shutdown()
