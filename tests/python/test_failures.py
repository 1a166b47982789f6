"""What goes wrong: daemons that stop, die, lie or say nothing, forks, and what is left open afterwards.

In every case the caller gets PrefixdError within its deadline, and the client goes on.
"""

import gc
import os
import random
import signal
import socket
import time
import unittest

import kit
import numpy as np
import prefixd
from kit import BLOCK, OWNER, Daemon, Fake
from prefixd import PrefixdError, Status, wire
from prefixd.wire import Header


def status_of(call):
    """The status that a call ends with, and how long it took."""
    start = time.monotonic()
    try:
        call()
    except PrefixdError as error:
        return error.status, time.monotonic() - start
    return Status.OK, time.monotonic() - start


class Stopped(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(pool_blocks=256).start()
        self.addCleanup(self.daemon.__exit__, None)
        self.client = prefixd.Client(self.daemon.socket, deadline=0.15)
        self.addCleanup(self.client.close)
        self.ns = self.client.open(kit.options(), deadline=5)
        self.ids = kit.store(self.ns, 1, 4)

    def pause(self):
        self.daemon.process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.go_on)

    def go_on(self):
        self.daemon.process.send_signal(signal.SIGCONT)

    def leases(self):
        return self.daemon.ctl("status", "--json")["leases"]

    def late(self, call, seconds=0.15):
        status, took = status_of(call)
        self.assertEqual(status, Status.DEADLINE)
        self.assertGreaterEqual(took, seconds - 0.001)
        self.assertLess(took, seconds + 2.0)

    def test_deadlines_hold_and_late_replies_are_skipped(self):
        self.pause()
        self.late(self.client.ping)
        self.late(lambda: self.client.ping(deadline=0.05), 0.05)
        self.late(lambda: self.ns.match(OWNER, tokens=self.ids))
        self.late(lambda: self.ns.probe(OWNER, tokens=self.ids))
        self.late(lambda: self.client.open(kit.options(model="m2")))
        before = kit.descriptors()
        self.go_on()
        self.client.ping(deadline=5)
        with self.ns.match(OWNER, tokens=self.ids, deadline=5) as lease:
            self.assertEqual(lease.result.n_device, 4)
            self.assertTrue(kit.right(lease, lease.slots, 1))
        self.client.ping(deadline=5)
        self.assertEqual(self.leases(), 0, "the lease of the late match was given back")
        self.assertEqual(kit.descriptors(), before, "those of the late OPEN were closed")
        self.assertEqual(self.client._session._late, set())

    def test_a_lease_in_doubt_can_only_be_released(self):
        for kind in ("reserve", "commit", "extend"):
            with self.subTest(kind):
                lease = self.ns.match(OWNER, tokens=kit.prompt(hash(kind) % 1000, 3 * BLOCK), deadline=5)
                lease.reserve(1, deadline=5)
                self.pause()
                self.late(getattr(lease, kind) if kind != "reserve" else lambda: lease.reserve(1))
                self.go_on()
                for call in (lease.extend, lease.commit, lease.wait, lambda: lease.reserve(1)):
                    self.assertEqual(status_of(call)[0], Status.WRONG_STATE)
                lease.release(deadline=5)
                self.assertEqual(self.leases(), 0)

    def test_a_release_without_an_answer_is_obeyed(self):
        lease = self.ns.match(OWNER, tokens=self.ids, deadline=5)
        self.pause()
        self.late(lease.release)
        self.assertTrue(lease.ended)
        self.go_on()
        self.client.ping(deadline=5)
        self.assertEqual(self.leases(), 0)

    def test_a_wait_whose_deadline_passed_leaves_the_lease_as_it_was(self):
        other = prefixd.Client(self.daemon.socket, deadline=5)
        self.addCleanup(other.close)
        ids = kit.prompt(5, BLOCK)
        first = other.open(kit.options()).match(OWNER, tokens=ids, lead=True)
        with self.ns.match(OWNER, tokens=ids, lead=True, deadline=5) as lease:
            self.pause()
            self.late(lease.wait)
            self.go_on()
            first.release()
            self.assertEqual(lease.wait(deadline=5).state, prefixd.WaitState.LEAD)

    def test_a_big_request_that_went_in_part_goes_on(self):
        keys = np.zeros((60000, 16), np.uint8)
        ns = self.client.open(kit.digests(), deadline=5)
        self.pause()
        self.late(lambda: ns.probe(OWNER, digests=keys))
        self.late(lambda: ns.probe(OWNER, digests=keys))  # none of this one has gone: it never will
        self.assertLessEqual(sum(len(c) for c in self.client._session._tx), 1 << 20)
        self.go_on()
        self.client.ping(deadline=5)
        self.assertEqual(ns.probe(OWNER, digests=keys, deadline=5).n_device, 0)

    def test_connecting_is_within_the_deadline_too(self):
        self.pause()
        client = prefixd.Client(self.daemon.socket, deadline=0.1)
        self.late(client.ping, 0.1)
        self.assertEqual(status_of(client.ping)[0], Status.GONE, "no second attempt at once")
        # A queue that is full takes no connection at all.
        full = []
        while True:
            s = socket.socket(socket.AF_UNIX)
            s.setblocking(False)
            full.append(s)
            try:
                s.connect(self.daemon.socket)
            except BlockingIOError:
                break
            if len(full) > 5000:
                self.fail("the queue of connections does not fill")
        self.late(lambda: prefixd.Client(self.daemon.socket, deadline=0.1).ping(), 0.1)
        for s in full:
            s.close()
        self.go_on()
        self.assertEqual(kit.wait_until(lambda: status_of(client.ping)[0] == Status.OK), True)


