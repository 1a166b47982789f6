"""BlockStore when daemons stop, die and come back, across a fork, and with many small requests in flight."""

import gc
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from blockstore_kit import (  # noqa: E402
    IDENTITY, N, OWNER, Traffic, WithDaemon, block, descriptors, eventually, key, listening, path, room, run_all,
    store,
)  # fmt: skip
from daemon import Daemon  # noqa: E402

import prefixd  # noqa: E402
from prefixd import many  # noqa: E402
from prefixd.blockstore import BlockStore  # noqa: E402

logging.getLogger("prefixd.blockstore").setLevel(logging.CRITICAL)


class Losing(WithDaemon):
    """What the daemon may do: be killed, hang, come back, never have been there."""

    def test_killed_and_started_again_under_traffic(self):
        one = store(self.daemon, deadline=2, retry_every=0.05)
        traffic = Traffic(one, n_keys=100).start()
        time.sleep(0.7)
        for _ in range(3):
            before = traffic.hits
            self.daemon.kill()
            time.sleep(0.3)
            listening(self.daemon.start())
            self.assertTrue(eventually(lambda b=before: traffic.hits > b + 200, 20), "hits come back")
        traffic.end(self)
        self.assertGreater(one.stats()["gone"], 0)
        one.close()
        self.clean()

    def test_a_hit_of_an_earlier_life_reads_nothing(self):
        keys = path("a", 3)
        one = store(self.daemon, retry_every=0.01)
        one.insert(keys, 0, [block(k) for k in keys])
        hit = one.lookup(keys)
        out = room()[0]
        self.assertTrue(hit.read(0, out))
        view = hit.view(0)
        self.daemon.kill()
        self.daemon.start()
        self.assertTrue(eventually(lambda: one.insert(keys, 0, [b"\1" * N] * 3) == 3))
        self.assertFalse(hit.read(0, room()[0]))
        self.assertFalse(hit.still_right(0))
        self.assertTrue(
            (view == block(keys[0])).all(), "the old pool is still mapped and nobody writes there"
        )
        hit.close()
        with one.lookup(keys) as hit:
            self.assertEqual(hit.n, 3)
            self.assertTrue(hit.read(0, out) and (out == 1).all())
        self.assertEqual(hit.insert([b""]), 0)
        one.close()
        self.clean()

    def test_a_connection_that_breaks_holds_what_is_read_and_nothing_more(self):
        """The daemon keeps the leases of a process that lives: the store says when nobody reads them."""
        keys = path("a", 4)
        self.store.insert(keys, 0, [block(k) for k in keys])
        hit, closed = self.store.lookup(keys), self.store.lookup(keys[:2])
        self.assertEqual(self.pins(), 2)
        self.cut(0)
        closed.close()
        self.assertTrue(eventually(lambda: self.store.contains(keys) == [True] * 4))
        # The daemon counts by connections: the closed one goes with the last that is open.
        self.assertEqual(self.pins(), 2)
        out = room()[0]
        self.assertTrue(hit.read(3, out) and (out == block(keys[3])).all(), "it is held, and read on")
        self.assertTrue(hit.still_right(0))
        self.assertEqual(hit.insert([block(b"x")]), 0, "but its lease is gone")
        hit.close()
        self.assertTrue(eventually(lambda: self.pins() == 0))
        with self.store.lookup(keys) as again:
            self.assertEqual(again.n, 4)
        self.clean()

    def test_what_is_said_in_vain_is_said_again(self):
        keys = path("a", 4)
        self.store.insert(keys, 0, [block(k) for k in keys])
        hit = self.store.lookup(keys)
        session = self.store._connections._all[0].client._session
        self.cut(0)
        self.assertEqual(self.store.contains(keys), [True] * 4)
        sent, append = [], session._append

        def lost_once(op, values):
            sent.append(op)
            if op == "QUIESCED" and sent.count(op) == 1:
                self.cut(0)
            return append(op, values)

        session._append = lost_once
        hit.close()  # says so, on a connection that has just ended
        self.assertEqual(self.pins(), 1)
        self.assertTrue(eventually(lambda: self.store.contains(keys) == [True] * 4 and self.pins() == 0))
        self.assertEqual(sent.count("QUIESCED"), 2)
        self.clean()

    def test_connections_that_nobody_needs_hold_nothing_either(self):
        """All of them break at once, and afterwards one of them does all the work."""
        keys = path("a", 4)
        self.store.insert(keys, 0, [block(k) for k in keys])
        conns = []
        for _ in range(4):  # each of them has made a lookup
            conns.append(self.store._connections.borrow(time.monotonic() + 5))
        for conn in conns:
            conn.give_up()
        hits = []
        for i in range(4):
            for conn in conns[:i]:
                conn.lock.acquire()
            hits.append(self.store.lookup(keys))
            for conn in conns[:i]:
                conn.lock.release()
        self.assertEqual([hit._conn for hit in hits], conns)
        self.assertEqual(self.pins(), 4)
        for i in range(4):
            self.cut(i)
        for hit in hits:
            hit.close()
        for _ in range(5):
            self.assertEqual(self.store.contains(keys), [True] * 4)
        self.assertTrue(eventually(lambda: self.pins() == 0), "one more is connected by each call")
        self.clean()

    def pins(self):
        return self.daemon.ctl("pins", "--json")["total"]

    def cut(self, i):
        self.store._connections._all[i].client._link._socket.shutdown(socket.SHUT_RDWR)

    def test_a_daemon_that_hangs_costs_its_deadline_a_few_times(self):
        keys = path("a", 4)
        one = store(self.daemon, deadline=0.1, retry_every=1.0)
        self.assertEqual(self.store.insert(keys, 0, [block(k) for k in keys]), 4)
        self.assertTrue(one.connect(10))
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            times = []
            started = time.monotonic()
            while time.monotonic() - started < 2.5:
                before = time.monotonic()
                what = len(times) % 3
                if what == 0:
                    self.assertEqual(one.lookup(keys).n, 0)
                elif what == 1:
                    self.assertEqual(one.get(keys, room(4)), [False] * 4)
                else:
                    self.assertEqual(one.put([key("new")], [block(key("new"))]), [False])
                times.append(time.monotonic() - before)
                time.sleep(0.005)
            # Three deadlines in a row, then one per second; all other calls ask nobody.
            stats = one.stats()
            self.assertTrue(3 <= stats["deadline"] <= 6, stats)
            self.assertEqual(stats["deadline"] + stats["gone"], len(times))
            self.assertGreater(len(times), 50)
            self.assertLess(
                max(times), 2.0, "ten times the deadline and more: for machines that do much else"
            )
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assertTrue(eventually(lambda: one.lookup(keys).n == 4), "hits come back")
        self.assertGreaterEqual(one.stats()["deadline"], 3)
        gc.collect()
        one.contains(keys)
        one.close()
        self.clean()

    def test_hits_over_a_hang_are_given_back(self):
        keys = path("a", 4)
        one = store(self.daemon, deadline=0.1, retry_every=0.05)
        self.store.insert(keys, 0, [block(k) for k in keys])
        self.assertTrue(one.connect(10))
        hits = [one.lookup(keys, deadline=10) for _ in range(3)]
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            out = room()[0]
            self.assertTrue(hits[0].read(1, out) and (out == block(keys[1])).all(), "reading asks nobody")
            started = time.monotonic()
            for hit in hits:
                hit.close()
            for _ in range(5):
                one.lookup(keys).close()
            self.assertLess(time.monotonic() - started, 5)
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assertTrue(eventually(lambda: one.contains(keys) == [True] * 4))
        self.clean()
        one.close()

    def test_without_a_daemon_one_attempt_in_a_while(self):
        """Counted by a socket that accepts and closes: what a daemon that falls over looks like."""
        with tempfile.TemporaryDirectory(prefix="prefixd-test-") as folder:
            where = os.path.join(folder, "sock")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(where)
            listener.listen(64)
            attempts = []

            def accept():
                while True:
                    try:
                        conn, _ = listener.accept()
                    except OSError:
                        return
                    attempts.append(time.monotonic())
                    conn.close()

            thread = threading.Thread(target=accept, daemon=True)
            thread.start()
            one = BlockStore(where, IDENTITY.digests(32, b"p"), OWNER, deadline=1, retry_every=0.5)
            before, calls = descriptors(), [0] * 4
            until = time.monotonic() + 2.2

            def work(n):
                while time.monotonic() < until:
                    if one.lookup(path("a", 2)).n or any(one.put([key(1)], [block(key(1))])):
                        calls[n] = -(1 << 40)
                    calls[n] += 1
                    time.sleep(0.001)

            run_all([threading.Thread(target=work, args=(n,)) for n in range(4)])
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join(10)
            self.assertGreater(min(calls), 0)
            self.assertGreater(sum(calls), 200)
            # Each of the four may find out by itself at the start; from then on they share one in half a
            # second.  Four clients by themselves would make some forty.
            self.assertTrue(3 <= len(attempts) <= 9, attempts)
            self.assertLessEqual(descriptors(), before)
            one.close()

    def test_what_is_not_the_protocol_is_a_miss(self):
        with tempfile.TemporaryDirectory(prefix="prefixd-test-") as folder:
            where = os.path.join(folder, "sock")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(where)
            listener.listen(8)

            def babble():
                for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10, b"\0" * 200, b"PFXD" + b"\xff" * 60):
                    conn, _ = listener.accept()
                    conn.recv(4096)
                    conn.sendall(answer)
                    conn.close()

            thread = threading.Thread(target=babble, daemon=True)
            thread.start()
            one = BlockStore(where, IDENTITY.digests(32, b"p"), OWNER, deadline=1, retry_every=0.0)
            until = time.monotonic() + 10
            while thread.is_alive() and time.monotonic() < until:
                self.assertEqual(one.lookup(path("a", 2)).n, 0)
                time.sleep(0.02)
            thread.join(1)
            self.assertFalse(thread.is_alive())
            self.assertGreaterEqual(one.stats()["errors"]["PROTOCOL"], 3)
            one.close()
            listener.close()

    def test_no_daemon_at_all_and_then_one(self):
        other = Daemon(pool_blocks=64)
        one = BlockStore(other.socket, IDENTITY.digests(32, b"p"), OWNER, deadline=5, retry_every=0.05)
        keys = path("a", 2)
        started = time.monotonic()
        self.assertFalse(one.connect(1))
        self.assertEqual((one.lookup(keys).n, one.contains(keys)), (0, [False, False]))
        self.assertLess(time.monotonic() - started, 2)
        other.start()
        try:
            self.assertTrue(eventually(lambda: one.insert(keys, 0, [block(k) for k in keys]) == 2))
            self.assertTrue(one.connect())
            one.close()
        finally:
            other.stop()

    def test_a_wrong_tenant_is_a_miss_that_is_counted(self):
        one = store(self.daemon, owner=prefixd.Owner("nobody's", b""))
        self.assertEqual(one.lookup(path("a", 2)).n, 0)
        self.assertEqual(one.stats()["errors"], {"FORBIDDEN": 1})
        one.close()

    def test_one_log_line_in_a_minute(self):
        log = logging.getLogger("prefixd.blockstore")
        log.setLevel(logging.WARNING)
        self.addCleanup(log.setLevel, logging.CRITICAL)
        self.daemon.kill()
        with self.assertLogs(log, logging.WARNING) as said:
            for _ in range(50):
                self.store.lookup(path("a", 2))
        self.assertEqual(len(said.records), 2, said.output)  # that it is gone, and that nothing is asked now
        self.daemon.start()


