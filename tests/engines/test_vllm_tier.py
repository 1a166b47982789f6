"""The secondary tier for vLLM's offloading connector, against the installed package and a real daemon.

Part one drives vLLM's own tiering manager, its host tier and its factory in this process; rows are
written where the K/V copies of a worker would write them.  Part two runs whole engines on the CPU in
processes of their own (vllm_tier_engine.py).

    PYTHONPATH=clients/python/src:clients/vllm/src python tests/lib/tap.py tests/engines/test_vllm_tier.py
"""
import dataclasses
import gc
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
sys.path.insert(0, str(TREE / "tests/lib"))
sys.path.insert(0, str(HERE))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from daemon import Daemon  # noqa: E402

try:
    import vllm  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"vLLM is not installed here: {error}")

import numpy as np  # noqa: E402
from prefixd.identity import IdentityError  # noqa: E402
from prefixd_vllm import tier_jobs  # noqa: E402
from prefixd_vllm.tier_identity import tier_identity  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.config import (  # noqa: E402
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # noqa: E402
from vllm.v1.kv_offload.tiering import base as tiering  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402

kv_cache_utils.init_none_hash(sha256)

ROW = 8192
TIER = {"type": "PrefixdTier", "module_path": "prefixd_vllm.tier", "revision": "r1", "tenant": "default", "salt": ""}


def key_of(name, group=0):
    return make_offload_key(hashlib.sha256(str(name).encode()).digest(), group)


def bytes_of(key, row=ROW):
    """A row's content as its key says, so that every reader can check it."""
    seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return np.random.Generator(np.random.SFC64(seed)).integers(0, 256, row, dtype=np.uint8)


def config_of(tier, *, rows=64, row=ROW, name="tiny", dtype="bfloat16", kv_cache_layout="LBNHC", tp_size=1, tokens=16):
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=tokens, layer_names=("l.0", "l.1"), group_id=0),),
        worker_kv_bytes_per_block=row // tp_size,
        enable_kv_cache_events=False,
        extra_config={"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": rows * row, "secondary_tiers": [tier]},
        engine_id=f"test-{uuid.uuid4()}",
        model=OffloadingModelConfig(name=name, dtype=dtype),
        cache=OffloadingCacheConfig(tokens_per_hash=tokens, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0, world_size=tp_size, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0,
            data_parallel_size=1, data_parallel_rank_local=None, is_parallelism_agnostic=False),
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
        manager, self.manager = self.manager, None
        if manager is not None:
            manager.shutdown()

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


def threads():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("prefixd-"))


class Case(unittest.TestCase):
    def begun(self, transfers):
        until = time.monotonic() + 5
        while not transfers._running:
            self.assertLess(time.monotonic(), until, "no job begins")
            time.sleep(0.0002)

    def asked(self, host, keys, context):
        """The tier's answers, without the host tier: nothing is loaded for them."""
        until = time.monotonic() + 5
        while LookupResult.RETRY in [host.tier.lookup(key, context) for key in keys]:
            self.assertLess(time.monotonic(), until, "lookups do not end")
            host.step()

    def right(self, found):
        for key, data in found.items():
            self.assertTrue(np.array_equal(data, bytes_of(key, len(data))), f"wrong bytes of {key.hex()}")

    def clean(self, daemon, seconds=5.0):
        """No invariant is broken, and nothing is held."""
        daemon.ctl("audit")
        until = time.monotonic() + seconds
        while True:
            pins = daemon.ctl("--json", "pins")
            if not pins.get("leases") or time.monotonic() > until:
                break
            time.sleep(0.02)
        self.assertFalse(pins.get("leases"), pins)