class Killed(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(pool_blocks=256).start()
        self.addCleanup(self.daemon.__exit__, None)
        self.client = prefixd.Client(self.daemon.socket, deadline=5)
        self.addCleanup(self.client.close)

    def test_a_restart_is_met_with_hello_and_open(self):
        ns = self.client.open(kit.options())
        unmapped = self.client.open(kit.options(model="m2"), map="no")
        ids = kit.store(ns, 1, 4)
        lease = ns.match(OWNER, tokens=ids)
        boot, life, view, old = self.client.boot, ns.life, lease.pool[lease.slots[0]], lease.pool
        self.daemon.kill()
        self.daemon.start()
        for call in (lease.extend, lambda: lease.reserve(1), lease.wait, lease.release):
            self.assertEqual(status_of(call)[0], Status.UNKNOWN_LEASE)
        self.assertNotEqual(self.client.boot, boot)
        self.assertTrue((view == 31 % 251).all(), "what was mapped stays readable")
        with ns.match(OWNER, tokens=ids) as again:
            self.assertEqual(again.result.n_device, 0)
            self.assertGreater(ns.life, life)
            self.assertIsNot(again.pool, old)
            self.assertIs(again.pool, ns.pool)
            self.assertTrue(old.stale(int(lease.slots[0]), again.result.reuse))
            self.assertTrue(again.pool.stale(int(lease.slots[0]), lease.result.reuse))
            todo = again.reserve(4)
            kit.fill(again, todo, 2)
            again.commit()
        self.assertTrue((view == 31 % 251).all(), "and is not the new pool")
        with ns.match(OWNER, tokens=ids) as again:
            self.assertTrue(kit.right(again, again.slots, 2))
        self.assertEqual(unmapped.probe(OWNER, tokens=ids).n_device, 0)
        self.assertTrue(lease.ended)
        self.assertEqual(self.client.quiesced().n_leases, 0, "old leases died with the old life")

    def test_connect_notices_a_restart_and_opens_all_again(self):
        one, two = self.client.open(kit.options()), self.client.open(kit.options(model="m2"))
        boot = self.client.boot
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.client.boot, boot, "nobody has asked yet")
        self.client.connect()
        self.assertNotEqual(self.client.boot, boot)
        self.assertEqual((one.life, two.life), (2, 2))
        self.client.connect()
        self.assertEqual(self.client._session.life, 2)

    def test_orphans_end_by_quiesced(self):
        ns = self.client.open(kit.options())
        lease = ns.match(OWNER, tokens=kit.store(ns, 1, 4))
        lease.extend(tokens=kit.prompt(2, 2 * BLOCK))
        lease.reserve(2)
        self.client._session.drop(prefixd.core.Lost("cut by the test"))
        self.assertTrue(lease.ended)
        self.assertEqual(status_of(lease.extend)[0], Status.UNKNOWN_LEASE)
        self.client.connect()
        self.assertEqual(self.daemon.ctl("status", "--json")["leases"], 1)
        self.assertEqual(self.client.quiesced(), (1, 2))
        self.assertEqual(self.daemon.ctl("status", "--json")["leases"], 0)

    def count_attempts(self):
        """Times at which the client tries to connect, from now on."""
        attempts = []
        link = self.client._link
        connect = link.connect
        link.connect = lambda path: (attempts.append(time.monotonic()), connect(path))[1]
        return attempts

    def test_while_no_daemon_answers_calls_hardly_try(self):
        self.client.ping()
        self.daemon.kill()
        attempts = self.count_attempts()
        start = time.monotonic()
        for _ in range(500):
            self.assertEqual(status_of(self.client.ping)[0], Status.GONE)
        took = time.monotonic() - start
        self.assertLess(len(attempts), 8 + took / 0.2)
        with self.assertRaises(PrefixdError) as caught:
            self.client.ping()
        self.assertLessEqual(caught.exception.retry_after, 0.2)
        self.daemon.start()
        self.assertTrue(kit.wait_until(lambda: status_of(self.client.ping)[0] == Status.OK))

    def test_attempts_are_at_most_five_a_second_once_it_stays_away(self):
        self.daemon.kill()
        attempts = self.count_attempts()
        kit.wait_until(lambda: (status_of(self.client.ping), len(attempts) == 9)[1], 20)
        gaps = np.diff(attempts)
        self.assertEqual(len(gaps), 8)
        self.assertGreaterEqual(gaps[0], 0.005)
        self.assertGreaterEqual(gaps[-2:].min(), 0.2)

    def test_a_daemon_that_never_was(self):
        for path in ("/nowhere/at/all", "/dev/null", "x" * 200):
            status, took = status_of(prefixd.Client(path).ping)
            self.assertEqual(status, Status.GONE)
            self.assertLess(took, 2)
        for path in ("", "a\0b"):
            with self.assertRaises(PrefixdError) as caught:
                prefixd.Client(path)
            self.assertEqual((caught.exception.status, caught.exception.field), (Status.ARGUMENT, "socket"))


