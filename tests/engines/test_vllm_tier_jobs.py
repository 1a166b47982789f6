"""The helper threads of vLLM's secondary tier alone: what no daemon can be made to do at will.

Needs neither an engine nor a daemon.
"""

import sys
import threading
import time
import unittest
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
for folder in ("clients/python/src", "clients/vllm/src"):
    sys.path.insert(0, str(TREE / folder))

import numpy as np  # noqa: E402
from prefixd_vllm import tier_jobs  # noqa: E402


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


class Threads(unittest.TestCase):
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

    def begun(self, transfers):
        until = time.monotonic() + 5
        while not transfers._running:
            self.assertLess(time.monotonic(), until, "no job begins")
            time.sleep(0.0002)

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
        self.assertEqual(
            (7, True, False, keys[::2], keys[1::2]),
            (done.job_id, done.load, done.success, done.ok, done.failed),
        )

    def test_a_store_that_raises(self):
        def fails(*_):
            raise OSError("no")

        for store in (Memory(contains=fails, get=fails, put=fails), fails, None):
            transfers = self.transfers((lambda key_len: None) if store is None else store)
            transfers.submit(tier_jobs.Job(1, True, self.keys(2), [0, 1]))
            transfers.submit(tier_jobs.Job(2, False, self.keys(2), [0, 1]))
            self.assertEqual([(False, [])] * 2, [(d.success, d.ok) for d in self.wait(transfers, 2)])
            make = fails if store is fails else lambda key_len, store=store: store
            lookups = tier_jobs.Lookups(tier_jobs.Store(make), 1.0)
            lookups.ask("r", b"k" * 36)
            lookups.flush()
            until = time.monotonic() + 5
            while lookups.ask("r", b"k" * 36) is None and time.monotonic() < until:
                time.sleep(0.001)
            self.assertIs(False, lookups.ask("r", b"k" * 36))
            lookups.close()

    def test_jobs_that_cannot_be_right(self):
        def get(keys, outs):
            for out in outs:
                out(np.ones(64, np.uint8))
            return [True] * len(keys)

        transfers = self.transfers(Memory(get=get))
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
        transfers = self.transfers(
            Memory(put=lambda keys, blocks: [gate.wait(5)] * len(keys)), load_deadline=0.05
        )
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


if __name__ == "__main__":
    unittest.main()