class Tier(Case):
    def test_put_here_hit_there(self):
        keys = [key_of(i) for i in range(20)] + [key_of(i, group=1) for i in range(3)]
        with Daemon(pool_blocks=64) as daemon, Host(daemon) as a, Host(daemon) as b:
            self.assertEqual({}, b.get(keys))
            self.assertEqual(len(keys), a.put(keys))
            a.settle()
            self.assertEqual({"loaded": 0, "not_loaded": 0, "stored": 23, "not_stored": 0}, a.tier.counts)
            found = b.get(keys)
            self.assertEqual(set(keys), set(found))
            self.right(found)
            self.assertEqual(23, b.tier.counts["loaded"])
            # The same hash in a group that was not stored is another block.
            self.assertEqual({}, b.get([key_of(0, group=7)]))
            self.clean(daemon)

    def test_stored_by_both(self):
        keys = [key_of(i) for i in range(10)]
        with Daemon(pool_blocks=64) as daemon, Host(daemon) as a, Host(daemon) as b:
            a.put(keys)
            a.settle()
            b.put(keys)
            b.settle()
            self.assertEqual(10, b.tier.counts["stored"])
            with Host(daemon) as c:
                found = c.get(keys)
                self.assertEqual(set(keys), set(found))
                self.right(found)
            self.clean(daemon)

    def test_loaded_by_module_path(self):
        found = SecondaryTierFactory.get_tier_class(dict(TIER))
        self.assertEqual("prefixd_vllm.tier", found.__module__)
        self.assertTrue(issubclass(found, tiering.SecondaryTierManager))
        self.assertFalse(found.__abstractmethods__)

    def test_a_later_request_asks_anew(self):
        key = key_of("later")
        with Daemon(pool_blocks=64) as daemon, Host(daemon) as a, Host(daemon) as b:
            first = b.request()
            self.asked(b, [key], first)
            a.put([key])
            a.settle()
            self.assertIs(LookupResult.MISS, b.manager.lookup(key, first), "an answer does not change for its request")
            self.right(b.get([key]))
            self.assertEqual(1, b.tier.counts["loaded"])

    def test_part_of_a_load(self):
        keys = [key_of(i) for i in range(8)]
        with Daemon(pool_blocks=64) as daemon, Host(daemon) as a, Host(daemon) as b:
            a.put(keys)
            a.settle()
            context = b.request()
            self.asked(b, keys, context)
            self.assertEqual({LookupResult.HIT}, {b.tier.lookup(key, context) for key in keys})
            daemon.ctl("--yes", "evict", "3")
            results = [b.manager.lookup(key, context) for key in keys]
            self.assertEqual({LookupResult.HIT_PENDING}, set(results))
            b.step()
            b.settle()
            self.assertEqual({"loaded": 5, "not_loaded": 3}, {k: b.tier.counts[k] for k in ("loaded", "not_loaded")})
            # Those that came are hits, those that did not are misses to this request: it is not sent in circles.
            results = [b.manager.lookup(key, context) for key in keys]
            self.assertEqual(5, results.count(LookupResult.HIT))
            self.assertEqual(3, results.count(LookupResult.MISS))
            self.right(b.get(keys))
            self.clean(daemon)

    def test_random_operations(self):
        rng = random.Random(4)
        names = [key_of(f"r{i}", group=i % 2) for i in range(120)]
        stored, hits, misses = set(), 0, 0
        with Daemon(pool_blocks=48) as daemon:
            hosts = [Host(daemon, rows=24) for _ in range(3)]
            try:
                for number in range(2000):
                    at = rng.randrange(3)
                    host = hosts[at]
                    first = rng.randrange(len(names))
                    run = [names[(first + i) % len(names)] for i in range(rng.randint(1, 6))]
                    dice = rng.random()
                    if dice < 0.4:
                        host.put(run)
                        stored.update(run)
                    elif dice < 0.8:
                        found = host.get(run)
                        self.right(found)
                        self.assertLessEqual(set(found), stored, "found what nobody stored")
                        hits += len(found)
                        misses += len(run) - len(found)
                    elif dice < 0.97:
                        host.step()
                    else:
                        host.close()
                        hosts[at] = Host(daemon, rows=24)
                for host in hosts:
                    host.settle()
                    self.assertLess(host.slowest, 0.25)
                loaded = sum(host.tier.counts["loaded"] for host in hosts)
                print(f"# 2000 operations: {hits} hits, {misses} misses, {loaded} rows loaded by the last hosts")
                self.assertGreater(hits, 500)
                self.assertGreater(loaded, 0)
            finally:
                for host in hosts:
                    host.close()
            self.clean(daemon)


