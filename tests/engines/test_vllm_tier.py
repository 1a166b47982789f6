"""The secondary tier for vLLM's offloading connector, against the installed package and a real daemon.

Part one drives vLLM's own tiering manager, its host tier and its factory in this process; rows are
written where the K/V copies of a worker would write them.  Part two runs whole engines on the CPU in
processes of their own (vllm_tier_engine.py).

    PYTHONPATH=clients/python/src:clients/vllm/src python tests/lib/tap.py tests/engines/test_vllm_tier.py
"""

import dataclasses
import gc
import json
import os
import random
import signal
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
sys.path.insert(0, str(TREE / "tests/connectors"))
sys.path.insert(0, str(HERE))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from daemon import Daemon  # noqa: E402

try:
    import vllm  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"vLLM is not installed here: {error}")

import numpy as np  # noqa: E402
import vllm_model  # noqa: E402
from conformance import IdentityConformance  # noqa: E402
from prefixd.identity import IdentityError  # noqa: E402
from prefixd_vllm.tier_identity import SeedUnknown, seed_probe, tier_identity  # noqa: E402
from vllm.utils.hashing import sha256, sha256_cbor  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.kv_offload.base import LookupResult  # noqa: E402
from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # noqa: E402
from vllm.v1.kv_offload.tiering import base as tiering  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402
from vllm_tier_host import ROW, TIER, Engine, Host, PromptHost, bytes_of, config_of, key_of  # noqa: E402

kv_cache_utils.init_none_hash(sha256)


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

    def passed_on(self, a, b, keys):
        """What b finds of keys that a offloads anew."""
        a.manager.primary_tier.reset_cache()
        a.put(keys)
        a.settle()
        return b.get(keys)

    def until(self, n, get, seconds=10):
        """get(), again until it has n: a store asks once a second whether its daemon is back."""
        end = time.monotonic() + seconds
        while len(found := get()) < n and time.monotonic() < end:
            time.sleep(0.1)
        self.right(found)
        return found

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
            self.assertIs(
                LookupResult.MISS, b.manager.lookup(key, first), "an answer does not change for its request"
            )
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
            self.assertEqual(
                {"loaded": 5, "not_loaded": 3}, {k: b.tier.counts[k] for k in ("loaded", "not_loaded")}
            )
            # Those that did not come are misses to this request from now on, or it would go in circles.
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
                for _ in range(2000):
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
                loaded = sum(host.tier.counts["loaded"] for host in hosts)
                print(
                    f"# 2000 operations: {hits} hits, {misses} misses, {loaded} rows loaded by the last hosts"
                )
                self.assertGreater(hits, 500)
                self.assertGreater(loaded, 0)
            finally:
                for host in hosts:
                    host.close()
            self.clean(daemon)


