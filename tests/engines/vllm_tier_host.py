"""vLLM's tiering manager with the secondary tier, and whole engines, for test_vllm_tier.py.

`Host` is the manager in this process, driven as the engine's scheduler drives it: rows are written where
the K/V copies of a worker would write them.  `Engine` is an engine on the CPU in a process of its own.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import numpy as np
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

HERE = Path(__file__).resolve().parent

ROW = 8192
TIER = {
    "type": "PrefixdTier",
    "module_path": "prefixd_vllm.tier",
    "revision": "r1",
    "tenant": "default",
    "salt": "",
}


def key_of(name, group=0):
    return make_offload_key(hashlib.sha256(str(name).encode()).digest(), group)


def bytes_of(key, row=ROW):
    """A row's content as its key says, so that every reader can check it."""
    seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return np.random.Generator(np.random.SFC64(seed)).integers(0, 256, row, dtype=np.uint8)


def config_of(
    tier, *, rows=64, row=ROW, name="tiny", dtype="bfloat16", kv_cache_layout="LBNHC", tp_size=1, tokens=16
):
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=tokens, layer_names=("l.0", "l.1"), group_id=0),),
        worker_kv_bytes_per_block=row // tp_size,
        enable_kv_cache_events=False,
        extra_config={
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": rows * row,
            "secondary_tiers": [tier],
        },
        engine_id=f"test-{uuid.uuid4()}",
        model=OffloadingModelConfig(name=name, dtype=dtype),
        cache=OffloadingCacheConfig(tokens_per_hash=tokens, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=tp_size,
            tp_size=tp_size,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
        ),
        kv_cache_layout=kv_cache_layout,
    )


class Host:
    """vLLM's tiering manager with one secondary tier, and what a scheduler does with it."""

    def __init__(self, daemon, rows=64, row=ROW, config=None, **options):
        tier = dict(TIER, socket=daemon.socket, **options)
        self.spec = OffloadingSpecFactory.create_spec(config_of(tier, rows=rows, row=row, **(config or {})))
        self.manager = self.spec.get_manager()
        (self.tier,) = self.manager.secondary_tiers
        self.number = 0
        self.slowest = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Shuts down, and asserts that nobody holds the host tier's memory any more."""
        manager, self.manager = self.manager, None
        if manager is None:
            return
        manager.shutdown()
        maps = Path("/proc/self/maps").read_text()
        if f"vllm_offload_{self.spec.config.engine_id}" in maps:
            raise AssertionError("the host tier's memory is still mapped: something holds its rows")

    def rows(self):
        return np.asarray(self.manager.primary_tier.get_kv_memoryview()).view(np.uint8)

    def request(self):
        self.number += 1
        context = ReqContext(req_id=f"q{self.number}")
        self.manager.on_new_request(context)
        return context

    def step(self):
        start = time.monotonic()
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
        self.slowest = max(self.slowest, time.monotonic() - start)

    def put(self, keys, context=None):
        """Offload keys as a worker would; returns how many the host tier took."""
        own = context is None
        context = context or self.request()
        for at, key in enumerate(keys):
            context.set_offload_key_position(key, 16 * (at + 1))
        out = self.manager.prepare_store(keys, context)
        taken = [] if out is None else out.keys_to_store
        if taken:
            rows = self.rows()
            for key, chunk in zip(taken, out.store_spec.chunk_ids):
                rows[chunk] = bytes_of(key, rows.shape[1])
            self.manager.complete_store(set(taken), context, True)
        if own:
            self.manager.on_request_finished(context)
        return len(taken)

    def settle(self, seconds=10.0):
        """Step until no transfer is open."""
        until = time.monotonic() + seconds
        while self.manager.has_pending_work():
            if time.monotonic() > until:
                raise AssertionError(f"jobs stay open: {sorted(self.manager._jobs)}")
            self.step()
            time.sleep(0.001)

    def get(self, keys, seconds=10.0):
        """{key: bytes} of those that a request finds, as its scheduler would load them."""
        context = self.request()
        for at, key in enumerate(keys):
            context.set_offload_key_position(key, 16 * (at + 1))
        until = time.monotonic() + seconds
        open_keys, hits = list(keys), []
        while open_keys:
            start = time.monotonic()
            results = {key: self.manager.lookup(key, context) for key in open_keys}
            self.slowest = max(self.slowest, time.monotonic() - start)
            hits += [key for key, result in results.items() if result is LookupResult.HIT]
            open_keys = [k for k, r in results.items() if r in (LookupResult.RETRY, LookupResult.HIT_PENDING)]
            if time.monotonic() > until:
                raise AssertionError(f"{len(open_keys)} lookups never end: {set(results.values())}")
            self.step()
            if open_keys:
                time.sleep(0.001)
        found = {}
        hits = [key for key in hits if self.manager.primary_tier.lookup(key, context) is LookupResult.HIT]
        if hits:
            load = self.manager.prepare_load(hits, context)
            rows = self.rows()
            found = {key: rows[chunk].copy() for key, chunk in zip(hits, load.chunk_ids)}
            self.manager.complete_load(hits, context)
        self.manager.on_request_finished(context)
        return found


class PromptHost(Host):
    """A host that is asked with prompts, hashed as the engine does it."""

    def keys(self, prompt):
        n, parent, out = self.spec.config.cache.tokens_per_hash, None, []
        for at in range(0, len(prompt) - n + 1, n):
            parent = kv_cache_utils.hash_block_tokens(sha256, parent, prompt[at : at + n])
            out.append(make_offload_key(parent, 0))
        return out

    def put(self, prompt):
        super().put(self.keys(prompt))
        self.settle()
        return self.tier.counts["stored"]

    def hit(self, prompt):
        keys = self.keys(prompt)
        found = self.get(keys)
        good = [key in found and np.array_equal(found[key], bytes_of(key)) for key in keys]
        return good.index(False) if False in good else len(good)


class Engine:
    """One engine in a process of its own: vllm_tier_engine.py."""

    def __init__(self, model, daemon=None, spec="CpuRowsSpec", **more):
        extra = None
        if daemon is not None:
            extra = {
                "spec_name": spec,
                "spec_module_path": "vllm_cpu_rows",
                "cpu_bytes_to_use": 32 << 20,
                "secondary_tiers": [dict(TIER, socket=daemon.socket)],
            }
        env = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join([str(HERE), *filter(None, sys.path)]),
            OMP_NUM_THREADS="2",
            VLLM_CPU_KVCACHE_SPACE="1",
        )
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "vllm_tier_engine.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=env,
        )
        self.timer = threading.Timer(400, self.process.kill)
        self.timer.start()
        try:
            self.say(dict(model=model, extra=extra, **more))
            self.hear("READY")
        except BaseException:
            self.close()
            raise

    def say(self, what):
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # hear() says why

    def hear(self, word):
        for line in self.process.stdout:
            if line.startswith(word):
                return json.loads(line[len(word) :].strip() or "null")
        self.log.seek(0)
        raise AssertionError(f"the engine ended with {self.process.wait()}: {self.log.read()[-3000:]}")

    def ask(self, ids, tokens=16):
        self.say({"ids": ids, "tokens": tokens})
        return self.hear("OUT ")

    def end(self):
        """The tier's counters; the engine is shut down."""
        self.process.stdin.close()
        counts = self.hear("END ")
        self.process.stdout.read()
        code = self.process.wait()
        if code:
            raise AssertionError(f"the engine ended with {code}")
        return counts

    def close(self):
        self.timer.cancel()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.log):
            try:
                file.close()
            except BrokenPipeError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