class Forks(WithDaemon):
    def test_a_child_begins_anew(self):
        keys = path("a", 3)
        self.store.insert(keys, 0, [block(k) for k in keys])
        hit = self.store.lookup(keys)
        self.check(keys, hit, in_a_call=False)
        self.check(keys, hit, in_a_call=True)
        out = room()[0]
        self.assertTrue(hit.read(2, out) and (out == block(keys[2])).all(), "the parent's is as it was")
        hit.close()
        self.assertEqual(self.store.lookup(keys).n, 3)
        gc.collect()
        self.store.contains(keys)
        self.clean()

    def check(self, keys, hit, in_a_call):
        """`in_a_call`: as if another thread were in the middle of one, which the child never sees end."""
        held = self.store._connections._all[0]
        if in_a_call:
            held.lock.acquire()
        try:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    out = room()[0]
                    mine = self.store.lookup(keys)
                    right = mine.n == 3 and mine.read(1, out) and (out == block(keys[1])).all()
                    mine.close()
                    code = 0 if right and not hit.read(0, out) and hit.view(0) is None else 2
                    hit.close()
                    self.store.close()
                finally:
                    os._exit(code)
        finally:
            if in_a_call:
                held.give_up()
        _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)


class Many(WithDaemon):
    """Requests on many leases at once: what is lost or broken off in the middle leaves nothing behind."""

    def setUp(self):
        super().setUp()
        self.client = prefixd.Client(self.daemon.socket, deadline=10)
        self.addCleanup(self.client.close)
        self.ns = self.client.open(IDENTITY.digests(32, b"probe"))

    def match(self, n, seconds=10):
        leases = [prefixd.Lease(self.ns) for _ in range(n)]
        keys = [key("many", i) for i in range(n)]
        call = self.client._begin(seconds)
        errors = self.client._run(call, many.match_each(self.ns, call, OWNER, keys, 2 | 4, 0, leases))
        return leases, errors

    def test_a_reserve_that_lost_its_answer_is_fit_for_release_only(self):
        leases, errors = self.match(3)
        self.assertEqual(errors, [None] * 3)
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            call = self.client._begin(0.1)
            lost = self.client._run(call, many.reserve_each(call, leases))
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assertEqual([one.status for one in lost], [prefixd.Status.DEADLINE] * 3)
        # The daemon did reserve: a commit would publish slots that nobody filled.
        with self.assertRaises(prefixd.PrefixdError) as caught:
            leases[0].commit(1)
        self.assertEqual(caught.exception.status, prefixd.Status.WRONG_STATE)
        for lease in leases:
            lease.release()
        self.assertEqual(self.store.contains([key("many", i) for i in range(3)]), [False] * 3)
        self.clean()

    def test_an_interrupt_in_the_middle_gives_all_back(self):
        session, asked = self.client._session, []
        answer = session.answer

        def interrupted(call, op, slot):
            asked.append(op)
            if len(asked) == 3:
                raise KeyboardInterrupt
            return answer(call, op, slot)

        session.answer = interrupted
        with self.assertRaises(KeyboardInterrupt):
            self.match(6)
        del session.answer
        self.client.ping()
        self.client.ping()  # takes along what came too late for the first
        self.clean()

    def test_what_is_let_go_is_not_given_back_again(self):
        keys = path("a", 4)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.store.insert(keys, 0, [block(k) for k in keys])
            self.store.put(keys, [block(k) for k in keys])
            self.store.get(keys, room(4))
            self.store.lookup(keys).close()
            gc.collect()
        self.assertEqual([str(one.message) for one in said], [])
        self.clean()


if __name__ == "__main__":
    unittest.main()
