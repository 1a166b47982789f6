"""Over the ends of connections and daemons: what stays mapped, what is stale, what is said and when."""

import asyncio
import gc
import os
import signal
import time
import unittest
import warnings

import blockstore_kit as blocks
import kit
import prefixd
import prefixd.aio
from kit import BLOCK, OWNER, Daemon, Fake
from prefixd import PrefixdError, Status, wire

MATCHED = {
    "lease": 7, "root": b"r" * 16, "n_device": 2, "n_host": 0, "n_redis": 0, "n_pending": 0, "tail_tokens": 0,
    "tail_slot": 0, "advice": 0, "reason": 1, "more": 0, "load_us": 0, "miss_token": 0, "reuse": 5, "runs": [(0, 2)],
}  # fmt: skip
RELEASED = {f.name: 0 for f in wire.MESSAGES["release_rep"].fields}


class Lives:
    """A scripted daemon of several lives: EXTEND ends one.  `told` is what HELLO tells of orphans."""

    def __init__(self, test, *, speaks=wire.VERSION):
        self.told = 0
        self.pool = b"P" * 16
        self.flags = 0
        self.memory = None  # descriptors that outlive a life; None: new ones each time
        self.quiesced = []
        self.releases = 0
        self.revoked = False
        self.status = Status.REVOKED  # of a lease that was
        self.drop_match = False
        self.lease = 10
        self.fake = Fake(self.answer, speaks=speaks)
        self.fake.__enter__()
        test.addCleanup(self.fake.__exit__)

    def answer(self, fake, s, h, body):
        name = wire.OP_NAMES[h.op]
        if name == "HELLO":
            fake.boot = bytes([fake.boot[0] + 1]) + fake.boot[1:]
            s.sendall(fake.hello(h, n_orphans=self.told, orphans_boot=b"o" * 16))
        elif name == "OPEN":
            frame, fds = fake.opened(h, body, pool=self.pool, flags=self.flags)
            if self.memory is None:
                self.memory = [os.dup(fd) for fd in fds]
            kept = [os.dup(fd) for fd in self.memory]
            for fd in fds:
                os.close(fd)
            fake.pass_fds(s, frame, kept)
        elif name == "MATCH":
            if self.drop_match:
                self.drop_match = False
                raise ConnectionResetError
            self.lease += 1
            s.sendall(fake.reply(h, {**MATCHED, "lease": self.lease}))
        elif name == "RELEASE":
            self.releases += 1
            s.sendall(self.error(fake, h) if self.revoked else fake.reply(h, RELEASED))
        elif name == "RESERVE":
            s.sendall(self.error(fake, h))
        elif name == "QUIESCED":
            self.quiesced.append(body)
            s.sendall(fake.reply(h, {"n_leases": 1, "n_slots": 3}))
        elif name == "EXTEND":
            raise ConnectionResetError
        else:
            s.sendall(fake.reply(h, {}))

    def error(self, fake, h):
        return fake.reply(h, {"field": "lease", "text": "old", "retry_after_us": 0}, status=self.status)

    def client(self, test):
        client = prefixd.Client(self.fake.path, deadline=5)
        test.addCleanup(client.close)
        return client, client.open(kit.options())


def status_of(call):
    try:
        call()
    except PrefixdError as error:
        return error.status
    return Status.OK


def lose(ns):
    with ns.match(OWNER, tokens=[]) as lease:
        assert status_of(lease.extend) == Status.UNKNOWN_LEASE