class Trouble(Case):
    def test_no_daemon(self):
        daemon = types.SimpleNamespace(socket=os.path.join(tempfile.gettempdir(), f"none-{uuid.uuid4()}.sock"))
        with Host(daemon) as host:
            keys = [key_of(i) for i in range(10)]
            host.put(keys)
            host.settle()
            self.assertEqual({}, host.get([key_of("x")]))
            self.assertEqual({"loaded": 0, "not_loaded": 0, "stored": 0, "not_stored": 10}, host.tier.counts)

    def test_killed_in_mid_job(self):
        row = 1 << 18
        keys = [key_of(i) for i in range(400)]
        with Daemon(pool_blocks=512) as daemon, Host(daemon, rows=512, row=row) as a, Host(daemon, rows=512, row=row) as b:
            # Load and store both under way: the daemon goes while bytes are copied.
            a.put(keys)
            a.settle(60)
            self.assertEqual(400, a.tier.counts["stored"])
            context = b.request()
            self.asked(b, keys, context)
            for key in keys:
                self.assertIs(LookupResult.HIT_PENDING, b.manager.lookup(key, context))
            more = [key_of(f"more{i}") for i in range(100)]
            a.put(more)
            b.step()
            self.begun(b.tier._transfers)
            daemon.kill()
            a.settle()
            b.settle()
            self.assertGreater(b.tier.counts["not_loaded"], 0, "the daemon was killed too late for this test")
            for key in keys:
                self.assertIn(b.manager.lookup(key, context), (LookupResult.HIT, LookupResult.MISS))
            # What had come before is right, and what was not is a miss.
            self.right(b.get(keys))
            daemon.start()
            back = [key_of(f"back{i}") for i in range(10)]
            deadline = time.monotonic() + 20
            found = {}
            while len(found) < len(back) and time.monotonic() < deadline:
                a.manager.primary_tier.reset_cache()
                a.put(back)
                a.settle()
                found = b.get(back)
            self.right(found)
            self.assertEqual(set(back), set(found))
            self.clean(daemon)

    def test_stopped(self):
        keys = [key_of(i) for i in range(10)]
        with Daemon(pool_blocks=64) as daemon, Host(daemon) as a, Host(daemon) as b:
            a.put(keys[:5])
            a.settle()
            self.assertEqual(5, len(b.get(keys[:5])))
            os.kill(daemon.process.pid, signal.SIGSTOP)
            try:
                b.slowest = 0.0
                start = time.monotonic()
                self.assertEqual({}, b.get([key_of("n1"), key_of("n2")]))
                took = time.monotonic() - start
                self.assertGreater(b.tier._lookups.late, 0)
                a.put(keys[5:])
                a.settle()
                print(f"# daemon stopped: lookups answered in {took:.3f} s, slowest call {b.slowest:.4f} s")
                self.assertLess(took, 0.6)
                self.assertLess(b.slowest, 0.1)
                self.assertEqual(5, a.tier.counts["not_stored"])
            finally:
                os.kill(daemon.process.pid, signal.SIGCONT)
            again = [key_of(f"again{i}") for i in range(5)]
            until, found = time.monotonic() + 20, {}
            while len(found) < 5 and time.monotonic() < until:
                a.manager.primary_tier.reset_cache()
                a.put(again)
                a.settle()
                found = b.get(again)
            self.right(found)
            self.assertEqual(set(again), set(found))
            self.clean(daemon)

    def test_shutdown_with_jobs_in_flight(self):
        row = 1 << 18
        with Daemon(pool_blocks=256) as daemon:
            host = Host(daemon, rows=256, row=row)
            view = host.manager.primary_tier.get_kv_memoryview()
            host.put([key_of(i) for i in range(128)])
            host.put([key_of(f"b{i}") for i in range(100)])
            self.assertTrue(host.manager.has_pending_work())
            host.close()
            with self.assertRaises(ValueError):
                view[0, 0]  # released: nothing of the tier held the memory any more
            self.assertEqual([], threads())
            self.assertEqual({}, {j.job_id: j for j in host.tier.get_finished_jobs() if j.success and j.job_id == 1})
            self.clean(daemon)

    def test_reset_with_jobs_in_flight(self):
        for on_reset in ("stop", "keep"):
            row = 1 << 18
            with Daemon(pool_blocks=256) as daemon, Host(daemon, rows=256, row=row, on_reset=on_reset, drain=0.001) as host:
                keys = [key_of(i) for i in range(10)]
                host.put(keys)
                host.settle()
                for i in range(10):
                    host.put([key_of(f"{i}/{j}") for j in range(20)])
                host.manager.reset_cache()  # asserts that no job is open
                self.assertGreater(host.tier.counts["not_stored"], 0)
                self.assertEqual(0 if on_reset == "stop" else 10, len(host.get(keys)))
                host.put([key_of("after")])
                host.settle()
                with Host(daemon, row=row) as other:
                    self.assertEqual(0 if on_reset == "stop" else 1, len(other.get([key_of("after")])))
                self.clean(daemon)

    def test_pool_too_small(self):
        keys = [key_of(i) for i in range(40)]
        with Daemon(pool_blocks=8) as daemon, Host(daemon) as a, Host(daemon) as b:
            a.put(keys)
            a.settle()
            found = b.get(keys)
            self.right(found)
            self.assertGreater(len(found), 0)
            self.assertLessEqual(len(found), 8)
            # A prompt's first blocks are stored last, so that they are what is left.
            self.assertIn(keys[0], found)
            self.clean(daemon)


