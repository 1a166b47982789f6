"""Real SGLang host pools and controllers on the CPU, and requests through their threads.

What is real: HiCacheController and HybridCacheController with their prefetch and backup threads, the host
pools, the device pools (in CPU memory), the storage factory, the hashing.  What is not: nothing is computed
(a page's bytes are a function of its hash), and nothing moves between device and host pools, which needs
SGLang's CUDA kernels.  Nothing of SGLang is replaced.
"""

import contextlib
import hashlib
import logging
import queue
import threading
import time
import warnings

warnings.filterwarnings("ignore")  # what SGLang says about machines without CUDA, at import

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sglang.srt.managers.cache_controller import HiCacheController  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import PoolName  # noqa: E402
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope  # noqa: E402
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls  # noqa: E402
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.utils import get_storage_hash_str  # noqa: E402
from sglang.srt.runtime_context import get_parallel  # noqa: E402

logging.getLogger("sglang").setLevel(logging.ERROR)

# SGLang leaves 10 GiB of the machine to others; these pools are of a few MiB and need no such room.
BUDGET = 1 << 30
WAIT = 60.0  # seconds after which a thread of SGLang counts as hung

SPEC = {
    "kind": "mha",  # mha, asymmetric (K and V heads differ), mla
    "layout": "page_first",
    "page": 16,
    "layers": 3,
    "heads": 2,
    "dim": 8,
    "v_dim": 4,  # asymmetric only
    "dtype": "bfloat16",
    "pages": 320,  # of the host pool
    "model": "test/model",
    "tp_rank": 0,
    "tp_size": 1,
    "pp_rank": 0,
    "pp_size": 1,
    "hybrid": False,
    "extra": {},
}


def extra_config(socket, **changes):
    """The extra configuration as an operator writes it."""
    config = {
        "backend_name": "prefixd",
        "module_path": "prefixd_sglang",
        "class_name": "PrefixdHiCache",
        "interface_v1": 1,
        "socket": socket,
        "tenant": "default",
        "salt": "",
        "revision": "r1",
        "dtype": "bfloat16",
        "adapter": "",
        # Generous, for tests that are not about time run on machines that are busy.
        "deadline": 10,
        "probe_deadline": 10,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not None}


class Allocator:
    """What a controller asks of the device side when it is made."""

    def __init__(self, device):
        self.device = device

    def get_kvcache(self):
        return self.device


def pools(spec, drafts=0):
    """(device pool, host pool); `drafts`: layers of a speculative draft that share its pages (mha only)."""
    with host_memory_budget_scope(BUDGET):
        return _pools(spec, drafts)