class Scripted(unittest.TestCase):
    def test_a_memory_is_known_by_name_and_file(self):
        for change in ("nothing", "name", "file", "both", "version 1"):
            with self.subTest(change=change):
                lives = Lives(self, speaks=1 if change == "version 1" else 2)
                client, ns = lives.client(self)
                reader = client.open(kit.options(), map="ro")
                lease = ns.match(OWNER, tokens=[])
                pool, read_only, view = ns.pool, reader.pool, ns.pool[1]
                view[7] = 42
                if change in ("name", "both"):
                    lives.pool = b"Q" * 16
                if change in ("file", "both"):
                    lives.memory = None
                lives.flags = 4
                lose(ns)
                client.ping()
                same = change == "nothing"
                self.assertEqual(ns.pool is pool, same)
                self.assertEqual(reader.pool is read_only, same)
                self.assertEqual(view[7], 42)
                self.assertEqual(ns.pool.stale(1, lease.result.reuse), not same)
                self.assertFalse(pool.stale(1, lease.result.reuse), "as its own generation says")
                self.assertIs(lease.pool, pool)
                self.assertEqual(reader.pool.tag, ns.pool.tag, "one memory, two mappings")
                self.assertEqual(status_of(lease.release), Status.UNKNOWN_LEASE)

    def test_the_last_release_speaks_for_all(self):
        for speaks in (1, 2, 3):
            with self.subTest(speaks=speaks):
                lives = Lives(self, speaks=speaks)
                client, ns = lives.client(self)
                a, b = ns.match(OWNER, tokens=[]), ns.match(OWNER, tokens=[])
                lives.told = 3
                lose(ns)
                client.ping()
                self.assertEqual(lives.quiesced, [])
                self.assertEqual(client.orphans(), 3)
                for _ in range(2):  # it counts once
                    self.assertEqual(status_of(a.release), Status.UNKNOWN_LEASE)
                client.ping()
                self.assertEqual(lives.quiesced, [])
                with b:  # as good as a release
                    pass
                client.ping()
                self.assertEqual(len(lives.quiesced), 1)
                self.assertEqual(lives.quiesced[0]["old_boot"] == wire.NO_ID, speaks >= 2)
                client.ping()
                self.assertEqual((len(lives.quiesced), client.orphans()), (1, 0))
                self.assertEqual(lives.releases, 0)

    def test_a_lease_that_is_collected_is_done_with(self):
        lives = Lives(self)
        client, ns = lives.client(self)
        lease = ns.match(OWNER, tokens=[])
        lives.told = 1
        lose(ns)
        client.ping()
        self.assertEqual(lives.quiesced, [])
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it was lost, which is nobody's mistake
            del lease
            gc.collect()
        client.ping()
        self.assertEqual(len(lives.quiesced), 1)

    def test_what_nobody_knows_of_is_given_back(self):
        lives = Lives(self)
        client, ns = lives.client(self)
        lives.told, lives.drop_match = 1, True
        ns.match(OWNER, tokens=[]).release()  # asked of two lives
        self.assertEqual((lives.fake.connections, len(lives.quiesced)), (2, 1))
        names = [name for name, _ in lives.fake.seen]
        self.assertLess(names.index("QUIESCED"), len(names) - 1 - names[::-1].index("OPEN"), "in front of OPEN")
        lives.told = 0
        lose(ns)
        client.ping()
        self.assertEqual(len(lives.quiesced), 1)

    def test_said_by_the_caller(self):
        lives = Lives(self)
        client, ns = lives.client(self)
        leases = [ns.match(OWNER, tokens=[]) for _ in range(2)]
        lives.told = 2
        lose(ns)
        self.assertEqual(client.quiesced(), (1, 3))
        for lease in leases:
            self.assertEqual(status_of(lease.release), Status.UNKNOWN_LEASE)
        client.ping()
        self.assertEqual(len(lives.quiesced), 1)

    def test_revoked_and_not_done(self):
        for status in (Status.REVOKED, Status.DEVICE_LOST):
            with self.subTest(status.name):
                self.revoked_and_not_done(status)

    def revoked_and_not_done(self, status):
        lives = Lives(self)
        lives.status = status
        client, ns = lives.client(self)
        lost = ns.match(OWNER, tokens=[])
        lives.told = 2
        lose(ns)
        lease = ns.match(OWNER, tokens=[])
        self.assertEqual(status_of(lambda: lease.reserve(1)), status)
        self.assertEqual(status_of(lost.release), Status.UNKNOWN_LEASE)
        client.ping()
        self.assertEqual(lives.quiesced, [], "who was told that may be writing still")
        lives.revoked = True
        self.assertEqual(status_of(lease.release), status)
        self.assertTrue(lease.ended)
        client.ping()
        self.assertEqual(len(lives.quiesced), 1)
        del lease  # without a word, and without a second RELEASE
        gc.collect()
        client.ping()
        self.assertEqual(lives.releases, 1)

    def test_clients_of_one_process_are_strangers(self):
        lives = Lives(self)
        for _ in range(2):
            client, _ = lives.client(self)
            client.quiesced()
        self.assertEqual(len({body["instance"] for body in lives.quiesced}), 2)

    def test_frames_of_the_version_that_was_agreed_on(self):
        for speaks in (1, 2):
            lives = Lives(self, speaks=speaks)
            client, _ = lives.client(self)
            self.assertEqual(client._session.version, speaks)
            hello = next(body for name, body in lives.fake.seen if name == "HELLO")
            self.assertEqual((hello["version_min"], hello["version_max"]), (1, 3))
            self.assertEqual(hello["self_test"], wire.self_test(1))


