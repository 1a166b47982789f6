"""The vLLM connector's rules, one by one: with requests made by hand and a real daemon, without an engine."""

import os
import signal
import sys
import time
import unittest
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lib")]

import prefixd  # noqa: E402
import torch  # noqa: E402
import vllm_fakes as fakes  # noqa: E402
from prefixd_vllm.connector import PrefixdConnector  # noqa: E402
from prefixd_vllm.layout import Pages, UnsupportedLayout, check_config, runs  # noqa: E402
from prefixd_vllm.meta import Meta, Save  # noqa: E402
from prefixd_vllm.settings import Settings  # noqa: E402
from prefixd_vllm.stats import PrefixdStats  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowSpec  # noqa: E402

from daemon import Daemon  # noqa: E402

BLOCK = fakes.BLOCK


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def connected(daemon):
    """A client; the daemon's socket may be there a moment before the daemon listens."""
    client = prefixd.Client(daemon.socket, deadline=5.0)

    def connect():
        try:
            client.connect()
        except prefixd.PrefixdError:
            return False
        return True

    assert until(connect), daemon.text()
    return client


def store(daemon, name, n, filling=1):
    """Blocks of a request of this name, put there by somebody else."""
    with connected(daemon) as client:
        space = client.open(fakes.options())
        with space.match(fakes.OWNER, digests=fakes.digests(name, n)) as lease:
            at = len(lease.slots)
            while at < n:
                todo = lease.reserve(n - at)
                for slot in todo.slots:
                    space.pool[int(slot)][:] = filling
                lease.commit(len(todo.slots))
                at += len(todo.slots)


class Live(unittest.TestCase):
    settings = {"pool_blocks": 256}

    def setUp(self):
        self.daemon = Daemon(**self.settings).start()
        self.addCleanup(self.daemon.stop)
        self.log = fakes.Log()

    def side(self, settings=None, **more):
        side = fakes.scheduler(self.daemon, self.log, settings, **more)
        self.addCleanup(side.close)
        side.new(fakes.Request("first", 64))
        self.assertTrue(until(lambda: side._link.session is not None), self.log.lines)
        return side

    def status(self):
        return self.daemon.ctl("status", "--json")

    def leases(self):
        return self.status()["leases"]

    def lookups(self):
        return self.status()["counters"]["lookups"]