class Identity(Case):
    CHANGES = {
        "model": {"config": {"name": "tiny2"}},
        "revision": {"revision": "r2"},
        "dtype": {"config": {"dtype": "float16"}},
        "layout": {"config": {"kv_cache_layout": "LBHNC"}},
        "tp_size": {"config": {"tp_size": 2}},
        "block_tokens": {"config": {"tokens": 32}},
        "adapter": {"adapter": "merged-1"},
        "scales": {"scales": "s1"},
        "salt": {"salt": "other"},
    }

    def test_same_gives_reuse_and_different_does_not(self):
        keys = [key_of(i) for i in range(4)]
        with Daemon(pool_blocks=64) as daemon:
            with Host(daemon) as a:
                a.put(keys)
                a.settle()
            for field, change in self.CHANGES.items():
                with self.subTest(field=field), Host(daemon, **change) as other:
                    self.assertEqual({}, other.get(keys), f"another {field} shares")
            with Host(daemon) as same:
                found = same.get(keys)
                self.assertEqual(set(keys), set(found), "the same identity does not share")
                self.right(found)
            self.clean(daemon)

    def test_another_seed_does_not_share(self):
        keys = [key_of(i) for i in range(4)]
        was = kv_cache_utils.NONE_HASH, kv_cache_utils._NONE_HASH_SEED
        with Daemon(pool_blocks=64) as daemon:
            with Host(daemon) as a:
                a.put(keys)
                a.settle()
            try:
                os.environ["PYTHONHASHSEED"] = "17"
                kv_cache_utils.init_none_hash(sha256)
                with Host(daemon) as other:
                    self.assertEqual({}, other.get(keys))
            finally:
                del os.environ["PYTHONHASHSEED"]
                kv_cache_utils.NONE_HASH, kv_cache_utils._NONE_HASH_SEED = was
            with Host(daemon) as same:
                self.assertEqual(set(keys), set(same.get(keys)))

    def refused(self, field, config=None, **options):
        tier = dict(TIER, **options)
        for name in [name for name, value in tier.items() if value is None]:
            del tier[name]
        spec = OffloadingSpecFactory.create_spec(config_of(tier, **(config or {})))
        with self.assertRaises(IdentityError) as caught:
            spec.get_manager()
        self.assertEqual(field, caught.exception.field)

    def test_missing_is_refused_by_name(self):
        before = len(os.listdir("/dev/shm"))
        for field in ("revision", "tenant", "salt"):
            self.refused(field, **{field: None})
        self.refused("revision", revision="")
        self.refused("revision", revision="auto")
        self.refused("model", config={"name": ""})
        self.refused("dtype", config={"dtype": "auto"})
        self.refused("scales", config={"dtype": "fp8_e4m3"})
        self.refused("sockett", sockett="x")
        self.refused("threads", threads=0)
        self.refused("lookup_deadline", lookup_deadline=-1)
        self.refused("on_reset", on_reset="perhaps")
        gc.collect()
        self.assertEqual(before, len(os.listdir("/dev/shm")), "a refusal leaves shared memory behind")
        self.assertEqual([], threads())

    def test_configurations_that_lack_something(self):
        whole = config_of(TIER)
        plain = json.loads(json.dumps(dataclasses.asdict(whole)), object_hook=lambda d: types.SimpleNamespace(**d))
        identity = tier_identity(plain, row_bytes=ROW, engine="vllm x", revision="r1")
        self.assertEqual(identity, tier_identity(whole, row_bytes=ROW, engine="vllm x", revision="r1"))
        for path in ("model.name", "model.dtype", "parallel.tp_size", "parallel.pp_size", "cache.tokens_per_hash",
                     "cache.blocks_per_chunk", "groups", "worker_kv_bytes_per_block"):
            lame = json.loads(json.dumps(dataclasses.asdict(whole)), object_hook=lambda d: types.SimpleNamespace(**d))
            holder = lame
            *folders, last = path.split(".")
            for folder in folders:
                holder = getattr(holder, folder)
            delattr(holder, last)
            with self.subTest(path=path), self.assertRaises(IdentityError) as caught:
                tier_identity(lame, row_bytes=ROW, engine="vllm x", revision="r1")
            self.assertEqual(last, caught.exception.field)

    def test_hash_functions(self):
        from prefixd_vllm.tier_identity import SeedUnknown, seed_probe
        from vllm.utils.hashing import sha256_cbor

        plain = seed_probe(16, 32)
        self.assertEqual(plain, bytes(kv_cache_utils.hash_block_tokens(sha256, None, list(range(16)))))
        self.assertNotEqual(plain, seed_probe(32, 32))
        with self.assertRaises(SeedUnknown):
            seed_probe(16, 16)
        with self.assertRaises(SeedUnknown):
            seed_probe(16, 32, "md5")
        was = kv_cache_utils.NONE_HASH, kv_cache_utils._NONE_HASH_SEED
        try:
            kv_cache_utils.init_none_hash(sha256_cbor)
            self.assertEqual(seed_probe(16, 32), seed_probe(16, 32, "sha256_cbor"))
            self.assertNotEqual(plain, seed_probe(16, 32))
        finally:
            kv_cache_utils.NONE_HASH, kv_cache_utils._NONE_HASH_SEED = was