class Processes(unittest.TestCase):
    def test_a_child_is_told_and_closes_nothing_of_the_parents(self):
        with Daemon(pool_blocks=64) as daemon, prefixd.Client(daemon.socket, deadline=5) as client:
            ns = client.open(kit.options())
            lease = ns.match(OWNER, tokens=kit.store(ns, 1, 2))
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    told = [status_of(call)[0] for call in (client.ping, lease.extend, lease.release)]
                    del lease  # no warning, no RELEASE
                    gc.collect()
                    client.close()
                    code = 0 if set(told) == {Status.FORKED} else 2
                finally:
                    os._exit(code)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            client.ping()
            self.assertEqual(lease.extend().n_device, 0)
            self.assertTrue(kit.right(lease, lease.slots, 1))
            self.assertEqual(client._session.life, 1)
            self.assertEqual(lease.release().hit_device_tokens, 2 * BLOCK)

    def test_a_descriptor_of_the_daemon_is_not_inherited(self):
        with Daemon(pool_blocks=64) as daemon, prefixd.Client(daemon.socket, deadline=5) as client:
            before = set(kit.descriptors())
            receive, passed = client._link.receive, []

            def spy():
                got = receive()
                passed.extend((fd, os.get_inheritable(fd)) for fd in (got[1] if got else ()))
                return got

            client._link.receive = spy
            ns = client.open(kit.options())
            self.assertEqual([inheritable for _, inheritable in passed], [False, False])
            new = set(kit.descriptors()) - before
            self.assertTrue(new)
            for fd in new:
                self.assertFalse(os.get_inheritable(fd), kit.descriptors().get(fd))
            del ns

    def test_descriptors_are_not_leaked(self):
        with Daemon(pool_blocks=64) as daemon:
            client = prefixd.Client(daemon.socket, deadline=5)
            ns = client.open(kit.options())
            before = kit.descriptors()
            for i in range(200):
                client.open(kit.options(), map=("rw", "no")[i % 2]).probe(OWNER, tokens=[1])
            gc.collect()
            self.assertEqual(kit.descriptors(), before)
            client.close()
            del client, ns
            gc.collect()
            before = kit.descriptors()
            for _ in range(20):
                with prefixd.Client(daemon.socket, deadline=5) as one:
                    one.open(kit.options()).match(OWNER, tokens=[1]).release()
            del one
            gc.collect()
            self.assertEqual(kit.descriptors(), before)