class Trouble(Case):
    def test_no_daemon(self):
        daemon = types.SimpleNamespace(
            socket=os.path.join(tempfile.gettempdir(), f"none-{uuid.uuid4()}.sock")
        )
        with Host(daemon) as host:
            keys = [key_of(i) for i in range(10)]
            host.put(keys)
            host.settle()
            self.assertEqual({}, host.get([key_of("x")]))
            self.assertEqual({"loaded": 0, "not_loaded": 0, "stored": 0, "not_stored": 10}, host.tier.counts)

    def test_killed_in_mid_job(self):
        row = 1 << 18
        keys = [key_of(i) for i in range(400)]
        with (
            Daemon(pool_blocks=512) as daemon,
            Host(daemon, rows=512, row=row) as a,
            Host(daemon, rows=512, row=row) as b,
        ):
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
            self.assertEqual(set(back), set(self.until(10, lambda: self.passed_on(a, b, back))))
            self.clean(daemon)

    def test_stopped(self):
        keys = [key_of(i) for i in range(10)]
        with (
            Daemon(pool_blocks=64) as daemon,
            Host(daemon, deadline=3.0) as a,
            Host(daemon, deadline=3.0) as b,
        ):
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
                # A call that waits for the daemon takes 3 s.
                self.assertLess(took, 1.5)
                self.assertLess(b.slowest, 1.5)
                self.assertEqual(5, a.tier.counts["not_stored"])
            finally:
                os.kill(daemon.process.pid, signal.SIGCONT)
            again = [key_of(f"again{i}") for i in range(5)]
            self.assertEqual(set(again), set(self.until(5, lambda: self.passed_on(a, b, again))))
            self.clean(daemon)

    def test_shutdown_with_jobs_in_flight(self):
        keys = [key_of(i) for i in range(100)]
        with Daemon(pool_blocks=256) as daemon:
            host = Host(daemon, rows=256)
            host.put(keys)
            host.settle()
            os.kill(daemon.process.pid, signal.SIGSTOP)
            try:
                # A question and a copy wait for the daemon, and another job for its turn.
                host.tier.lookup(key_of("asked"), host.request())
                host.step()
                host.put([key_of(f"b{i}") for i in range(50)])
                self.begun(host.tier._transfers)
                host.put([key_of(f"c{i}") for i in range(50)])
                tier, start = host.tier, time.monotonic()
                host.close()
                took = time.monotonic() - start
            finally:
                os.kill(daemon.process.pid, signal.SIGCONT)
            print(f"# shutdown with two jobs and a lookup in flight: {took:.3f} s")
            self.assertLess(took, 5.0)
            self.assertEqual([], threads())
            self.assertEqual([False, False], [job.success for job in tier.get_finished_jobs()])
            self.clean(daemon)

    def test_reset_with_jobs_in_flight(self):
        keys = [key_of(i) for i in range(10)]
        for on_reset, n in (("stop", 0), ("keep", 10)):
            with (
                Daemon(pool_blocks=256) as daemon,
                Host(daemon, rows=256, on_reset=on_reset, drain=0.05) as host,
            ):
                host.put(keys)
                host.settle()
                os.kill(daemon.process.pid, signal.SIGSTOP)
                try:
                    host.put([key_of(f"b{i}") for i in range(50)])
                    self.begun(host.tier._transfers)
                    host.put([key_of(f"c{i}") for i in range(50)])
                    start = time.monotonic()
                    host.manager.reset_cache()  # asserts that no job is open
                    took = time.monotonic() - start
                finally:
                    os.kill(daemon.process.pid, signal.SIGCONT)
                print(f"# reset ({on_reset}) with two jobs in flight: {took:.3f} s")
                self.assertLess(took, 5.0)
                self.assertEqual(100, host.tier.counts["not_stored"])
                self.assertEqual(n, len(self.until(n, lambda: host.get(keys))))
                host.put([key_of("after")])
                host.settle()
                with Host(daemon) as other:
                    self.assertEqual(1 if n else 0, len(other.get([key_of("after")])))
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


class TierConformance(IdentityConformance, unittest.TestCase):
    """Every field of the identity, through the real tier and vLLM's own block hashes."""

    FIELDS = {**IdentityConformance.FIELDS, "layout": "LBNHC", "salt": "", "tokens": 16, "scales": ""}
    CHANGES = {
        **IdentityConformance.CHANGES,
        "layout": ({"layout": "LBHNC"},),
        "salt": ({"salt": "secret"}, {"salt": "another"}),
        # A row holds the bytes of all ranks side by side: there is no rank to tell apart.
        "tp_shape": ({"tp_size": 2}, {"tp_size": 4}),
        "block_tokens": ({"tokens": 32},),
        "scales": ({"scales": "s1"},),
    }
    REFUSED = ("model", "revision", "dtype", "tenant", "salt")

    def make(
        self, *, model, revision, dtype, layout, adapter, salt, tenant, tp_size, tp_rank, tokens, scales
    ):
        options = dict(revision=revision, adapter=adapter, salt=salt, tenant=tenant, scales=scales)
        config = dict(name=model, dtype=dtype, kv_cache_layout=layout, tp_size=tp_size, tokens=tokens)
        return PromptHost(self.daemon, config=config, deadline=5.0, lookup_deadline=5.0, **options)