class Memory:
    """A store in this process whose answers a test decides."""

    def __init__(self, **calls):
        self.calls = calls
        self.closed = 0

    def __getattr__(self, name):
        if name not in ("contains", "get", "put"):
            raise AttributeError(name)
        return self.calls.get(name, lambda keys, *rest: [True] * len(keys))

    def close(self):
        self.closed += 1


class Threads(Case):
    """The helper threads alone: what no daemon can be made to do at will."""

    def transfers(self, store, rows=None, **options):
        rows = np.zeros((16, 64), np.uint8) if rows is None else rows
        given = dict(threads=1, load_deadline=5.0, store_deadline=5.0)
        given.update(options)
        whole = tier_jobs.Store(store if callable(store) else lambda key_len: store)
        transfers = tier_jobs.Transfers(rows, whole, **given)
        self.addCleanup(whole.close)
        self.addCleanup(transfers.close)
        return transfers

    def wait(self, transfers, n, seconds=5.0):
        done, until = [], time.monotonic() + seconds
        while len(done) < n and time.monotonic() < until:
            done += transfers.take()
            time.sleep(0.001)
        self.assertEqual(n, len(done))
        return done

    def keys(self, n):
        return [bytes([i]) * 36 for i in range(n)]

    def test_half_a_load(self):
        transfers = self.transfers(Memory(get=lambda keys, outs: [i % 2 == 0 for i in range(len(keys))]))
        keys = self.keys(5)
        transfers.submit(tier_jobs.Job(7, True, keys, list(range(5))))
        (done,) = self.wait(transfers, 1)
        self.assertEqual((7, True, False, keys[::2], keys[1::2]), (done.job_id, done.load, done.success, done.ok, done.failed))

    def test_a_store_that_raises(self):
        def fails(*_):
            raise OSError("no")

        for store in (Memory(contains=fails, get=fails, put=fails), fails, None):
            transfers = self.transfers((lambda key_len: None) if store is None else store)
            transfers.submit(tier_jobs.Job(1, True, self.keys(2), [0, 1]))
            transfers.submit(tier_jobs.Job(2, False, self.keys(2), [0, 1]))
            self.assertEqual([(False, [])] * 2, [(d.success, d.ok) for d in self.wait(transfers, 2)])
            lookups = tier_jobs.Lookups(tier_jobs.Store((lambda key_len: store) if store is not fails else fails), 1.0)
            lookups.ask("r", b"k" * 36)
            lookups.flush()
            until = time.monotonic() + 5
            while lookups.ask("r", b"k" * 36) is None and time.monotonic() < until:
                time.sleep(0.001)
            self.assertIs(False, lookups.ask("r", b"k" * 36))
            lookups.close()

    def test_jobs_that_cannot_be_right(self):
        transfers = self.transfers(Memory())
        transfers.submit(tier_jobs.Job(1, True, self.keys(2), [0]))
        transfers.submit(tier_jobs.Job(2, True, [], []))
        transfers.submit(tier_jobs.Job(3, True, self.keys(1), [99]))  # no such row
        transfers.submit(tier_jobs.Job(4, True, self.keys(1) + [b"short" * 4], [0, 1]))
        done = {d.job_id: d for d in self.wait(transfers, 4)}
        self.assertFalse(done[1].success)
        self.assertTrue(done[2].success)
        self.assertFalse(done[3].success)
        self.assertEqual((False, 1, 1), (done[4].success, len(done[4].ok), len(done[4].failed)))

    def test_every_job_ends_once(self):
        gate = threading.Event()

        def slow(keys, blocks):
            gate.wait(5)
            return [True] * len(keys)

        store = Memory(put=slow)
        transfers = self.transfers(store)
        for number in range(6):
            transfers.submit(tier_jobs.Job(number, number % 2 == 0 and number > 0, self.keys(2), [0, 1]))
        threading.Timer(0.1, gate.set).start()
        self.assertTrue(transfers.drain(0.01))
        ended = transfers.take()
        self.assertEqual(list(range(6)), sorted(d.job_id for d in ended))
        self.assertEqual(0, transfers.open)
        self.assertTrue(next(d for d in ended if d.job_id == 0).success, "a copy that had begun is not torn")
        transfers.submit(tier_jobs.Job(9, False, self.keys(1), [0]))
        self.assertTrue(self.wait(transfers, 1)[0].success, "after a drain it goes on")
        self.assertTrue(transfers.close())
        transfers.submit(tier_jobs.Job(10, False, self.keys(1), [0]))
        self.assertFalse(transfers.take()[0].success)

    def test_a_job_that_waited_too_long(self):
        gate = threading.Event()
        self.addCleanup(gate.set)
        transfers = self.transfers(Memory(put=lambda keys, blocks: [gate.wait(5)] * len(keys)), load_deadline=0.05)
        transfers.submit(tier_jobs.Job(1, False, self.keys(1), [0]))
        self.begun(transfers)
        transfers.submit(tier_jobs.Job(2, True, self.keys(1), [1]))
        time.sleep(0.1)
        gate.set()
        self.assertEqual({1: True, 2: False}, {d.job_id: d.success for d in self.wait(transfers, 2)})

    def test_lookups_in_batches_and_late(self):
        gate, asked = threading.Event(), []

        def contains(keys):
            asked.append(len(keys))
            gate.wait(5)
            return [True] * len(keys)

        lookups = tier_jobs.Lookups(tier_jobs.Store(lambda key_len: Memory(contains=contains)), 0.05)
        self.addCleanup(lookups.close)
        keys = self.keys(100)
        for request in ("a", "b"):
            self.assertEqual([None] * 100, [lookups.ask(request, key) for key in keys])
        lookups.flush()
        time.sleep(0.1)
        self.assertEqual([False] * 100, [lookups.ask("a", key) for key in keys])
        gate.set()
        time.sleep(0.05)
        self.assertEqual([100], asked, "one question for what two requests ask")
        self.assertEqual([False] * 100, [lookups.ask("a", key) for key in keys], "a late yes stays a no")
        self.assertEqual(100, lookups.late)
        # Whom nobody told no may still be told yes.
        self.assertEqual([True] * 100, [lookups.ask("b", key) for key in keys])
        lookups.missing(keys[:1])
        self.assertIs(False, lookups.ask("b", keys[0]))
        lookups.forget("b")
        self.assertIsNone(lookups.ask("b", keys[0]))