class Matching(Live):
    def test_repeated_calls_are_harmless(self):
        store(self.daemon, "a", 5)
        side, request = self.side(), fakes.Request("a", 5 * BLOCK + 7)
        before = self.lookups()
        answers = {side.matched(request, 0) for _ in range(50)}
        self.assertEqual(answers, {(5 * BLOCK, True)})
        self.assertEqual((self.leases(), self.lookups() - before), (1, 1))
        side.finished(request, [])
        self.assertEqual(self.leases(), 0)

    def test_one_token_is_always_left_to_compute(self):
        store(self.daemon, "a", 5)
        side = self.side()
        self.assertEqual(side.matched(fakes.Request("a", 5 * BLOCK), 0), (4 * BLOCK, True))
        self.assertEqual(side.matched(fakes.Request("a", 5 * BLOCK + 1), 0), (5 * BLOCK, True))
        self.assertEqual(side.matched(fakes.Request("a", BLOCK), 0), (0, False))

    def test_only_what_the_engine_lacks(self):
        store(self.daemon, "a", 5)
        side = self.side()
        self.assertEqual(side.matched(fakes.Request("a", 200), 2 * BLOCK), (3 * BLOCK, True))
        request = fakes.Request("a", 200)
        self.assertEqual(side.matched(request, 5 * BLOCK), (0, False))
        self.assertEqual(side.matched(fakes.Request("b", 200), 0), (0, False))
        self.assertEqual(self.leases(), 1)

    def test_bounds_that_the_engine_sets(self):
        store(self.daemon, "a", 5)
        side = self.side()
        bounded = fakes.Request("a", 200, num_publishable_block_hashes=2)
        self.assertEqual(side.matched(bounded, 0), (2 * BLOCK, True))
        self.assertEqual(side.matched(fakes.Request("a", 200, skip_reading_prefix_cache=True), 0), (0, False))

    def test_a_request_scheduled_without_a_load_holds_nothing(self):
        store(self.daemon, "a", 5)
        side, request = self.side(), fakes.Request("a", 200)
        side.matched(request, 0)
        self.assertEqual(self.leases(), 1)
        side.allocated(request, list(range(7)), 0)
        self.assertEqual(self.leases(), 0)

    def test_a_request_that_waits_long_holds_nothing(self):
        store(self.daemon, "a", 5)
        side, request = self.side({"hold_ms": 50}), fakes.Request("a", 200)
        side.matched(request, 0)
        side.step(SimpleNamespace(num_scheduled_tokens={}))
        self.assertEqual(self.leases(), 1)
        time.sleep(0.06)
        side.step(SimpleNamespace(num_scheduled_tokens={}))
        self.assertEqual(self.leases(), 0)
        self.assertEqual(side.matched(request, 0), (5 * BLOCK, True))

    def test_blocks_are_held_while_they_are_read(self):
        store(self.daemon, "a", 5)
        side, request = self.side(), fakes.Request("a", 200)
        side.matched(request, 0)
        side.allocated(request, list(range(10, 17)), 5 * BLOCK)
        (load,) = side.step(SimpleNamespace(num_scheduled_tokens={})).loads
        self.assertEqual((load.blocks, len(load.slots[0])), (list(range(10, 15)), 5))
        self.assertFalse(
            side.finished(request, []), "aborted in mid-load: the engine waits for the load itself"
        )
        self.assertEqual(self.leases(), 1)
        side.received([request.request_id], [], set())
        self.assertEqual(self.leases(), 0)

    def test_a_failed_load_is_not_tried_again(self):
        store(self.daemon, "a", 5)
        side, request = self.side(), fakes.Request("a", 200)
        side.matched(request, 0)
        side.allocated(request, list(range(10, 17)), 5 * BLOCK)
        side.received([request.request_id], [], {12})
        self.assertEqual(side.matched(request, 0), (0, False))
        self.assertEqual(side.matched(fakes.Request("a", 200), 0), (5 * BLOCK, True))

    def test_a_load_that_cannot_be_planned_is_told_as_failed(self):
        store(self.daemon, "a", 5)
        side, request = self.side(), fakes.Request("a", 200)
        side.matched(request, 0)
        side.allocated(request, list(range(3)), 5 * BLOCK)  # fewer blocks than tokens
        (load,) = side.step(SimpleNamespace(num_scheduled_tokens={})).loads
        self.assertEqual((load.slots, load.req_id), ([], request.request_id))

    def test_a_daemon_that_hangs_delays_no_call_for_long(self):
        side = self.side({"lookup_deadline_ms": 20})
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.daemon.process.pid, signal.SIGCONT)
        took = []
        for i in range(20):
            begin = time.monotonic()
            self.assertEqual(side.matched(fakes.Request(f"h{i}", 200), 0), (0, False))
            took.append(time.monotonic() - begin)
        self.assertLess(max(took), 0.2)
        self.assertLess(sum(took[5:]), 0.05, "it goes on asking one that does not answer")

    def test_without_a_daemon_everything_is_a_miss(self):
        side, request = self.side(), fakes.Request("a", 200)
        store(self.daemon, "a", 5)
        self.daemon.kill()
        begin = time.monotonic()
        self.assertEqual([side.matched(fakes.Request("a", 200), 0) for _ in range(100)], [(0, False)] * 100)
        self.assertLess(time.monotonic() - begin, 1.0)
        self.daemon.start()
        store(self.daemon, "a", 5)
        self.assertTrue(until(lambda: side.matched(request, 0) == (5 * BLOCK, True)), self.log.lines)

    def test_answers_that_come_late_leave_no_lease(self):
        store(self.daemon, "a", 5)
        side = self.side({"lookup_deadline_ms": 10})
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        for _ in range(6):
            side.matched(fakes.Request("a", 200), 0)
        os.kill(self.daemon.process.pid, signal.SIGCONT)
        request = fakes.Request("a", 200)
        self.assertTrue(until(lambda: side.matched(request, 0) == (5 * BLOCK, True)))
        side.finished(request, [])
        self.assertTrue(until(lambda: self.leases() == 0), self.daemon.ctl("pins"))

    def test_an_engine_with_another_seed_is_told(self):
        other = fakes.Log()
        self.side()
        stranger = fakes.scheduler(self.daemon, other, namespaces=lambda: [fakes.options(probe=b"q" * 32)])
        self.addCleanup(stranger.close)
        stranger.new(fakes.Request("x", 64))
        self.assertTrue(until(lambda: any("PYTHONHASHSEED" in line for line in other.lines)), other.lines)
        self.assertFalse(any("PYTHONHASHSEED" in line for line in self.log.lines))

    def test_after_a_reset_nothing_stored_is_used(self):
        store(self.daemon, "a", 5)
        side, request = self.side(), fakes.Request("a", 200)
        self.assertEqual(side.matched(request, 0), (5 * BLOCK, True))
        side.reset(lambda: [fakes.options("r1+reset-1")])
        self.assertEqual([side.matched(request, 0) for _ in range(3)][-1][0] or 0, 0)
        self.assertTrue(until(lambda: side._link.session is not None))
        self.assertEqual(side.matched(fakes.Request("a", 200), 0), (0, False))
        self.assertEqual(self.leases(), 0)


