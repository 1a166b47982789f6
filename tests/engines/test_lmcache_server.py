"""LMCache 0.5.6's server of several processes, with prefixd as its L2: the real package, on a CPU.

LMCache's own storage manager, L1, store and prefetch controllers run as the server makes them from its
command line (lmcache_bed.py); what would come over the network from engines is done here by hand.
"""

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import torch
from daemon import Daemon
from lmcache_bed import CHUNK, ServerBed, prompt
from lmcache_worker import Worker
from prefixd.identity import IdentityError
from prefixd_lmcache.l2 import PrefixdL2Adapter, PrefixdL2AdapterConfig

PATIENT = {"deadline": 20.0, "lookup_deadline": 20.0, "put_deadline": 20.0}
HASTY = {"deadline": 0.3, "lookup_deadline": 0.2, "put_deadline": 0.4}
SLACK = 2.0  # seconds that a busy machine may add to a deadline


class Case(unittest.TestCase):
    pool = {"pool_blocks": 256}

    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.dir = cls.stack.enter_context(tempfile.TemporaryDirectory())
        tenants = os.path.join(cls.dir, "prefixd.conf")
        Path(tenants).write_text("[tenants]\ndefault = any\nother = any\n")
        cls.daemon = cls.stack.enter_context(Daemon(config=tenants, **cls.pool))

    @classmethod
    def params(cls, **changes):
        return {
            "socket": cls.daemon.socket,
            "tenant": "default",
            "salt": "",
            "hash_algorithm": "blake3",
            "chunk_size": CHUNK,
            "models": {"tiny": {"revision": "r1", "adapter": ""}, "other": {"revision": "r1", "adapter": ""}},
            **PATIENT,
            **changes,
        }

    @classmethod
    def server(cls, **changes):
        bed = ServerBed(cls.params(**changes))
        cls.stack.callback(bed.close)
        return bed

    @classmethod
    def worker(cls, **changes):
        path = os.path.join(cls.dir, "params.json")
        Path(path).write_text(json.dumps(cls.params(**changes)))
        worker = Worker("server", path)
        cls.stack.callback(worker.close)
        return worker

    def assert_daemon_clean(self):
        self.assertIn("clean", self.daemon.ctl("audit"))
        self.assertIn("nothing is pinned", self.daemon.ctl("pins"))


