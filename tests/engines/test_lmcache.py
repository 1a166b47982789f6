"""LMCache 0.5.6 inside an engine's process, with prefixd as its remote storage: the real package, on a CPU.

lmcache_bed.py says what is LMCache's own and what stands in.  "Another process" is one: a worker that
shares nothing with this one but the daemon.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import torch
from daemon import Daemon
from lmcache.v1.health_monitor.checks.remote_backend_check import RemoteBackendHealthCheck
from lmcache.v1.token_database import TokenDatabase
from lmcache_bed import CHUNK, Bed, complaints, prompt, write_config
from lmcache_worker import Worker
from prefixd.identity import IdentityError
from prefixd_lmcache.identity import Settings

# On a slow machine no test of what is shared may fail for a deadline; those of deadlines set their own.
PATIENT = {"deadline": 20.0, "lookup_deadline": 20.0, "put_deadline": 20.0}
HASTY = {"deadline": 0.3, "lookup_deadline": 0.2, "put_deadline": 0.4}
SLACK = 1.5  # seconds that a busy machine may add to a deadline


class Case(unittest.TestCase):
    """A daemon, a directory, and LMCache engines that are closed when the class is done."""

    pool = {"pool_blocks": 256}

    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.dir = cls.stack.enter_context(tempfile.TemporaryDirectory())
        tenants = os.path.join(cls.dir, "prefixd.conf")
        Path(tenants).write_text("[tenants]\ndefault = any\nother = any\n")
        cls.daemon = cls.stack.enter_context(Daemon(config=tenants, **cls.pool))
        cls.beds = 0

    @classmethod
    def config(cls, options=None, **config):
        cls.beds += 1
        path = os.path.join(cls.dir, f"{cls.beds}.yaml")
        write_config(path, cls.daemon.socket, {**PATIENT, **(options or {})}, **config)
        return path

    @classmethod
    def bed(cls, options=None, metadata=None, **config):
        bed = Bed(cls.config(options, **config), f"{cls.__name__}-{cls.beds}", **(metadata or {}))
        cls.stack.callback(bed.close)
        return bed

    @classmethod
    def worker(cls, options=None, **config):
        worker = Worker("engine", cls.config(options, **config))
        cls.stack.callback(worker.close)
        return worker

    def setUp(self):
        complaints.take()

    def tearDown(self):
        self.assertEqual(complaints.take(), [])

    def assert_daemon_clean(self):
        self.assertIn("clean", self.daemon.ctl("audit"))
        self.assertIn("nothing is pinned", self.daemon.ctl("pins"))

    def assert_hit(self, bed, tokens, chunks, **kwargs):
        """Just so many chunks are found and come back, with the bytes that they should have."""
        loaded, wrong, size = bed.model.loaded, bed.model.wrong, bed.config.chunk_size
        self.assertEqual(bed.lookup(tokens, **kwargs), chunks * size)
        self.assertEqual(bed.retrieve(tokens, **kwargs), chunks * size)
        self.assertEqual((bed.model.loaded - loaded, bed.model.wrong - wrong), (chunks, 0))
        self.assertEqual(bed.held(), 0)


class Sharing(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.here = cls.bed()
        cls.there = cls.worker()

    def test_put_in_one_process_hit_in_another(self):
        tokens = prompt("both ways", 6 * CHUNK)
        self.assertEqual(self.here.lookup(tokens), 0)
        self.there.ask("store", tokens)
        self.assertEqual(self.there.ask("held"), 0)
        self.assert_hit(self.here, tokens, 6)
        # And back: what this one adds, the other one finds behind what it stored itself.
        longer = tokens + prompt("more", 3 * CHUNK)
        self.here.store(longer)
        self.assertEqual(self.there.ask("lookup", longer), 9 * CHUNK)
        self.assertEqual(self.there.ask("retrieve", longer), 9 * CHUNK)
        self.assertEqual(self.there.ask("verdict"), [9, 0])
        self.assertEqual((self.here.held(), self.there.ask("held")), (0, 0))
        self.assert_daemon_clean()

    def test_prefix_of_another_prompt(self):
        tokens = prompt("prefix", 8 * CHUNK)
        self.there.ask("store", tokens)
        self.assert_hit(self.here, tokens[: 5 * CHUNK] + prompt("other end", 3 * CHUNK), 5)
        self.assert_hit(self.here, prompt("other start", CHUNK) + tokens[CHUNK:], 0)

    def test_a_chunk_that_is_not_full_is_not_stored(self):
        tokens = prompt("not full", 3 * CHUNK + 5)
        here = self.bed(save_unfull_chunk=True)
        here.store(tokens)
        self.assertEqual(
            here.connector.stats()["connector"],
            {"not_full": 1, "stored": 3, "not_stored": 0, "pending_bytes": 0},
        )
        self.assertEqual(self.there.ask("lookup", tokens), 3 * CHUNK)
        self.assert_hit(here, tokens, 3)

    def test_tags_of_requests_are_apart(self):
        tokens = prompt("tags", 2 * CHUNK)
        red, blue = ({"lmcache.tag.user": name} for name in ("red", "blue"))
        self.there.ask("store", tokens, request_configs=red)
        self.assert_hit(self.here, tokens, 2, request_configs=red)
        self.assert_hit(self.here, tokens, 0, request_configs=blue)
        self.assert_hit(self.here, tokens, 0)

    def test_async_calls_of_the_backend(self):
        tokens = prompt("async", 4 * CHUNK)
        self.there.ask("store", tokens[: 3 * CHUNK])
        keys = [key for _, _, key in self.here.engine.token_database.process_tokens(tokens)]

        def run(coroutine):
            return asyncio.run_coroutine_threadsafe(coroutine, self.here.manager.loop).result(60)

        self.assertEqual(run(self.here.remote.batched_async_contains("id", keys)), 3)
        found = run(self.here.remote.batched_get_non_blocking("id", keys))
        self.assertEqual(len(found), 3)
        self.here.model.batched_to_gpu(found, [0, 1, 2], [CHUNK, 2 * CHUNK, 3 * CHUNK], prompt=tokens)
        self.assertEqual(self.here.model.wrong, 0)
        self.assertEqual([obj.get_ref_count() for obj in found], [1, 1, 1])
        for obj in found:
            obj.ref_count_down()
        self.assertEqual(self.here.held(), 0)
        single = run(self.here.remote.connection.get(keys[0]))
        self.assertEqual(single.get_ref_count(), 1)
        single.ref_count_down()
        self.assertIsNone(run(self.here.remote.connection.get(keys[3])))
        self.assertEqual(run(self.here.remote.connection.batched_get(keys[3:])), [None])
        self.assertTrue(self.here.remote.contains(keys[2]))
        self.assertFalse(self.here.remote.contains(keys[3]))
        self.assertTrue(self.here.remote.connection.exists_sync(keys[2]))
        self.assertEqual(run(self.here.remote.connection.list()), [])
        self.assertFalse(self.here.remote.remove(keys[0]))
        self.assertEqual(self.here.held(), 0)

    def test_health_monitor_checks_more_than_once(self):
        # It stores other bytes under one key each time and wants them back; blocks never change.
        check = RemoteBackendHealthCheck(self.here.remote)
        for fill in (1, 2):
            memory = self.here.manager.local_cpu_backend.memory_allocator.buffer
            memory[: 1 << 16].fill_(fill)
            self.assertTrue(check._put_and_get_check())
        self.assertTrue(check.check())
        self.assertEqual(self.here.held(), 0)


class Settings_(Case):
    def test_loaded_by_the_plug_in_loader_from_a_file(self):
        bed = self.bed()
        self.assertEqual(type(bed.connector).__module__, "prefixd_lmcache.remote")
        self.assertEqual(bed.connector.identity.model, "tiny")
        self.assertFalse(bed.connector.support_ping())
        # It opens its namespace by itself, so that no lookup has to wait for that.
        bed.settle()
        opened = self.daemon.ctl("status", "--json")["namespaces"]
        self.assertEqual([namespace["model"] for namespace in opened], ["tiny"])

    def test_ping_where_the_fallback_is_the_memory_cache(self):
        bed = self.bed(extra_config={"fallback_policy": "local_cpu"})
        self.assertTrue(bed.connector.support_ping())
        check = RemoteBackendHealthCheck(bed.remote)
        self.assertTrue(check.check())
        self.daemon.kill()
        try:
            self.assertFalse(check.check())
        finally:
            self.daemon.start()
        until = time.monotonic() + 10
        while not check.check() and time.monotonic() < until:
            time.sleep(0.1)
        self.assertTrue(check.check())

    def test_what_is_missing_or_wrong_is_refused_by_name(self):
        given = {"socket": "s", "tenant": "t", "salt": "", "revision": "r", "adapter": ""}
        self.assertEqual(Settings.from_options(given).tenant, "t")
        for field in ("tenant", "salt", "revision", "adapter"):
            with self.subTest(field), self.assertRaises(IdentityError) as caught:
                Settings.from_options({key: value for key, value in given.items() if key != field})
            self.assertEqual(caught.exception.field, field)
        for field, value in (
            ("dead_line", 1),
            ("deadline", 0),
            ("deadline", "1"),
            ("pending_bytes", -1),
            ("ping", 1),
        ):
            with self.subTest(field), self.assertRaises(IdentityError) as caught:
                Settings.from_options({**given, field: value})
            self.assertEqual(caught.exception.field, field)

    def test_an_engine_with_a_refused_setting_runs_without_prefixd(self):
        tokens = prompt("refused", 2 * CHUNK)
        for field, bed in (
            ("revision", {"options": {"revision": None}}),
            ("adapter", {"options": {"adapter": None}}),
            ("salt", {"options": {"salt": None}}),
            ("tenant", {"options": {"tenant": None}}),
            ("remote_serde", {"remote_serde": "cachegen"}),
            ("scales", {"metadata": {"dtype": "uint8"}}),
        ):
            with self.subTest(field):
                with self.assertLogs("lmcache.v1.storage_backend.remote_backend", logging.WARNING) as said:
                    engine = self.bed(**bed)
                self.assertIn(f"{field}: ", " ".join(said.output))
                self.assertIsNone(engine.connector)
                self.assertEqual(engine.lookup(tokens), 0)
                engine.store(tokens)
                self.assertEqual(engine.retrieve(tokens), 0)


class Identity(Case):
    """What makes K/V different makes it apart; "the same" is asserted beside every "not the same"."""

    def test_only_the_same_share(self):
        tokens = prompt("identity", 3 * CHUNK)
        first = self.bed()
        first.store(tokens)
        scaled = {"metadata": {"dtype": "uint8"}, "options": {"scales": "s1"}}
        self.bed(**scaled).store(tokens)
        two = {"metadata": {"world_size": 2, "worker_id": 0}}
        self.bed(**two).store(tokens)
        different = {
            "model": {"metadata": {"model": "other"}},
            "revision": {"options": {"revision": "r2"}},
            "dtype": {"metadata": {"dtype": "float16"}},
            "layers": {"metadata": {"layers": 4, "heads": 1}},  # as many bytes
            "heads": {"metadata": {"heads": 1, "dim": 32}},  # as many bytes
            "adapter": {"options": {"adapter": "lora@1"}},
            "salt": {"options": {"salt": "s"}},
            "tenant": {"options": {"tenant": "other"}},
            "windows": {"options": {"windows": "0-1:64"}},
            "scales": {"metadata": {"dtype": "uint8"}, "options": {"scales": "s2"}},
            "tp size": {"metadata": {"world_size": 4, "worker_id": 0}},
            "tp rank": {"metadata": {"world_size": 2, "worker_id": 1}},
            "chunk size": {"chunk_size": 2 * CHUNK},
        }
        for what, bed in different.items():
            with self.subTest(what):
                other = self.bed(**bed)
                self.assertIsNotNone(other.connector)
                self.assert_hit(other, tokens, 0)
                other.store(tokens)
                self.assert_hit(other, tokens, len(tokens) // other.config.chunk_size)
        for what, bed in (("first", {}), ("scaled", scaled), ("two ranks", two)):
            with self.subTest(f"the same: {what}"):
                self.assert_hit(self.bed(**bed), tokens, 3)

    def test_another_hash_of_tokens_is_another_namespace(self):
        tokens = prompt("hash", 2 * CHUNK)
        self.bed().store(tokens)
        before = self.daemon.ctl("status", "--json")["counters"]["seed_mismatch"]
        self.assert_hit(self.bed(), tokens, 2)
        self.assertEqual(self.daemon.ctl("status", "--json")["counters"]["seed_mismatch"], before)
        # What an engine does whose hashes of tokens start from a seed of the process.
        with mock.patch.object(
            TokenDatabase, "_get_vllm_hash_func", lambda *_: lambda value: hash((value, 1))
        ):
            other = self.bed()
        self.assertEqual(other.lookup(tokens), 0)
        self.assertGreater(self.daemon.ctl("status", "--json")["counters"]["seed_mismatch"], before)


class Failures(Case):
    """Whatever the daemon does: no exception into the engine, no longer wait, no reference kept."""

    def setUp(self):
        super().setUp()
        self.engine = self.bed(HASTY)

    def timed(self, limit, call, *args):
        start = time.monotonic()
        value = call(*args)
        self.assertLess(time.monotonic() - start, limit + SLACK)
        return value

    def all_calls_miss(self, tokens):
        """Lookup, read and write, each within its deadline; -> seconds that the write took to be given up."""
        self.assertEqual(self.timed(HASTY["lookup_deadline"], self.engine.lookup, tokens), 0)
        self.assertEqual(self.timed(HASTY["deadline"], self.engine.retrieve, tokens), 0)
        # A read that the engine begins after a lookup of its own has succeeded.
        keys = [key for _, _, key in self.engine.engine.token_database.process_tokens(tokens)]
        nothing = self.timed(HASTY["deadline"], self.engine.remote.batched_get_blocking, keys)
        self.assertEqual(nothing, [None] * len(keys))
        start = time.monotonic()
        self.engine.engine.store(tokens, prompt=tokens)
        self.assertLess(time.monotonic() - start, SLACK)  # the engine does not wait for the daemon at all
        self.engine.settle()
        self.assertLess(time.monotonic() - start, HASTY["put_deadline"] + SLACK)
        self.assertEqual(self.engine.held(), 0)

    def test_stopped_daemon(self):
        tokens, other = prompt("stopped", 4 * CHUNK), prompt("while stopped", 4 * CHUNK)
        self.engine.store(tokens)
        self.assert_hit(self.engine, tokens, 4)
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            self.all_calls_miss(tokens)
            self.all_calls_miss(other)
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assert_hits_again(tokens, 4)
        self.assert_daemon_clean()

    def test_killed_daemon(self):
        tokens = prompt("killed", 4 * CHUNK)
        self.engine.store(tokens)
        self.assert_hit(self.engine, tokens, 4)
        self.daemon.kill()
        try:
            self.all_calls_miss(tokens)
        finally:
            self.daemon.start()
        time.sleep(1.1)  # the client asks once a second whether the daemon is there again
        self.assertEqual(self.engine.lookup(tokens), 0)
        self.engine.store(tokens)
        self.assert_hits_again(tokens, 4)
        self.assert_daemon_clean()

    def assert_hits_again(self, tokens, chunks):
        until = time.monotonic() + 15
        while self.engine.lookup(tokens) != chunks * CHUNK and time.monotonic() < until:
            time.sleep(0.1)
        self.assert_hit(self.engine, tokens, chunks)

    def test_no_daemon_from_the_start(self):
        path = os.path.join(self.dir, "nobody.yaml")
        write_config(path, os.path.join(self.dir, "nobody.sock"), HASTY)
        self.engine = Bed(path, "nobody")
        self.addCleanup(self.engine.close)
        self.assertIsNotNone(self.engine.connector)
        self.all_calls_miss(prompt("nobody", 2 * CHUNK))

    @contextlib.contextmanager
    def slow(self, name):
        """The client's call waits, long after its deadline, until the event that is given is set."""
        store, go = self.engine.connector._store, threading.Event()
        call = getattr(store, name)

        def wait(*args, **kwargs):
            go.wait(30)
            return call(*args, **{**kwargs, "deadline": 5.0})

        with mock.patch.object(store, name, wait):
            try:
                yield go
            finally:
                go.set()
                self.engine.settle()

    def test_an_object_is_held_until_its_bytes_are_copied(self):
        # LMCache lets go of an object when put() returns.  Memory that is used again meanwhile would be
        # stored under the name of what was in it before.
        tokens = prompt("held", 2 * CHUNK)
        size = self.engine.connector.full_chunk_size_bytes
        with self.slow("put") as go:
            self.engine.engine.store(tokens, prompt=tokens)
            self.engine.quiet()
            self.assertEqual(self.engine.held(), 2 * size)
            go.set()
            self.engine.settle()
            self.assertEqual(self.engine.held(), 0)
        self.assert_hits_again(tokens, 2)

    def test_what_is_read_too_late_is_freed(self):
        tokens = prompt("late", 3 * CHUNK)
        self.engine.store(tokens)
        keys = [key for _, _, key in self.engine.engine.token_database.process_tokens(tokens)]
        with self.slow("get") as go:
            found = self.timed(HASTY["deadline"], self.engine.remote.batched_get_blocking, keys)
            self.assertEqual(found, [None] * 3)
            self.assertGreater(self.engine.held(), 0)
            go.set()
            self.engine.settle()
            self.assertEqual(self.engine.held(), 0)
        self.assert_hits_again(tokens, 3)

    def test_a_read_that_is_cancelled_is_freed(self):
        tokens = prompt("cancelled", 3 * CHUNK)
        self.engine.store(tokens)
        keys = [key for _, _, key in self.engine.engine.token_database.process_tokens(tokens)]
        with self.slow("get") as go:
            read = asyncio.run_coroutine_threadsafe(
                self.engine.remote.connection.batched_get(keys), self.engine.manager.loop
            )
            time.sleep(0.05)
            read.cancel()
            self.engine.quiet()
            go.set()
            self.engine.settle()
        self.assertTrue(read.cancelled())
        self.assertEqual(self.engine.held(), 0)
        self.assert_hits_again(tokens, 3)

    def test_what_goes_between_lookup_and_read_is_freed(self):
        tokens = prompt("went", 3 * CHUNK)
        self.engine.store(tokens[: 2 * CHUNK])
        keys = [key for _, _, key in self.engine.engine.token_database.process_tokens(tokens)]
        with mock.patch.object(
            self.engine.connector._store, "contains", lambda keys, **_: [True] * len(keys)
        ):
            self.assertEqual(self.engine.lookup(tokens), 3 * CHUNK)
            self.assertEqual(self.engine.retrieve(tokens), 2 * CHUNK)
            self.assertEqual(
                [obj is None for obj in self.engine.remote.batched_get_blocking(keys[2:])], [True]
            )
        self.assertEqual((self.engine.model.wrong, self.engine.held()), (0, 0))

    def test_what_waits_to_be_stored_is_bounded(self):
        size = self.engine.connector.full_chunk_size_bytes
        small = self.bed({**HASTY, "pending_bytes": 2 * size})
        tokens = prompt("bounded", 5 * CHUNK)
        small.store(tokens)
        self.assertEqual(small.connector.stats()["connector"]["dropped_pending"], 3)
        self.assertEqual(small.connector.stats()["connector"]["pending_bytes"], 0)
        self.assert_hits_again(tokens, 2)
        self.assertEqual(small.held(), 0)

    def test_no_memory_in_lmcache_is_a_miss(self):
        tokens = prompt("no memory", 6 * CHUNK)
        self.engine.store(tokens)
        allocator = self.engine.manager.local_cpu_backend
        size = self.engine.connector.full_chunk_size_bytes
        self.assertEqual(size % 4096, 0)  # what the allocator rounds to
        free = allocator.memory_allocator.size // 4096 * 4096
        taken = allocator.allocate(torch.Size([free - 3 * size]), torch.uint8)
        try:
            keys = [key for _, _, key in self.engine.engine.token_database.process_tokens(tokens)]
            found = self.engine.remote.batched_get_blocking(keys)
            self.assertEqual([obj is None for obj in found], [False] * 3 + [True] * 3)
            for obj in found[:3]:
                obj.ref_count_down()
        finally:
            taken.ref_count_down()
        self.assertEqual(self.engine.held(), 0)