class Kept(unittest.TestCase):
    """A real daemon that leaves its memory with a holder."""

    def setUp(self):
        self.daemon = Daemon(pool_blocks=24, keep="holder", hold_timeout="20s").start()
        self.addCleanup(self.give_up)

    def give_up(self):
        if self.daemon.process.poll() is None:
            self.daemon.process.send_signal(signal.SIGINT)  # and the memory with it
            self.daemon.process.wait(20)
        self.daemon.__exit__(None)

    def restart(self):
        self.daemon.kill()
        self.daemon.start()

    def pins(self):
        return self.daemon.ctl("pins", "--json")["total"]

    def client(self):
        client = prefixd.Client(self.daemon.socket, deadline=5)
        self.addCleanup(client.close)
        return client, client.open(kit.options())

    def fill(self):
        """Others fill the pool over and over."""
        with prefixd.Client(self.daemon.socket, deadline=5) as client:
            ns = client.open(kit.options())
            for seed in range(100, 120):
                kit.store(ns, seed, 4)

    def test_a_step_outlives_the_daemon(self):
        client, ns = self.client()
        ids = kit.store(ns, 1, 4)
        lease = ns.match(OWNER, tokens=ids)
        own = ns.match(OWNER, tokens=kit.prompt(2, 4 * BLOCK))
        todo = own.reserve(2)
        pool, slots, reuse = lease.pool, lease.slots, lease.result.reuse
        for round_ in range(3):
            self.restart()
            self.fill()
            for slot in todo.slots:
                pool[slot][:] = 200 + round_
            self.assertTrue(kit.right(lease, slots, 1))
            self.fill()
            self.assertTrue(all((pool[slot] == 200 + round_).all() for slot in todo.slots))
            self.assertEqual(status_of(own.commit), Status.UNKNOWN_LEASE)
            self.assertEqual(client.orphans(), 2)
            self.assertIs(ns.pool, pool)
            self.assertFalse(ns.pool.stale(slots, reuse).any())
            self.assertEqual(self.pins(), 2)
        with ns.match(OWNER, tokens=ids) as again:
            self.assertEqual(again.result.n_device, 4)
        self.assertEqual(status_of(lease.release), Status.UNKNOWN_LEASE)
        client.ping()
        self.assertEqual(self.pins(), 2)
        self.assertEqual(status_of(own.release), Status.UNKNOWN_LEASE)
        client.ping()
        self.assertEqual(self.pins(), 0)
        self.fill()
        self.assertTrue(ns.pool.stale(slots, reuse).all(), "given away, and told so")
        self.assertIn("clean", self.daemon.ctl("audit"))

    def test_hits_go_on_whatever_the_end(self):
        client, ns = self.client()
        ids = kit.store(ns, 1, 4)
        pool = ns.pool
        for end in (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2) * 2:
            boot = client.boot
            if end == signal.SIGUSR2:
                self.daemon.process.send_signal(end)  # another program in the same process

                def another():
                    return status_of(client.connect) == Status.OK and client.boot != boot

                self.assertTrue(kit.wait_until(another, 15))
            else:
                self.daemon.process.send_signal(end)
                self.daemon.process.wait(20)
                self.daemon.log.close()
                self.daemon.start()
            with ns.match(OWNER, tokens=ids) as lease:
                self.assertEqual(lease.result.n_device, 4)
                self.assertTrue(kit.right(lease, lease.slots, 1))
            self.assertNotEqual(client.boot, boot)
            self.assertIs(ns.pool, pool)
        self.assertEqual(self.pins(), 0)

    def test_asyncio_too(self):
        async def work():
            async with prefixd.aio.Client(self.daemon.socket, deadline=5) as client:
                ns = await client.open(kit.options())
                async with ns.match(OWNER, tokens=kit.prompt(1, 64)) as lease:
                    todo = await lease.reserve(4)
                    for slot in todo.slots:
                        lease.pool[slot][:] = 7
                    await lease.commit()
                lease = await ns.match(OWNER, tokens=kit.prompt(1, 64))
                pool = ns.pool
                self.restart()
                self.fill()
                self.assertTrue(all((pool[slot] == 7).all() for slot in lease.slots))
                self.assertEqual(await client.orphans(), 1)
                self.assertIs(ns.pool, pool)
                with self.assertRaises(PrefixdError):
                    await lease.release()
                await client.ping()
                self.assertEqual(self.pins(), 0)

        asyncio.run(work())

    def test_a_store_goes_on_with_full_hits(self):
        store = blocks.store(self.daemon, retry_every=0.01)
        self.addCleanup(store.close)
        keys = blocks.path("a", 4)
        self.assertEqual(store.insert(keys, 0, [blocks.block(k) for k in keys]), 4)
        hit = store.lookup(keys)
        view = hit.view(0)
        for _ in range(3):
            self.restart()
            self.assertTrue(blocks.eventually(lambda: store.contains(keys) == [True] * 4))
            others = blocks.path(time.monotonic_ns(), 4)
            store.insert(others, 0, [blocks.block(k) for k in others])
            with store.lookup(keys) as again:
                self.assertEqual(again.n, 4)
                out = blocks.room()[0]
                self.assertTrue(again.read(3, out) and (out == blocks.block(keys[3])).all())
            # The hit of the first life is held still, and read on.
            self.assertTrue(hit.read(2, out) and (out == blocks.block(keys[2])).all())
            self.assertTrue(hit.still_right(0) and (view == blocks.block(keys[0])).all())
            self.assertEqual(self.pins(), 1)
        hit.close()
        self.assertTrue(blocks.eventually(lambda: self.pins() == 0))
        self.assertIn("clean", self.daemon.ctl("audit"))

    def test_a_store_under_traffic_is_never_wrong(self):
        store = blocks.store(self.daemon, retry_every=0.01, deadline=2.0)
        self.addCleanup(store.close)
        traffic = blocks.Traffic(store, n_threads=4, n_keys=64).start()
        hits = []
        for _ in range(5):
            time.sleep(0.4)
            self.restart()
            hits.append(traffic.hits)
        time.sleep(0.4)
        traffic.end(self)
        self.assertGreater(traffic.hits, hits[-1], "after the last restart too")
        # Nothing is left behind by any of the connections that broke.
        self.assertTrue(
            blocks.eventually(lambda: (store.contains(blocks.path("x", 1)), self.pins() == 0)[1]),
            self.daemon.ctl("pins"),
        )
        self.assertIn("clean", self.daemon.ctl("audit"))


if __name__ == "__main__":
    unittest.main()