class LowerTiers(Live):
    settings = {"pool_blocks": 64, "host_blocks": 256, "prefill_rate": 1}

    def test_blocks_come_up_while_the_request_waits(self):
        store(self.daemon, "a", 32)
        for i in range(4):
            store(self.daemon, f"push {i}", 32)
        self.assertTrue(until(lambda: self.status()["tiers"]["host"]["blocks"] >= 32))
        side, request = self.side({"lower_tier_ms": 5000}), fakes.Request("a", 32 * BLOCK + 1)
        answers = []
        self.assertTrue(until(lambda: answers.append(side.matched(request, 0)) or answers[-1][0] is not None))
        self.assertEqual(answers[-1], (32 * BLOCK, True))
        self.assertLessEqual(set(answers[:-1]), {(None, False)})
        self.assertEqual(self.leases(), 1)
        side.finished(request, [])
        self.assertEqual(self.leases(), 0)


class Slow(Live):
    """Blocks that come up slowly: a lease that is made by hand says when."""

    class Lease:
        def __init__(self, arrives):
            self.arrives, self.released = arrives, False
            self.slots = [1, 2]
            self.result = SimpleNamespace(reuse=7, loading=True)

        def load_wait(self, deadline):
            if time.monotonic() < self.arrives:
                raise prefixd.PrefixdError(prefixd.Status.DEADLINE, "not yet")

        def extend(self, deadline):
            self.slots = [1, 2, 3, 4, 5]
            return SimpleNamespace(reuse=9)

        def release(self, deadline):
            self.released = True

    def asked(self, arrives, settings):
        side, lease = self.side(settings), self.Lease(time.monotonic() + arrives)
        side._link.session.spaces[0] = SimpleNamespace(match=lambda *_, **__: lease)
        request, answers = fakes.Request("a", 200), []
        self.assertTrue(until(lambda: answers.append(side.matched(request, 0)) or answers[-1][0] is not None))
        side.finished(request, [])
        self.assertTrue(lease.released)
        return answers

    def test_the_request_waits_for_what_comes_up(self):
        answers = self.asked(0.05, {"lower_tier_ms": 5000})
        self.assertEqual(answers[-1], (5 * BLOCK, True))
        self.assertEqual(set(answers[:-1]), {(None, False)})

    def test_but_not_for_ever(self):
        begin = time.monotonic()
        answers = self.asked(60.0, {"lower_tier_ms": 50})
        self.assertEqual(answers[-1], (2 * BLOCK, True))
        self.assertEqual(set(answers[:-1]), {(None, False)})
        self.assertLess(time.monotonic() - begin, 2.0)