class Identity(Case):
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
        self.engines.append(spec.config.engine_id)
        with self.assertRaises(IdentityError) as caught:
            spec.get_manager()
        self.assertEqual(field, caught.exception.field)

    def test_missing_is_refused_by_name(self):
        self.engines = []
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
        self.refused("locality", locality="here")
        gc.collect()
        left = [name for name in os.listdir("/dev/shm") for engine in self.engines if engine in name]
        self.assertEqual([], left, "a refusal leaves shared memory behind")
        self.assertNotIn("vllm_offload_", Path("/proc/self/maps").read_text())
        self.assertEqual([], threads())

    def test_configurations_that_lack_something(self):
        whole = config_of(TIER)
        plain = json.loads(
            json.dumps(dataclasses.asdict(whole)), object_hook=lambda d: types.SimpleNamespace(**d)
        )
        identity = tier_identity(plain, row_bytes=ROW, engine="vllm x", revision="r1")
        self.assertEqual(identity, tier_identity(whole, row_bytes=ROW, engine="vllm x", revision="r1"))
        for path in (
            "model.name",
            "model.dtype",
            "parallel.tp_size",
            "parallel.pp_size",
            "cache.tokens_per_hash",
            "cache.blocks_per_chunk",
            "groups",
            "worker_kv_bytes_per_block",
        ):
            lame = json.loads(
                json.dumps(dataclasses.asdict(whole)), object_hook=lambda d: types.SimpleNamespace(**d)
            )
            holder = lame
            *folders, last = path.split(".")
            for folder in folders:
                holder = getattr(holder, folder)
            delattr(holder, last)
            with self.subTest(path=path), self.assertRaises(IdentityError) as caught:
                tier_identity(lame, row_bytes=ROW, engine="vllm x", revision="r1")
            self.assertEqual({"name": "model"}.get(last, last), caught.exception.field)

    def test_hash_functions(self):
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


class Engines(Case):
    """Whole engines with vLLM's OffloadingConnector, its scheduler and its shared host region."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = str(vllm_model.make(os.path.join(cls.folder.name, "model")))
        rng = random.Random(9)
        shared = [rng.randrange(3, 700) for _ in range(256)]
        cls.prompts = [shared + [rng.randrange(3, 700) for _ in range(40)] for _ in range(3)]
        cls.prompts.append([7] + cls.prompts[0][1:])  # another first token: all its blocks are others
        with Engine(cls.model) as plain:
            cls.plain = [plain.ask(prompt) for prompt in cls.prompts]
            plain.end()

    def test_two_engines(self):
        self.assertNotEqual(
            self.plain[0]["ids"], self.plain[3]["ids"], "the model does not depend on its first token"
        )
        with Daemon(pool_blocks=64) as daemon:
            with Engine(self.model, daemon, processes=True) as a:
                first = [a.ask(prompt) for prompt in self.prompts]
                a.ask([5] * 40)  # what was offloaded reaches the tier at a later step
                a.end()
            with Engine(self.model, daemon) as b:
                second = [b.ask(prompt) for prompt in self.prompts]
                counts = b.end()
            print(
                f"# cached: none {[o['cached'] for o in self.plain]}, A {[o['cached'] for o in first]}, "
                f"B {[o['cached'] for o in second]}; B {counts}"
            )
            for name, outs in (("A", first), ("B", second)):
                self.assertEqual(
                    [o["ids"] for o in self.plain], [o["ids"] for o in outs], f"{name} answers otherwise"
                )
            self.assertEqual(0, first[0]["cached"])
            # 296 tokens are 9 full blocks of 32: all of them came from the other engine.
            self.assertEqual([288, 288, 288, 288], [o["cached"] for o in second])
            self.assertEqual(20, counts["loaded"])  # 8 shared, 1 each of three, 9 of the fourth
            self.clean(daemon)

    def test_daemon_killed_between_prompts(self):
        with Daemon(pool_blocks=64) as daemon:
            with Engine(self.model, daemon) as a:
                outs = [a.ask(self.prompts[0])]
                a.ask([5] * 40)
                daemon.kill()
                outs += [a.ask(self.prompts[1]), a.ask(self.prompts[2])]
                daemon.start()
                time.sleep(1.5)  # it is asked once a second whether it is back
                outs.append(a.ask(self.prompts[3]))
                a.ask([5] * 41)
                counts = a.end()
            self.assertEqual([o["ids"] for o in self.plain], [o["ids"] for o in outs])
            with Engine(self.model, daemon) as b:
                again = [b.ask(self.prompts[3]), b.ask(self.prompts[0])]
                b.end()
            print(f"# killed and restarted: A {counts}, B's cached tokens {[o['cached'] for o in again]}")
            self.assertEqual([self.plain[3]["ids"], self.plain[0]["ids"]], [o["ids"] for o in again])
            self.assertEqual([288, 0], [o["cached"] for o in again])
            self.clean(daemon)

    def test_the_packages_own_worker_refuses_a_cpu(self):
        """Why the engines above have a worker of this test's: recorded, so that a change shows."""
        with Daemon(pool_blocks=64) as daemon:
            with self.assertRaises(AssertionError) as caught:
                Engine(self.model, daemon, spec="TieringOffloadingSpec")
            self.assertIn("only supported on CUDA-alike", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