class SmallPool(Case):
    """Two processes whose prompts are more than the pool holds: blocks go at any moment, bytes stay right."""

    pool = {"pool_blocks": 32}

    def test_no_wrong_bytes(self):
        here, there = self.bed(), self.worker()
        prompts = [prompt(f"small {n % 3}", 2 * CHUNK) + prompt(f"tail {n}", 4 * CHUNK) for n in range(24)]
        there.ask("store", prompts[0])
        hits = 0
        for n in range(60):
            tokens = prompts[(n * 7) % len(prompts)]
            hits += here.retrieve(tokens) // CHUNK
            here.store(tokens)
            back = prompts[(n * 7 - n % 4) % len(prompts)]
            there.ask("retrieve", back)
            there.ask("store", back)
        loaded, wrong = there.ask("verdict")
        self.assertEqual((here.model.wrong, wrong), (0, 0))
        self.assertEqual(here.model.loaded, hits)
        self.assertGreater(min(hits, loaded), 0)
        removed = self.daemon.ctl("status", "--json")["removed_blocks"]["device"]
        self.assertGreater(sum(removed.values()), 32)
        self.assertEqual((here.held(), there.ask("held")), (0, 0))
        self.assertEqual(there.ask("complaints"), [])
        self.assert_daemon_clean()


if __name__ == "__main__":
    unittest.main()