class Saving(Live):
    """What the scheduler's half tells the workers to save."""

    def output(self, side, request, scheduled, blocks=20):
        state = SimpleNamespace(resolve_block_ids=lambda _: (list(range(blocks)),))
        out = SimpleNamespace(
            num_scheduled_tokens={request.request_id: scheduled}, kv_connector_block_state=state
        )
        meta = side.step(out)
        request.num_computed_tokens += scheduled
        return meta.saves

    def test_whole_blocks_when_they_are_computed(self):
        side, request = self.side(), fakes.Request("a", 100)
        side.new(request)
        told = [
            (save.start, len(save.keys), save.blocks)
            for n in (20, 50, 30)
            for save in self.output(side, request, n)
        ]
        self.assertEqual(told, [(0, 2, [0, 1]), (2, 1, [2])])

    def test_answers_a_few_blocks_at_a_time_and_the_rest_at_the_end(self):
        side, request = self.side({"save_every": 2}), fakes.Request("a", 40)
        side.new(request)
        self.assertEqual([save.start for save in self.output(side, request, 40)], [0])
        told = []
        for _ in range(90):
            request.num_tokens += 1
            request.block_hashes = fakes.digests("a", request.num_tokens // BLOCK)
            told += [(save.start, len(save.keys)) for save in self.output(side, request, 1)]
        self.assertEqual(told, [(1, 2)])
        request.num_tokens += 1
        request.status = SimpleNamespace(name="FINISHED_STOPPED")
        self.assertTrue(side.finished(request, list(range(5))))
        meta = side.step(SimpleNamespace(num_scheduled_tokens={}))
        self.assertEqual([(save.start, len(save.keys), save.blocks) for save in meta.saves], [(3, 1, [3])])
        self.assertEqual(meta.delayed, {request.request_id})
        self.assertTrue(side.frees_pending)
        side.received([], [request.request_id], set())
        self.assertFalse(side.frees_pending)

    def test_an_aborted_request_adds_nothing(self):
        side, request = self.side(), fakes.Request("a", 200)
        side.new(request)
        self.output(side, request, 40)
        request.num_tokens, request.num_computed_tokens = 300, 299  # more, that nobody was told of
        request.block_hashes = fakes.digests("a", 9)
        request.status = SimpleNamespace(name="FINISHED_ABORTED")
        self.assertTrue(side.finished(request, list(range(7))), "the workers may be reading its blocks")
        self.assertEqual(side.step(SimpleNamespace(num_scheduled_tokens={})).saves, [])

    def test_a_request_in_mid_load_is_not_waited_for_twice(self):
        """The engine waits for the load by itself; told of it as saved too, it would end."""
        store(self.daemon, "a", 5)
        side, request = self.side(), fakes.Request("a", 200)
        side.new(request)
        self.output(side, request, 40)
        side.matched(request, 0)
        side.allocated(request, list(range(10, 17)), 5 * BLOCK)
        self.assertFalse(side.finished(request, list(range(7))))
        self.assertEqual(side.step(SimpleNamespace(num_scheduled_tokens={})).delayed, set())

    def test_what_was_found_is_not_saved_again(self):
        store(self.daemon, "a", 5)
        side, request = self.side(), fakes.Request("a", 190)
        side.matched(request, 0)
        request.num_computed_tokens = 5 * BLOCK
        self.assertEqual(self.output(side, request, 30), [])

    def test_a_preempted_request_begins_anew(self):
        side, request = self.side(), fakes.Request("a", 100)
        side.new(request)
        self.assertEqual(len(self.output(side, request, 70)), 1)
        out = SimpleNamespace(num_scheduled_tokens={}, preempted_req_ids={request.request_id})
        self.assertEqual(side.step(out).preempted, {request.request_id})
        request.num_computed_tokens = 0
        self.assertEqual([(save.start, len(save.keys)) for save in self.output(side, request, 100)], [(0, 3)])

    def test_roles(self):
        store(self.daemon, "a", 5)
        reader, writer = self.side(saves=False), self.side(loads=False)
        request = fakes.Request("a", 200)
        self.assertEqual(reader.matched(request, 0), (5 * BLOCK, True))
        self.assertEqual(self.output(reader, fakes.Request("b", 100), 100), [])
        self.assertEqual(writer.matched(request, 0), (0, False))


class Working(Live):
    """The workers' half: bytes."""

    def worker(self, kv, **more):
        side = fakes.worker(self.daemon, self.log, kv, **more)
        self.addCleanup(side.close)
        side.options(Meta(options=[fakes.options()]))
        self.assertTrue(until(lambda: side._link.session is not None), self.log.lines)
        return side

    def save(self, side, name, blocks, req_id="r"):
        meta = Meta(saves=[Save(req_id, 0, fakes.digests(name, len(blocks)), blocks)], delayed={req_id})
        side.save(meta)
        self.assertTrue(until(lambda: self.done(side, meta, 0, req_id)))

    def done(self, side, meta, which, req_id):
        return req_id in side.results(meta if req_id not in side._delayed else None, ())[which]

    def load(self, side, name, blocks, **changes):
        """Through the scheduler's half, as the engine does it; returns the blocks told as not loaded."""
        planner, request = self.side(), fakes.Request(name, len(blocks) * BLOCK + 1)
        self.assertEqual(planner.matched(request, 0), (len(blocks) * BLOCK, True))
        planner.allocated(request, blocks, len(blocks) * BLOCK)
        (load,) = planner.step(SimpleNamespace(num_scheduled_tokens={})).loads
        for key, value in changes.items():
            setattr(load, key, value(getattr(load, key)))
        side.load(Meta(loads=[load]))
        self.assertTrue(until(lambda: load.req_id in side.results(None, ())[1]))
        planner.received([load.req_id], [], set())
        return side.bad_blocks()

    def rows(self, kv, blocks):
        return [[kv[name][block].clone() for block in blocks] for name in sorted(kv)]

    def assert_same(self, one, two):
        for a, b in zip(one, two):
            for x, y in zip(a, b):
                self.assertTrue(torch.equal(x, y))

    def test_bytes_go_from_one_worker_to_another(self):
        blocks, places = [7, 8, 9, 3, 30, 31], [1, 2, 20, 21, 22, 5]
        for order in ("LBHNC", "LBNHC", "BLHNC", "BLNHC"):
            with self.subTest(order):
                here, there = fakes.tensors(order=order, seed=1), fakes.tensors(order=order)
                a, b = self.worker(here), self.worker(there)
                self.save(a, order, blocks)
                self.assertEqual(self.load(b, order, places), set())
                self.assert_same(self.rows(here, blocks), self.rows(there, places))
                untouched = sorted(set(range(64)) - set(places))
                self.assertEqual(sum(float(kv[untouched].abs().sum()) for kv in there.values()), 0.0)
        self.assertEqual(self.leases(), 0)
        self.assertIn("clean", self.daemon.ctl("audit"))

    def test_what_others_have_stored_is_not_copied_again(self):
        here, there = fakes.tensors(seed=1), fakes.tensors()
        a, b = self.worker(here), self.worker(there)
        self.save(a, "a", [1, 2, 3], req_id="first")
        self.save(a, "a", [1, 2, 3, 44, 45, 46], req_id="second")
        self.assertEqual(self.status()["counters"]["committed_blocks"], 6)
        self.assertEqual(self.load(b, "a", [4, 5, 6, 7, 8, 9]), set())
        self.assert_same(self.rows(here, [1, 2, 3, 44, 45, 46]), self.rows(there, [4, 5, 6, 7, 8, 9]))

    def test_blocks_are_kept_until_their_save_has_ended(self):
        a = self.worker(fakes.tensors(seed=1), settings={"save_deadline_ms": 10_000})
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        meta = Meta(saves=[Save("r", 0, fakes.digests("a", 3), [1, 2, 3])], delayed={"r"})
        a.save(meta)
        self.assertEqual(a.results(meta, {"r"})[0], set())
        time.sleep(0.1)
        self.assertEqual(a.results(None, ())[0], set())
        os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assertTrue(until(lambda: a.results(None, ())[0] == {"r"}))
        self.assertEqual(self.status()["counters"]["committed_blocks"], 3)

    def test_what_is_in_doubt_is_told_as_not_loaded(self):
        here = fakes.tensors(seed=1)
        a = self.worker(here)
        self.save(a, "a", [1, 2, 3])
        wrong = {
            "another life": {"boot": lambda boot: bytes(16)},
            "no plan": {"slots": lambda slots: []},
            "fewer slots": {"slots": lambda slots: [slots[0][:2]]},
            "a slot outside": {"slots": lambda slots: [[slots[0][0], 10_000, slots[0][2]]]},
            "reused since": {"reuse": lambda reuse: [0]},
        }
        for name, change in wrong.items():
            with self.subTest(name):
                b = self.worker(fakes.tensors(), settings={"load_deadline_ms": 100})
                self.assertEqual(self.load(b, "a", [4, 5, 6], **change), {4, 5, 6})
                self.assertEqual(self.load(b, "a", [4, 5, 6]), set())

    def test_a_cancelled_save_stores_nothing_later(self):
        a = self.worker(fakes.tensors(seed=1))
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        a.save(Meta(saves=[Save("r", 0, fakes.digests("a", 3), [1, 2, 3])]))
        time.sleep(0.05)
        begin = time.monotonic()
        a.preempted(Meta(preempted={"r"}))
        self.assertLess(time.monotonic() - begin, 0.1, "a preemption waited for the daemon")
        os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.save(a, "b", [1])  # behind it in the queue
        self.assertEqual(self.status()["counters"]["committed_blocks"], 1)
        self.assertTrue(until(lambda: self.leases() == 0))

    def test_after_a_reset_nothing_computed_before_is_saved(self):
        """A save that waits in the queue would name what old weights computed as the new ones' work."""
        a = self.worker(fakes.tensors(seed=1), settings={"save_deadline_ms": 10_000})
        other = fakes.options(revision="after the reset")
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        saves = [Save(f"r{i}", 0, fakes.digests(f"s{i}", 3), [3 * i, 3 * i + 1, 3 * i + 2]) for i in range(2)]
        a.save(Meta(saves=saves, delayed={"r0", "r1"}))
        time.sleep(0.05)  # the first one asks the daemon, the second is behind it
        a.options(Meta(options=[other]))
        os.kill(self.daemon.process.pid, signal.SIGCONT)
        meta, told = Meta(delayed={"r0", "r1"}), set()
        self.assertTrue(until(lambda: told.update(a.results(meta, ())[0]) or told == {"r0", "r1"}))
        self.assertTrue(until(lambda: a._link.session is not None), self.log.lines)
        self.save(a, "behind", [1], req_id="later")
        self.assertEqual(self.status()["counters"]["committed_blocks"], 1)
        with connected(self.daemon) as client:
            space = client.open(other)
            self.assertEqual(space.probe(fakes.OWNER, digests=fakes.digests("behind", 1)).n_device, 1)
            self.assertEqual(space.probe(fakes.OWNER, digests=fakes.digests("s1", 3)).n_device, 0)

    def test_a_thread_that_cannot_be_had_keeps_no_blocks(self):
        a = self.worker(fakes.tensors(seed=1))
        a._start = lambda: (_ for _ in ()).throw(RuntimeError("can't start new thread"))
        meta = Meta(saves=[Save("r", 0, fakes.digests("a", 3), [1, 2, 3])], delayed={"r"})
        self.assertRaises(RuntimeError, a.save, meta)
        self.assertEqual(a.results(meta, {"r"})[0], {"r"})

    def test_without_a_daemon_saves_end_and_blocks_become_free(self):
        a = self.worker(fakes.tensors(seed=1))
        self.daemon.kill()
        begin = time.monotonic()
        for i in range(20):
            self.save(a, f"s{i}", [1, 2, 3], req_id=f"r{i}")
        self.assertLess(time.monotonic() - begin, 3.0)
        self.daemon.start()
        self.assertTrue(until(lambda: a._link.session is not None))
        self.save(a, "again", [1, 2, 3], req_id="again")
        self.assertEqual(self.status()["counters"]["committed_blocks"], 3)

    def test_a_full_pool_drops_what_does_not_fit(self):
        a = self.worker(fakes.tensors(n_blocks=512, seed=1))
        with connected(self.daemon) as client:
            space = client.open(fakes.options())
            with space.match(fakes.OWNER, digests=fakes.digests("held", 250)) as lease:
                lease.reserve(250)
                self.save(a, "a", list(range(100)))
                self.assertLessEqual(self.status()["counters"]["committed_blocks"], 6)
        self.save(a, "a", list(range(100)), req_id="later")
        self.assertEqual(self.status()["tiers"]["device"]["blocks"], 100)


class Layouts(unittest.TestCase):
    def refused(self, word, config=None, cache=None):
        with self.assertRaises(UnsupportedLayout) as caught:
            check_config(config or fakes.vllm_config(), cache or fakes.cache_config())
        self.assertIn(word, str(caught.exception))

    def test_what_is_supported_is_not_refused(self):
        for order in ("LBHNC", "LBNHC", "BLHNC", "BLNHC"):
            check_config(fakes.vllm_config(), fakes.cache_config(order=order))

    def test_unsupported_layouts_are_refused_by_name(self):
        given = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float32}
        self.refused("MLAAttentionSpec", cache=fakes.cache_config(one=MLAAttentionSpec(**given)))
        self.refused(
            "SlidingWindowSpec", cache=fakes.cache_config(one=SlidingWindowSpec(**given, sliding_window=128))
        )
        self.refused("2 K/V cache groups", cache=fakes.cache_config(groups=2))
        self.refused("sliding windows", cache=fakes.cache_config(one=fakes.spec(sliding_window=64)))
        self.refused("non-causal", cache=fakes.cache_config(one=fakes.spec(non_causal=True)))
        self.refused("quantized", cache=fakes.cache_config(one=fakes.spec(kv_quant_mode=1)))
        self.refused("padded", cache=fakes.cache_config(one=fakes.spec(page_size_padded=1 << 20)))
        self.refused("elements", cache=fakes.cache_config(one=fakes.spec(head_size_v=16)))
        self.refused("VLLM_KV_CACHE_LAYOUT", cache=fakes.cache_config(order="LHBNC"))
        other = fakes.cache_config()
        other.hash_block_size = 16
        self.refused("block hashes", cache=other)

    def test_unsupported_settings_are_refused_by_name(self):
        for word, change in {
            "recompute": {"kv_transfer_config__kv_load_failure_policy": "fail"},
            "pipeline parallelism": {"parallel_config__pipeline_parallel_size": 2},
            "decode context": {"parallel_config__decode_context_parallel_size": 2},
            "speculative": {"speculative_config": SimpleNamespace()},
            "encoder-decoder": {"model_config__is_encoder_decoder": True},
        }.items():
            self.refused(word, fakes.vllm_config(**change))

    def test_tensors_that_are_not_as_configured_are_refused(self):
        good = fakes.tensors()
        Pages.of(good, fakes.cache_config())
        name = "layers.1"
        for word, kv in {
            "share or lack": {key: good[key] for key in list(good)[:2]},
            "share one": {**good, name: good["layers.0"]},
            "float16": {**good, name: good[name].half()},
            "blocks first": {**good, name: good[name][:8]},
            "do not lie together": fakes.tensors(order="LHBNC"),
            "bytes a block": {**good, name: torch.zeros(64, 2, 16, 64)},
            "meta": {**good, name: torch.zeros(64, 2, 32, 64, device="meta")},
        }.items():
            with self.subTest(word), self.assertRaises(UnsupportedLayout) as caught:
                Pages.of(kv, fakes.cache_config())
            self.assertIn(word, str(caught.exception))

    def test_runs(self):
        self.assertEqual(
            list(runs([4, 5, 6, 9, 10, 2], [1, 2, 4, 5, 6, 7])), [(4, 1, 2), (6, 4, 1), (9, 5, 2), (2, 7, 1)]
        )
        self.assertEqual(list(runs([], [])), [])


