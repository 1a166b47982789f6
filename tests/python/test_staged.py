"""Where the daemon lets nobody write into its pools: blocks go through memory of this client's own."""

import unittest

import kit
import prefixd
from kit import BLOCK, OWNER, Daemon
from prefixd import PrefixdError, Status


class Staged(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(pool_blocks=64, pool_write="staged", write_blocks=8).start()
        self.addCleanup(self.daemon.stop)

    def open(self, **more):
        client = prefixd.Client(self.daemon.socket, deadline=5)
        self.addCleanup(client.close)
        return client.open(kit.options(), **more)

    def test_one_client_stores_and_another_reads(self):
        ns, other = self.open(), self.open()
        self.assertEqual(ns.n_write, 8)
        ids = kit.store(ns, 3, 20)  # in turns: eight places at a time
        with other.match(OWNER, tokens=ids) as lease:
            self.assertEqual(lease.result.n_device, 20)
            self.assertTrue(kit.right(lease, lease.slots, 3))

    def test_the_pool_is_read_only(self):
        ns = self.open()
        ids = kit.store(ns, 4, 2)
        self.assertFalse(ns.pool.writable)
        with ns.match(OWNER, tokens=ids) as lease:
            self.assertIsNot(lease.room, lease.pool.array)
            self.assertEqual(lease.room.shape, (8, kit.BYTES))
            with self.assertRaises(ValueError):
                lease.pool[lease.slots[0]][:] = 1
            self.assertTrue(kit.right(lease, lease.slots, 4))

    def test_namespaces_of_one_client_share_the_room(self):
        client = prefixd.Client(self.daemon.socket, deadline=5)
        self.addCleanup(client.close)
        a, b = client.open(kit.options()), client.open(kit.options(model="n"))
        with a.match(OWNER, tokens=kit.prompt(1, 6 * BLOCK)) as one, b.match(
            OWNER, tokens=kit.prompt(2, 6 * BLOCK)
        ) as two:
            self.assertIs(one.room, two.room)
            todo = one.reserve(6)
            self.assertEqual(two.reserve(6).n, 2)
            kit.fill(one, todo, 1)
            one.commit()
            self.assertEqual(two.reserve(4).n, 4)

    def test_a_wrong_checksum_stores_nothing(self):
        ns = self.open()
        ids = kit.prompt(5, 2 * BLOCK)
        with ns.match(OWNER, tokens=ids) as lease:
            todo = lease.reserve(2)
            kit.fill(lease, todo, 5)
            with self.assertRaises(PrefixdError) as caught:
                lease.commit(checksums=b"\1" * 32)
            self.assertEqual((caught.exception.status, caught.exception.field), (Status.BAD_BODY, "checksums"))
            lease.commit(2)
            self.assertTrue(kit.right(lease, lease.slots, 5))

    def test_readers_need_no_room(self):
        ns = self.open(map="ro")
        with ns.match(OWNER, tokens=kit.prompt(6, BLOCK)) as lease:
            self.assertIs(lease.room, lease.pool.array)