class OldNames(Case):
    """What earlier versions called things still works, as far as it costs nothing."""

    def test_names(self):
        from prefixd_vllm import tier as module

        @dataclasses.dataclass
        class Result:
            job_id: int
            success: bool

        with Daemon(pool_blocks=64) as daemon, Host(daemon) as host:
            host.tier._result_fields = {field.name for field in dataclasses.fields(Result)}
            rows = host.rows()
            keys = [key_of(f"old{i}") for i in range(3)]
            for at, key in enumerate(keys):
                rows[at] = bytes_of(key)
            was, module.tiering = module.tiering, types.SimpleNamespace(JobResult=Result)
            try:
                host.tier.submit_store(types.SimpleNamespace(job_id=1, keys=keys, block_ids=np.arange(3)))
                results = []
                until = time.monotonic() + 5
                while not results and time.monotonic() < until:
                    results = list(host.tier.get_finished())
            finally:
                module.tiering = was
            self.assertEqual([Result(1, True)], results)
            with Host(daemon) as other:
                found = other.get(keys)
                self.assertEqual(set(keys), set(found))
                self.right(found)
            del rows


def weights(folder):
    """A tiny Llama whose answers depend on every token before: large random weights, a fixed seed."""
    import torch
    from safetensors.torch import save_file

    hidden, layers, heads, kv_heads, dim, inter, vocab = 256, 2, 4, 2, 64, 512, 1024
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inter,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim,
        "vocab_size": vocab, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
    }
    (Path(folder) / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)

    def some(*shape, scale):
        return torch.randn(*shape, generator=generator) * scale

    tensors = {"model.embed_tokens.weight": some(vocab, hidden, scale=1.0), "model.norm.weight": torch.ones(hidden),
               "lm_head.weight": some(vocab, hidden, scale=0.2)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors[at + "self_attn.q_proj.weight"] = some(heads * dim, hidden, scale=0.15)
        tensors[at + "self_attn.k_proj.weight"] = some(kv_heads * dim, hidden, scale=0.15)
        tensors[at + "self_attn.v_proj.weight"] = some(kv_heads * dim, hidden, scale=0.15)
        tensors[at + "self_attn.o_proj.weight"] = some(hidden, heads * dim, scale=0.15)
        tensors[at + "mlp.gate_proj.weight"] = some(inter, hidden, scale=0.1)
        tensors[at + "mlp.up_proj.weight"] = some(inter, hidden, scale=0.1)
        tensors[at + "mlp.down_proj.weight"] = some(hidden, inter, scale=0.1)
        tensors[at + "input_layernorm.weight"] = torch.ones(hidden)
        tensors[at + "post_attention_layernorm.weight"] = torch.ones(hidden)
    save_file(tensors, str(Path(folder) / "model.safetensors"), metadata={"format": "pt"})


class Engines(Case):
    """Whole engines in processes of their own, with vLLM's OffloadingConnector."""

    def engine(self, model, prompts, daemon=None, spec="CpuRowsSpec", tokens=16, **more):
        extra = None
        if daemon is not None:
            extra = {"spec_name": spec, "spec_module_path": "vllm_cpu_rows", "cpu_bytes_to_use": 32 << 20,
                     "secondary_tiers": [dict(TIER, socket=daemon.socket)]}
        job = dict(model=model, extra=extra, prompts=prompts, tokens=tokens, **more)
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), *sys.path]), VLLM_CPU_KVCACHE_SPACE="1",
                   OMP_NUM_THREADS="2")
        ran = subprocess.run([sys.executable, str(HERE / "vllm_tier_engine.py")], input=json.dumps(job), text=True, env=env,
                             capture_output=True, timeout=240, check=False)
        lines = [line for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise AssertionError(f"the engine ended with {ran.returncode}: {ran.stderr[-3000:]}")
        return json.loads(lines[-1][7:])

    def test_two_engines(self):
        rng = random.Random(9)
        shared = [rng.randrange(3, 1000) for _ in range(256)]
        prompts = [shared + [rng.randrange(3, 1000) for _ in range(40)] for _ in range(3)]
        prompts.append([7] + prompts[0][1:])  # another first token: all its blocks are others
        with tempfile.TemporaryDirectory() as model, Daemon(pool_blocks=64) as daemon:
            weights(model)
            plain = self.engine(model, prompts)
            a = self.engine(model, prompts, daemon, pause=0.3)
            b = self.engine(model, prompts, daemon, processes="0")
            print(f"# cached tokens: plain {plain['cached']}, A {a['cached']}, B {b['cached']}; B {b['counts']}")
            self.assertNotEqual(plain["outs"][0], plain["outs"][3], "the model does not depend on its prompt")
            self.assertEqual(plain["outs"], a["outs"])
            self.assertEqual(plain["outs"], b["outs"])
            self.assertEqual(0, a["cached"][0])
            # 256 shared tokens and 32 more make 9 blocks; the last one needs its last token computed.
            self.assertGreaterEqual(b["cached"][0], 256)
            self.assertGreaterEqual(b["cached"][3], 256)
            self.assertGreaterEqual(b["counts"][0]["loaded"], 16)
            self.clean(daemon)

    def test_the_packages_own_worker_refuses_a_cpu(self):
        """Why the engines above have a worker of this test's: recorded, so that a change shows."""
        with tempfile.TemporaryDirectory() as model, Daemon(pool_blocks=64) as daemon:
            weights(model)
            with self.assertRaises(AssertionError) as caught:
                self.engine(model, [[5] * 40], daemon, spec="TieringOffloadingSpec")
            self.assertIn("only supported on CUDA-alike", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