class Sharing(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.here = cls.server()
        cls.there = cls.worker()

    def test_put_in_one_process_hit_in_another(self):
        tokens = prompt("both ways", 6 * CHUNK)
        self.assertEqual(self.here.retrieve(tokens), (0, 0))
        self.assertEqual(self.there.ask("store", tokens), 6)
        self.assertEqual(self.here.retrieve(tokens), (6, 0))
        longer = tokens + prompt("more", 3 * CHUNK)
        self.here.store(longer)
        self.there.ask("forget")
        self.assertEqual(self.there.ask("retrieve", longer), [9, 0])
        self.assertTrue(self.here.manager.memcheck())
        self.assert_daemon_clean()

    def test_only_the_same_share(self):
        tokens = prompt("same", 2 * CHUNK)
        self.there.ask("store", tokens, salt="s", world_size=2)
        for what, of in (
            ("model", {"model": "other", "salt": "s", "world_size": 2}),
            ("salt", {"salt": "t", "world_size": 2}),
            ("no salt", {"world_size": 2}),
            ("rank", {"salt": "s", "world_size": 2, "rank": 1}),
            ("tp size", {"salt": "s", "world_size": 4}),
            ("group", {"salt": "s", "world_size": 2, "group": 1}),
            ("dtype", {"salt": "s", "world_size": 2, "dtype": "float16"}),
        ):
            with self.subTest(what):
                self.assertEqual(self.here.retrieve(tokens, **of), (0, 0))
        for what, changes in (
            ("revision", {"models": {"tiny": {"revision": "r2", "adapter": ""}}}),
            ("adapter", {"models": {"tiny": {"revision": "r1", "adapter": "lora"}}}),
            ("the daemon's salt", {"salt": "s"}),
            ("tenant", {"tenant": "other"}),
        ):
            with self.subTest(what):
                other = ServerBed(self.params(**changes))
                try:
                    self.assertEqual(other.retrieve(tokens, salt="s", world_size=2), (0, 0))
                    other.store(tokens, salt="s", world_size=2)
                    other.forget()
                    self.assertEqual(other.retrieve(tokens, salt="s", world_size=2), (2, 0))
                finally:
                    other.close()
        self.assertEqual(self.here.retrieve(tokens, salt="s", world_size=2), (2, 0))

    def test_a_model_of_which_nothing_is_said_is_not_kept(self):
        tokens = prompt("unknown", 2 * CHUNK)
        with self.assertLogs("prefixd.lmcache", "WARNING") as said:
            self.here.store(tokens, model="unknown")
        self.assertIn("models: 'unknown' is not among them", " ".join(said.output))
        self.here.forget()
        self.assertEqual(self.here.retrieve(tokens, model="unknown"), (0, 0))
        self.here.store(tokens, model="other")
        self.here.forget()
        self.assertEqual(self.here.retrieve(tokens, model="other"), (2, 0))


class Adapter(Case):
    """The adapter's own calls, as the controllers make them."""

    def setUp(self):
        self.bed = self.server()
        self.adapter = self.bed.adapter

    def objects(self, keys):
        return self.bed.manager.reserve_write(keys, self.bed.layout())

    def told(self, fd):
        """Waits until the event is told, and takes it."""
        self.assertTrue(select.select([fd], [], [], 30)[0])
        os.eventfd_read(fd)

    def test_loaded_by_the_factory_with_three_events(self):
        self.assertIsInstance(self.adapter, PrefixdL2Adapter)
        fds = {
            self.adapter.get_store_event_fd(),
            self.adapter.get_lookup_and_lock_event_fd(),
            self.adapter.get_load_event_fd(),
        }
        self.assertEqual(len(fds), 3)
        self.assertTrue(self.adapter.report_status()["is_healthy"])

    def test_each_result_comes_once_and_is_told(self):
        adapter = PrefixdL2Adapter(PrefixdL2AdapterConfig.from_dict(self.params()))
        self.addCleanup(adapter.close)
        keys = self.bed.keys(prompt("once", 4 * CHUNK))
        objects = self.objects(keys)
        size = objects[keys[0]].get_size()
        for n, key in enumerate(keys):
            objects[key].raw_data[:size].fill_(n + 1)
        task = adapter.submit_store_task(keys[:3], [objects[key] for key in keys[:3]])
        self.told(adapter.get_store_event_fd())
        result = adapter.pop_completed_store_tasks()[task]
        self.assertTrue(result.is_successful())
        self.assertEqual(result.bytes_transferred(), 3 * size)
        self.assertEqual(adapter.pop_completed_store_tasks(), {})
        task = adapter.submit_lookup_and_lock_task([keys[3], *keys[:3]], {0: self.bed.layout()})
        self.told(adapter.get_lookup_and_lock_event_fd())
        found = adapter.query_lookup_and_lock_result(task)
        self.assertEqual([found.test(n) for n in range(4)], [False, True, True, True])
        self.assertIsNone(adapter.query_lookup_and_lock_result(task))
        task = adapter.submit_lookup_and_lock_task(keys, {})  # no layout: nothing can be said
        self.told(adapter.get_lookup_and_lock_event_fd())
        self.assertEqual(adapter.query_lookup_and_lock_result(task).popcount(), 0)
        for key in keys:
            objects[key].raw_data[:size].fill_(99)
        task = adapter.submit_load_task(keys, [objects[key] for key in keys])
        self.told(adapter.get_load_event_fd())
        loaded = adapter.query_load_result(task)
        self.assertEqual([loaded.test(n) for n in range(4)], [True, True, True, False])
        self.assertIsNone(adapter.query_load_result(task))
        self.assertEqual([int(objects[key].raw_data[:size].float().mean()) for key in keys], [1, 2, 3, 99])
        adapter.submit_unlock(keys)
        adapter.delete(keys)
        self.assertEqual(adapter.get_usage().usage_fraction, -1.0)
        self.bed.manager.finish_write(keys)
        self.assert_daemon_clean()

    def test_an_object_that_is_not_as_large_as_its_layout_is_not_kept(self):
        keys = self.bed.keys(prompt("narrow", 2 * CHUNK))
        objects = self.objects(keys)
        objects[keys[0]].set_used_size(100)
        adapter = PrefixdL2Adapter(PrefixdL2AdapterConfig.from_dict(self.params()))
        self.addCleanup(adapter.close)
        task = adapter.submit_store_task(keys, [objects[key] for key in keys])
        self.told(adapter.get_store_event_fd())
        self.assertFalse(adapter.pop_completed_store_tasks()[task].is_successful())
        task = adapter.submit_lookup_and_lock_task(keys, {0: self.bed.layout()})
        self.told(adapter.get_lookup_and_lock_event_fd())
        found = adapter.query_lookup_and_lock_result(task)
        self.assertEqual([found.test(0), found.test(1)], [False, True])
        self.bed.manager.finish_write(keys)

    def test_several_shapes_in_one_object(self):
        from lmcache.v1.distributed.api import MemoryLayoutDesc

        layout = MemoryLayoutDesc(
            [torch.Size([2, 2, CHUNK, 32]), torch.Size([2, 1, CHUNK, 16])], [torch.bfloat16] * 2
        )
        keys = self.bed.keys(prompt("groups", CHUNK))
        objects = self.bed.manager.reserve_write(keys, layout)
        adapter = PrefixdL2Adapter(PrefixdL2AdapterConfig.from_dict(self.params()))
        self.addCleanup(adapter.close)
        adapter.submit_store_task(keys, [objects[key] for key in keys])
        self.told(adapter.get_store_event_fd())
        for wanted, of in ((1, layout), (0, self.bed.layout())):
            task = adapter.submit_lookup_and_lock_task(keys, {0: of})
            self.told(adapter.get_lookup_and_lock_event_fd())
            self.assertEqual(adapter.query_lookup_and_lock_result(task).popcount(), wanted)
        self.bed.manager.finish_write(keys)

    def test_what_is_missing_or_wrong_is_refused_by_name(self):
        given = self.params()
        PrefixdL2AdapterConfig.from_dict(given)
        for field in ("tenant", "salt", "hash_algorithm", "chunk_size", "models"):
            with self.subTest(field), self.assertRaises(IdentityError) as caught:
                PrefixdL2AdapterConfig.from_dict({key: value for key, value in given.items() if key != field})
            self.assertEqual(caught.exception.field, field)
        for field in ("revision", "adapter"):
            model = {key: value for key, value in given["models"]["tiny"].items() if key != field}
            with self.subTest(field), self.assertRaises(IdentityError) as caught:
                PrefixdL2AdapterConfig.from_dict({**given, "models": {"tiny": model}})
            self.assertEqual(caught.exception.field, field)
        with self.assertRaises(ValueError) as caught:
            ServerBed({**given, "models": {"tiny": {"revision": "r1"}}})
        self.assertIn("adapter", str(caught.exception))


class Failures(Case):
    """Whatever the daemon does: every task ends, in time, and LMCache's controllers go on."""

    def setUp(self):
        self.bed = self.server(**HASTY)
        self.tokens = prompt(self.id(), 4 * CHUNK)
        self.bed.store(self.tokens)
        self.bed.forget()
        self.assert_hits(4)

    def assert_hits(self, chunks):
        until = time.monotonic() + 15
        while True:
            self.bed.forget()
            found = self.bed.retrieve(self.tokens)
            if found == (chunks, 0) or time.monotonic() > until:
                break
            time.sleep(0.1)
        self.assertEqual(found, (chunks, 0))

    def all_tasks_end(self):
        self.bed.forget()
        start = time.monotonic()
        self.assertEqual(self.bed.retrieve(self.tokens), (0, 0))
        self.assertLess(time.monotonic() - start, HASTY["lookup_deadline"] + HASTY["deadline"] + SLACK)
        start = time.monotonic()
        self.assertEqual(self.bed.store(prompt(f"{start}", 3 * CHUNK)), 3)
        self.assertLess(time.monotonic() - start, HASTY["put_deadline"] + SLACK)

    def test_stopped_daemon(self):
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            self.all_tasks_end()
            self.all_tasks_end()
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assert_hits(4)
        self.assertTrue(self.bed.manager.memcheck())
        self.assert_daemon_clean()

    def test_killed_daemon(self):
        self.daemon.kill()
        try:
            self.all_tasks_end()
        finally:
            self.daemon.start()
        time.sleep(1.1)  # the client asks once a second whether the daemon is there again
        self.assertEqual(self.bed.retrieve(self.tokens), (0, 0))
        self.bed.store(self.tokens)
        self.assert_hits(4)
        self.assertTrue(self.bed.manager.memcheck())
        self.assert_daemon_clean()

    def test_close_while_the_daemon_stands_still(self):
        adapter = PrefixdL2Adapter(PrefixdL2AdapterConfig.from_dict(self.params()))
        keys = self.bed.keys(self.tokens)
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                adapter.submit_lookup_and_lock_task(keys, {0: self.bed.layout()})
            start = time.monotonic()
            adapter.close()
            self.assertLess(time.monotonic() - start, 5 + 3 + SLACK)
            task = adapter.submit_lookup_and_lock_task(keys, {0: self.bed.layout()})
            self.assertEqual(adapter.query_lookup_and_lock_result(task).popcount(), 0)
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)


class SmallPool(Case):
    pool = {"pool_blocks": 24}

    def test_no_wrong_bytes(self):
        here, there = self.server(), self.worker()
        prompts = [prompt(f"small {n % 3}", 2 * CHUNK) + prompt(f"tail {n}", 4 * CHUNK) for n in range(16)]
        hits, wrong = 0, 0
        for n in range(48):
            for ask, tokens in (
                (self.local(here), prompts[n * 5 % 16]),
                (there.ask, prompts[(n * 5 - n % 3) % 16]),
            ):
                found = ask("retrieve", tokens)
                hits, wrong = hits + found[0], wrong + found[1]
                ask("store", tokens)
                ask("forget")
        self.assertEqual(wrong, 0)
        self.assertGreater(hits, 0)
        removed = self.daemon.ctl("status", "--json")["removed_blocks"]["device"]
        self.assertGreater(sum(removed.values()), 24)
        self.assert_daemon_clean()

    @staticmethod
    def local(bed):
        return lambda what, *args: getattr(bed, what)(*args)


if __name__ == "__main__":
    unittest.main()