class Liars(unittest.TestCase):
    """Fake daemons.  What is expected is a status, at once, and that a right daemon is served afterwards."""

    def ask(self, answer, call, statuses, seconds=1.5, deadline=2.0):
        with Fake(answer) as fake:
            client = prefixd.Client(fake.path, deadline=deadline)
            try:
                status, took = status_of(lambda: call(client))
                self.assertIn(status, statuses)
                self.assertLess(took, seconds)
            finally:
                client.close()
            self.assertEqual(fake.errors, [])
            return fake

    def wrong_hello(self, make, statuses=(Status.PROTOCOL,), **more):
        def answer(fake, s, h, body):
            s.sendall(make(fake, h))

        self.ask(answer, lambda client: client.ping(), statuses, **more)

    def after_hello(self, make, call=lambda client: client.ping(), statuses=(Status.PROTOCOL,), **more):
        """A right HELLO, then whatever make() says."""

        def answer(fake, s, h, body):
            if h.op == wire.OPS["HELLO"].code:
                s.sendall(fake.hello(h))
            else:
                data = make(fake, h)
                if data is not None:
                    s.sendall(data)

        return self.ask(answer, call, statuses, **more)

    def test_the_fake_itself_is_believed_when_it_is_right(self):
        self.after_hello(lambda fake, h: fake.reply(h, {}), statuses=(Status.OK,))

    def test_junk_for_hello(self):
        self.wrong_hello(lambda fake, h: b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(40))
        self.wrong_hello(lambda fake, h: bytes(40))
        self.wrong_hello(lambda fake, h: fake.hello(h)[:4] + b"\3\0" + fake.hello(h)[6:])
        self.wrong_hello(lambda fake, h: fake.hello(h)[:4] + b"\2\0" + fake.hello(h)[6:])
        self.wrong_hello(lambda fake, h: fake.hello(h, max_frame=10))
        self.wrong_hello(lambda fake, h: fake.hello(h, max_keys=0))
        self.wrong_hello(lambda fake, h: fake.hello(h, version=4))
        self.wrong_hello(lambda fake, h: fake.hello(h, version=1))  # and the body is of a later one
        self.wrong_hello(lambda fake, h: fake.hello(h, version=0))
        self.wrong_hello(lambda fake, h: fake.hello(h, tenants=b"\1\0\0\0\7\0def"))
        self.wrong_hello(lambda fake, h: fake.reply(h, {}, op="PING"))
        huge = wire.header_encode(Header(1, 1 << 30, 0, 1, Fake.BOOT, 1))
        self.wrong_hello(lambda fake, h: huge)

    def test_half_a_frame(self):
        self.wrong_hello(lambda fake, h: fake.hello(h)[:-1], (Status.DEADLINE,), deadline=0.2)
        self.after_hello(lambda fake, h: fake.reply(h, {})[:39], statuses=(Status.DEADLINE,), deadline=0.2)

    def test_closed_in_the_middle(self):
        def answer(fake, s, h, body):
            s.sendall(fake.hello(h)[:50])
            s.shutdown(socket.SHUT_RDWR)

        self.ask(answer, lambda client: client.ping(), (Status.GONE,))

        def after(fake, s, h, body):
            if h.op == wire.OPS["HELLO"].code:
                s.sendall(fake.hello(h))
            elif len(fake.seen) == 3:
                s.shutdown(socket.SHUT_RDWR)
            else:
                s.sendall(fake.reply(h, {}))

        def twice(client):
            client.ping()
            client.ping()

        fake = self.ask(after, twice, (Status.OK,))
        self.assertEqual(fake.connections, 2, "asked again once, on a new connection")
        self.assertEqual([name for name, _ in fake.seen], ["HELLO", "PING", "PING", "HELLO", "PING"])

        def never(fake, s, h, body):
            if h.op == wire.OPS["HELLO"].code:
                s.sendall(fake.hello(h))
            else:
                s.shutdown(socket.SHUT_RDWR)

        fake = self.ask(never, lambda client: client.ping(), (Status.GONE,))
        self.assertEqual(fake.connections, 1, "one attempt to connect in a call")

    def test_replies_that_were_not_asked_for(self):
        self.after_hello(lambda fake, h: fake.reply(h, {}, seq=h.seq + 1))
        self.after_hello(lambda fake, h: fake.reply(h, {}, seq=0))
        self.after_hello(lambda fake, h: fake.hello(h))
        self.after_hello(lambda fake, h: fake.reply(h, {"n": 1, "events": b""}, op="CHANGES"))
        event = {"lease": 1, "state": 0, "n": 1, "leader_us": 0, "reason": 0}
        self.after_hello(lambda fake, h: fake.reply(h, event, op="EVENT", seq=h.seq + 1))
        self.after_hello(lambda fake, h: fake.reply(h, {}) * 2, statuses=(Status.OK, Status.PROTOCOL))

    def test_a_device_that_is_lost_is_told_unasked(self):
        lost = {"field": "device", "text": "the device is lost", "retry_after_us": 0}

        def told(fake, h):
            body = wire.MESSAGES["error"].encode(lost)
            frame = wire.header_encode(Header(wire.OPS["LOST"].code, len(body), 25, 3, fake.boot)) + body
            return frame + fake.reply(h, {})

        self.after_hello(told, statuses=(Status.OK,))
        lost_code = wire.OPS["LOST"].code
        self.after_hello(lambda fake, h: wire.header_encode(Header(lost_code, 1, 25, 3, fake.boot)) + b"\0")

    def test_another_life_on_the_same_connection(self):
        self.after_hello(lambda fake, h: fake.reply(h, {}, boot=b"C" * 16), statuses=(Status.GONE,))

    def test_bodies_that_do_not_decode(self):
        def trailing(fake, h):
            return wire.header_encode(Header(h.op, 1, 0, h.seq, fake.boot)) + b"\0"

        def error_cut(fake, h):
            return wire.header_encode(Header(h.op, 1, 14, h.seq, fake.boot)) + b"\0"

        self.after_hello(trailing)
        self.after_hello(error_cut)

    def test_statuses(self):
        for given, told in (
            (Status.BUSY, Status.BUSY), (99, 99), (100, Status.PROTOCOL), (65535, Status.PROTOCOL),
            (Status.TOO_LARGE, Status.PROTOCOL), (Status.NO_HELLO, Status.PROTOCOL),
        ):  # fmt: skip
            error = {"field": "n", "text": "because", "retry_after_us": 1500}
            self.after_hello(lambda fake, h, s=given: fake.reply(h, error, status=s), statuses=(told,))
        with Fake(lambda fake, s, h, body: s.sendall(fake.reply(h, error, status=Status.SELF_TEST))) as fake:
            with self.assertRaises(PrefixdError) as caught:
                prefixd.Client(fake.path).ping()
            got = caught.exception
            self.assertEqual((got.status, got.field, got.retry_after), (Status.SELF_TEST, "n", 0.0015))
            self.assertIn("because", str(got))

    def opening(self, make, statuses=(Status.PROTOCOL,)):
        def answer(fake, s, h, body):
            if h.op == wire.OPS["HELLO"].code:
                s.sendall(fake.hello(h))
            elif h.op == wire.OPS["OPEN"].code:
                make(fake, s, h, body)

        before = kit.descriptors()
        self.ask(answer, lambda client: client.open(kit.options()), statuses)
        gc.collect()
        self.assertEqual(kit.descriptors(), before)

    def test_opens(self):
        def lacking(fake, s, h, body):
            data, fds = fake.opened(h, body)
            for fd in fds:
                os.close(fd)
            s.sendall(data)

        def one_of_two(fake, s, h, body):
            data, fds = fake.opened(h, body)
            os.close(fds[1])
            fake.pass_fds(s, data, fds[:1])

        def with_fields(**changes):
            def make(fake, s, h, body):
                data, fds = fake.opened(h, body, **changes)
                fake.pass_fds(s, data, fds)

            return make

        def far_too_many(fake, s, h, body):
            data, fds = fake.opened(h, body)
            fake.pass_fds(s, data, fds + [os.dup(fds[0]) for _ in range(50)])

        def with_words(fake, s, h, body):
            data, fds = fake.opened(h, body, n_write=2, write_len=8192, n_words=512)
            fake.pass_fds(s, data, fds + [os.dup(fds[0]), os.dup(fds[0])])

        def words_lacking(fake, s, h, body):
            data, fds = fake.opened(h, body, n_words=512)
            fake.pass_fds(s, data, fds)

        self.opening(with_fields(), (Status.OK,))
        self.opening(with_words, (Status.OK,))
        self.opening(words_lacking)
        self.opening(lacking)
        self.opening(one_of_two)
        self.opening(far_too_many)
        for changes in (
            {"pool_len": 1 << 40}, {"pool_len": 10}, {"n_slots": 1 << 31}, {"n_slots": 0}, {"slot_stride": 0},
            {"slot_stride": 64}, {"digest": b"d"}, {"key_len": 0}, {"block_tokens": 0}, {"n_pool_fds": 255},
            {"n_slots": 5, "pool_len": 5 * kit.BYTES}, {"pool_len": 1 << 63},
        ):  # fmt: skip
            with self.subTest(changes):
                self.opening(with_fields(**changes))
        self.opening(with_fields(flags=2), (Status.FORBIDDEN,))
        self.opening(with_fields(n_pool_fds=1), (Status.UNSUPPORTED,))

    def matching(self, replies, call, statuses):
        """A right OPEN; then replies[op](fake, h) for each request."""

        def answer(fake, s, h, body):
            name = wire.OP_NAMES[h.op]
            if name == "HELLO":
                s.sendall(fake.hello(h))
            elif name == "OPEN":
                fake.pass_fds(s, *fake.opened(h, body))
            else:
                s.sendall(replies[name](fake, h))

        def whole(client):
            with client.open(kit.options()).match(OWNER, tokens=kit.prompt(1, 3 * BLOCK)) as lease:
                call(lease)

        return self.ask(answer, whole, statuses)

    MATCHED = {
        "lease": 7, "root": b"r" * 16, "n_device": 2, "n_host": 0, "n_redis": 0, "n_pending": 0, "tail_tokens": 0,
        "tail_slot": 0, "advice": 0, "reason": 1, "more": 0, "load_us": 0, "miss_token": 0, "reuse": 1,
        "runs": [(0, 2)],
    }  # fmt: skip

    def test_slots_outside_of_the_pool_are_not_believed(self):
        release = {name: 0 for name in (f.name for f in wire.MESSAGES["release_rep"].fields)}

        def replies(match=(), reserve=(), commit=()):
            return {
                "MATCH": lambda fake, h: fake.reply(h, {**self.MATCHED, **dict(match)}),
                "RESERVE": lambda fake, h: fake.reply(
                    h, {"n": 1, "first": 2, "reuse": 2, "runs": [(2, 1)], **dict(reserve)}
                ),
                "COMMIT": lambda fake, h: fake.reply(
                    h, {"n_stored": 1, "n_duplicate": 0, "reuse": 3, "runs": [(2, 1)], **dict(commit)}
                ),
                "RELEASE": lambda fake, h: fake.reply(h, release),
            }

        def work(lease):
            lease.reserve(1)
            lease.commit(1)

        self.matching(replies(), work, (Status.OK,))
        for runs in ([(3, 2)], [(0, 1)], [(0, 3)], [(0, 1), (1, 0), (2, 1)], [(0xFFFFFFFF, 2)], []):
            with self.subTest(match=runs):
                self.matching(replies({"runs": runs}), work, (Status.PROTOCOL,))
            with self.subTest(reserve=runs):
                wrong = [(4, 1)] if runs == [(0, 1)] else runs
                self.matching(replies(reserve={"runs": wrong}), work, (Status.PROTOCOL,))
            with self.subTest(commit=runs):
                self.matching(replies(commit={"runs": wrong}), work, (Status.PROTOCOL,))
        self.matching(replies({"lease": 0}), work, (Status.PROTOCOL,))
        self.matching(replies({"tail_tokens": 1, "tail_slot": 4}), work, (Status.PROTOCOL,))
        self.matching(replies({"tail_tokens": BLOCK}), work, (Status.PROTOCOL,))
        self.matching(replies(reserve={"n": 2, "runs": [(0, 2)]}), work, (Status.PROTOCOL,))
        self.matching(replies(commit={"n_stored": 2}), work, (Status.PROTOCOL,))

    def test_random_junk_never_hangs_and_raises_nothing_else(self):
        rng = random.Random(4)
        right = wire.header_encode(Header(wire.OPS["PING"].code, 0, 0, 2, Fake.BOOT))
        allowed = {Status.OK, Status.PROTOCOL, Status.GONE, Status.DEADLINE}
        for _ in range(60):
            data = bytearray(right + rng.randbytes(rng.randrange(100)))
            for _ in range(rng.randrange(4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            self.after_hello(
                lambda fake, h, d=bytes(data): d, statuses={*allowed, *range(1, 100)}, deadline=0.03
            )

    def test_a_reply_in_single_bytes(self):
        def answer(fake, s, h, body):
            for byte in fake.hello(h) if h.op == 1 else fake.reply(h, {}):
                s.sendall(bytes([byte]))

        self.ask(answer, lambda client: client.ping(), (Status.OK,))

    def test_descriptors_with_frames_that_have_none(self):
        def answer(fake, s, h, body):
            if h.op == wire.OPS["HELLO"].code:
                s.sendall(fake.hello(h))
                return
            fd = os.memfd_create("stray")
            fake.pass_fds(s, fake.reply(h, {}), [fd])

        def many(client):
            for _ in range(60):
                client.ping()

        before = kit.descriptors()
        self.ask(answer, many, (Status.PROTOCOL,))
        self.assertEqual(kit.descriptors(), before)