def _pools(spec, drafts=0):
    dtype = getattr(torch, spec["dtype"])
    tokens = spec["pages"] * spec["page"]
    common = dict(
        size=tokens,
        page_size=spec["page"],
        dtype=dtype,
        layer_num=spec["layers"],
        device="cpu",
        enable_memory_saver=False,
    )
    if spec["kind"] == "mla":
        device = MLATokenToKVPool(kv_lora_rank=spec["dim"], qk_rope_head_dim=spec["dim"] // 2, **common)
        info = device.get_device_pool_infos()[0].buffer_info
        host = MLATokenToKVPoolHost(
            info, 1.0, 0, spec["page"], spec["layout"], pin_memory=False, device_capacity_tokens=tokens,
            start_layer=device.start_layer, end_layer=device.end_layer, target_layer_num=device.layer_num,
        )  # fmt: skip
        return device, host
    v_dim = spec["v_dim"] if spec["kind"] == "asymmetric" else None
    device = MHATokenToKVPool(head_num=spec["heads"], head_dim=spec["dim"], v_head_dim=v_dim, **common)
    extra = [
        MHATokenToKVPool(head_num=spec["heads"], head_dim=spec["dim"], **{**common, "layer_num": 1})
    ] * drafts
    info = device.get_device_pool_infos()[0].buffer_info
    host = get_mha_host_pool_cls(info)(
        info, 1.0, 0, spec["page"], spec["layout"], pin_memory=False, device_capacity_tokens=tokens,
        start_layer=device.start_layer, end_layer=device.end_layer,
        draft_buffer_infos=[draft.get_device_pool_infos()[0].buffer_info for draft in extra],
    )  # fmt: skip
    return device, host


def parallel(spec):
    """SGLang's process-wide parallel state, for as long as a controller is made."""
    mine = {name: spec[name] for name in ("tp_rank", "tp_size", "pp_rank", "pp_size")}
    return get_parallel().override(
        attn_dcp_size=1,
        attn_dcp_rank=0,
        attn_dp_rank=0,
        attn_tp_rank=spec["tp_rank"],
        attn_tp_size=spec["tp_size"],
        **mine,
    )


def logical(host, spec, start):
    """Views of a page as (layer, token, head, element), of K and V or of both as one: our own reckoning."""
    page, size, layout = start // spec["page"], spec["page"], spec["layout"]
    if spec["kind"] == "mla":
        buffers = [host.kv_buffer]
    else:
        buffers = [host.kv_buffer[0], host.kv_buffer[1]]
    if layout == "layer_first":
        return [buffer[:, start : start + size] for buffer in buffers]
    if layout == "page_first":
        return [buffer[start : start + size].permute(1, 0, 2, 3) for buffer in buffers]
    if layout == "page_first_direct":
        return [buffer[page] for buffer in buffers]
    if layout == "page_head":
        return [buffer[page].permute(2, 1, 0, 3) for buffer in buffers]
    raise ValueError(layout)


def pattern(key, size, label=""):
    """The bytes of the page that `key` names: a function of it, every bit pattern included."""
    seed = int.from_bytes(hashlib.blake2b(f"{label}/{key}".encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def write_page(host, spec, start, key, label=""):
    views = logical(host, spec, start)
    data = pattern(key, sum(view.numel() * view.element_size() for view in views), label)
    at = 0
    for view in views:
        part = data[at : at + view.numel() * view.element_size()]
        at += len(part)
        view.copy_(torch.from_numpy(part.copy()).view(view.dtype).reshape(view.shape))


def page_is(host, spec, start, key, label=""):
    views = logical(host, spec, start)
    have = b"".join(view.contiguous().flatten().view(torch.uint8).numpy().tobytes() for view in views)
    return have == pattern(key, len(have), label).tobytes()


def hashes(tokens, spec, prior=None):
    """SGLang's page hashes of whole pages of `tokens`."""
    return get_storage_hash_str(list(tokens), prior, page_size=spec["page"])


class Key(list):
    """A request's tokens with the namespaces that SGLang gives its hashes."""

    def __init__(self, token_ids, extra_key=None, cache_salt=None):
        super().__init__(token_ids)
        self.extra_key = extra_key
        self.cache_salt = cache_salt


class Handle:
    """What HybridCacheController wants to know of a request."""

    def __init__(self, rid):
        self.rid = rid


class Instance:
    """One SGLang scheduler's cache controller with its storage threads."""

    count = 0

    def __init__(self, **spec):
        self.spec = {**SPEC, **spec}
        self.device, self.host = pools(self.spec)
        page = self.spec["page"]
        made = dict(
            tp_group=None, load_cache_event=threading.Event(), io_backend="direct",
            write_policy="write_through", storage_backend="dynamic", prefetch_threshold=page,
            model_name=self.spec["model"], storage_backend_extra_config=dict(self.spec["extra"]),
        )  # fmt: skip
        with parallel(self.spec):
            if self.spec["hybrid"]:
                entry = PoolEntry(
                    PoolName.KV, self.host, self.device, lambda layer: layer, is_primary_index_anchor=True
                )
                self.controller = HybridCacheController(
                    Allocator(self.device), HostPoolGroup([entry]), page, **made
                )
            else:
                self.controller = HiCacheController(Allocator(self.device), self.host, page, **made)

    @property
    def backend(self):
        return self.controller.storage_backend

    def backup(self, tokens, prior=(), label="", tell_prefix=True):
        """Writes the pages of `tokens`, which follow those of `prior`; -> pages that count as stored."""
        page = self.spec["page"]
        before = hashes(prior, self.spec) if prior else []
        keys = hashes(tokens, self.spec, before[-1] if before else None)
        indices = self.host.alloc(len(keys) * page)
        try:
            for i, key in enumerate(keys):
                write_page(self.host, self.spec, int(indices[i * page]), key, label)
            self.controller.write_storage(
                indices, list(tokens), hash_value=keys, prefix_keys=before if tell_prefix else None
            )
            return self.controller.ack_backup_queue.get(timeout=WAIT).completed_tokens // page
        finally:
            self.host.free(indices)

    def prefetch(self, tokens, prior=(), label="", tell_prefix=True):
        """Asks for the pages of `tokens`; -> asked, hit (as told), loaded (as counted), right (verified)."""
        page, cc = self.spec["page"], self.controller
        before = hashes(prior, self.spec) if prior else []
        prefix = before if tell_prefix else None
        Instance.count += 1
        name = f"request {Instance.count}"
        cc.prefetch(
            Handle(name) if self.spec["hybrid"] else name,
            list(tokens),
            before[-1] if before else None,
            prefix,
        )
        operation = cc.prefetch_hit_queue.get(timeout=WAIT)
        hit = operation.storage_hit_count // page
        out = {"asked": len(tokens) // page, "hit": hit, "loaded": 0, "right": 0}
        if not hit:
            return out
        operation.host_indices = self.host.alloc(hit * page)
        try:
            # What an earlier page left behind must not pass for what is expected now.
            for i in range(hit):
                write_page(self.host, self.spec, int(operation.host_indices[i * page]), "no page's key")
            cc.prefetch_buffer.put(operation)
            while True:
                ack = cc.ack_prefetch_queue.get(timeout=WAIT)
                if ack.completed_tokens is not None:
                    out["loaded"] = ack.completed_tokens // page
                if ack.completed_req:
                    break
            for i in range(out["loaded"]):
                out["right"] += page_is(
                    self.host,
                    self.spec,
                    int(operation.host_indices[i * page]),
                    operation.hash_value[i],
                    label,
                )
            return out
        finally:
            self.host.free(operation.host_indices)

    def threads_alive(self):
        cc = self.controller
        return all(
            thread.is_alive()
            for thread in (
                cc.prefetch_thread,
                cc.prefetch_io_aux_thread,
                cc.prefetch_sync_thread,
                cc.backup_thread,
            )
        )

    def close(self):
        # SGLang's threads look for the end once a second, unless something lies in their queues.
        with contextlib.suppress(queue.Full):
            self.controller.detach_storage_backend()


def timed(call, *args, **kwargs):
    """(result, seconds)"""
    start = time.monotonic()
    return call(*args, **kwargs), time.monotonic() - start