class Guards(unittest.TestCase):
    """Nothing is raised into the engine once it runs."""

    def connector(self, **changes):
        return PrefixdConnector(fakes.vllm_config(**changes), KVConnectorRole.SCHEDULER, fakes.cache_config())

    def test_start_refuses_what_is_not_said(self):
        for extra, word in (
            ({"tenant": "default", "salt": ""}, "revision"),
            ({"salt": "", "revision": "r"}, "tenant"),
            ({"tenant": "default", "revision": "r"}, "salt"),
            ({"tenant": "default", "salt": "", "revision": "r", "soket": "x"}, "soket"),
            (
                {"tenant": "default", "salt": "", "revision": "r", "lookup_deadline_ms": 0},
                "lookup_deadline_ms",
            ),
        ):
            with self.subTest(word), self.assertRaises(ValueError) as caught:
                self.connector(kv_transfer_config__kv_connector_extra_config=extra)
            self.assertIn(word, str(caught.exception))
        self.connector().shutdown()

    def test_a_broken_half_raises_nothing(self):
        connector = self.connector()
        connector.shutdown()

        class Broken:
            def __getattr__(self, name):
                raise RuntimeError("broken")

        connector._scheduler = connector._worker = Broken()
        request = fakes.Request("a", 200)
        blocks = SimpleNamespace(get_block_ids=lambda: ([1, 2],))
        output = SimpleNamespace(finished_recving=None, finished_sending=None, invalid_block_ids=None)
        connector.bind_connector_metadata(Meta())
        self.assertEqual(connector.get_num_new_matched_tokens(request, 0), (0, False))
        self.assertEqual(connector.request_finished(request, [1]), (False, None))
        self.assertIsInstance(connector.build_connector_meta(None), Meta)
        self.assertEqual(connector.get_finished(set()), (None, None))
        self.assertEqual(connector.get_block_ids_with_load_errors(), set())
        self.assertIs(connector.has_pending_block_frees(), False)
        for call in (
            lambda: connector.update_state_after_alloc(request, blocks, 32),
            lambda: connector.update_connector_output(output),
            lambda: connector.on_new_request(request),
            lambda: connector.start_load_kv(None),
            lambda: connector.handle_preemptions(Meta()),
            lambda: connector.get_kv_connector_stats(),
            connector.wait_for_save,
        ):
            self.assertIsNone(call())

    def test_statistics_add_up(self):
        one, two = PrefixdStats.of({"blocks_saved": 3}), PrefixdStats.of({"blocks_saved": 4, "loads": 1})
        self.assertEqual(one.aggregate(two).reduce(), {"blocks_saved": 7, "loads": 1})
        self.assertEqual(PrefixdConnector.build_kv_connector_stats(one.to_dict()).reduce(), one.reduce())
        self.assertFalse(one.is_empty())
        one.reset()
        self.assertTrue(one.is_empty())

    def test_settings_have_their_defaults(self):
        settings = Settings.of({"tenant": "default", "salt": ""})
        self.assertEqual((settings.lookup_deadline_ms, settings.save_generated), (20.0, True))


if __name__ == "__main__":
    unittest.main()
