"""The blocking client against a real daemon: every call, and the bytes that come back."""

import gc
import threading
import time
import unittest
import warnings

import kit
import numpy as np
import prefixd
from kit import BLOCK, OWNER, Daemon
from prefixd import PrefixdError, Reason, Status, wire


class Live(unittest.TestCase):
    """One daemon for the cases of a class; each case uses prompts of its own."""

    settings = {"pool_blocks": 512}

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(**cls.settings).start()
        cls.addClassCleanup(cls.daemon.__exit__, None)

    def client(self, **changes):
        client = prefixd.Client(self.daemon.socket, **{"deadline": 5.0, **changes})
        self.addCleanup(client.close)
        return client

    def fails(self, status, field=None):
        """Context: the block must raise PrefixdError with this status, and name this field."""
        return Fails(self, status, field)


class Fails:
    def __init__(self, test, status, field):
        self.test, self.status, self.field = test, status, field

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        self.test.assertIsInstance(error, PrefixdError, f"{Status(self.status).name} was expected")
        self.test.assertEqual(error.status, self.status, str(error))
        if self.field is not None:
            self.test.assertEqual(error.field, self.field, str(error))
        self.error = error
        return True


class Blocks(Live):
    def test_one_client_stores_and_another_reads_the_same_bytes(self):
        a, b = self.client(), self.client()
        ns, other = a.open(kit.options()), b.open(kit.options(), map="ro")
        ids = kit.prompt(1, 6 * BLOCK + 5)
        with ns.match(OWNER, tokens=ids) as lease:
            self.assertEqual((lease.result.n_device, lease.result.reason), (0, Reason.NEVER_SEEN))
            todo = lease.reserve(6)
            self.assertEqual((todo.n, todo.first, lease.n_reserved), (6, 0, 6))
            kit.fill(lease, todo, 1)
            done = lease.commit(6)
            self.assertEqual((done.n_stored, done.n_duplicate, lease.n_reserved), (6, 0, 0))
            np.testing.assert_array_equal(lease.slots, todo.slots)
        with other.match(OWNER, tokens=np.array(ids)) as lease:
            self.assertEqual((lease.result.n_device, lease.result.miss_token), (6, 6 * BLOCK))
            self.assertEqual((lease.slots.dtype, lease.slots.shape), (np.int64, (6,)))
            self.assertTrue(kit.right(lease, lease.slots, 1))
            self.assertFalse(lease.pool.stale(lease.slots, lease.result.reuse).any())
            end = lease.release(over=True)
        self.assertEqual((end.queried_tokens, end.hit_device_tokens, end.miss_tokens), (101, 96, 5))

    def test_what_differs_is_not_shared_and_what_is_the_same_is(self):
        client = self.client()
        ids = kit.store(client.open(kit.options()), 2, 4)
        again = client.open(kit.options())
        for what, ns, owner, want in (
            ("the same", again, OWNER, 4),
            ("another salt", again, prefixd.Owner("default", b"t"), 0),
            ("no salt", again, prefixd.Owner("default", b""), 0),
            ("another model", client.open(kit.options(model="m2")), OWNER, 0),
            ("another adapter", client.open(kit.options(adapter="a")), OWNER, 0),
        ):
            with self.subTest(what), ns.match(owner, tokens=ids) as lease:
                self.assertEqual(lease.result.n_device, want)
        number = prefixd.Owner(client.tenant("default"), b"s")
        with again.match(number, tokens=ids) as lease:
            self.assertEqual(lease.result.n_device, 4)

    def test_tenant_and_salt_are_needed_by_name(self):
        client = self.client()
        ns = client.open(kit.options())
        for field, make in (
            ("tenant", lambda: prefixd.Owner(None, b"")),
            ("tenant", lambda: prefixd.Owner("", b"")),
            ("salt", lambda: prefixd.Owner("default", None)),
            ("tenant", lambda: ns.match(None, tokens=[1])),
        ):
            with self.fails(Status.MISSING_FIELD, field):
                make()
        for argument in ("tenant", "salt"):
            with self.assertRaisesRegex(TypeError, argument):
                prefixd.Owner(**{{"tenant": "salt", "salt": "tenant"}[argument]: b""})
        with self.fails(Status.ARGUMENT, "salt"):
            prefixd.Owner("default", "text")
        with self.fails(Status.ARGUMENT, "salt"):
            prefixd.Owner("default", bytes(256))
        with self.fails(Status.FORBIDDEN, "tenant"):
            ns.match(prefixd.Owner("nobody", b""), tokens=[1])
        with self.fails(Status.FORBIDDEN, "tenant"):
            ns.match(prefixd.Owner(7777, b""), tokens=[1])
        # The same of the daemon itself, past everything that this client checks.
        for has, field in ((6, "ns"), (5, "tenant"), (3, "salt")):
            values = {
                "has": has, "ns": ns.id, "tenant": client.tenants["default"], "salt": b"", "op_id": wire.NO_ID,
                "decision_id": wire.NO_ID, "flags": 0, "deadline_us": 0, "n_tokens": 0, "parent": b"", "keys": b"",
                "tail": b"",
            }  # fmt: skip
            call = client._begin(None)
            with self.fails(Status.MISSING_FIELD, field):
                client._run(call, client._session.request(call, "MATCH", values))

    def test_a_namespace_is_refused_by_the_field_that_is_wrong(self):
        client = self.client()
        for field, changes in (
            ("model", {"model": ""}), ("dtype", {"dtype": "auto"}), ("block_tokens", {"block_tokens": 0}),
            ("tp_size", {"tp_size": 2}), ("engine", {"engine": ""}),
        ):  # fmt: skip
            with self.subTest(field), self.fails(Status.BAD_NAMESPACE, field):
                client.open(kit.options(**changes))
        with self.fails(Status.ARGUMENT, "model"):
            client.open(kit.options(model="x" * 256))
        with self.fails(Status.ARGUMENT, "layers"):
            client.open(kit.options(layers=-1))
        with self.fails(Status.ARGUMENT, "map"):
            client.open(kit.options(), map="w")
        client.ping()

    def test_digests_and_islands(self):
        ns = self.client().open(kit.digests())
        keys = [bytes([i]) * 16 for i in range(1, 6)]
        with ns.match(OWNER, digests=keys) as lease:
            todo = lease.reserve(5)
            kit.fill(lease, todo, 3)
            lease.commit()
        array = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16)
        for form in (keys, b"".join(keys), array):
            with ns.match(OWNER, digests=form) as lease:
                self.assertEqual(lease.result.n_device, 5)
                self.assertTrue(kit.right(lease, lease.slots, 3))
        with ns.match(OWNER, digests=keys[2:]) as lease:
            self.assertEqual(lease.result.n_device, 0, "block 2 is no prompt's first")
        with ns.match(OWNER, digests=keys[2:], island=True) as lease:
            self.assertEqual(lease.result.n_device, 3)
            np.testing.assert_array_equal(lease.pool[lease.slots[0]], (3 * 31 + 2) % 251)
        found = ns.probe(OWNER, digests=[b"z" * 16, keys[3], keys[1]], bitmap=True).bitmap
        np.testing.assert_array_equal(found, [False, True, True])
        with self.fails(Status.ARGUMENT, "tokens"):
            ns.match(OWNER, tokens=[1])
        with self.fails(Status.ARGUMENT, "digests"):
            ns.match(OWNER, digests=[b"short"])

    def test_extra_digests_are_part_of_a_key(self):
        ns = self.client().open(kit.options(flags=prefixd.NS_OPAQUE | prefixd.NS_EXTRA))
        self.assertEqual(ns.key_len, 4 * BLOCK + 32)
        ids, images = kit.prompt(4, 3 * BLOCK), [b"a" * 32, b"b" * 32, bytes(32)]
        with ns.match(OWNER, tokens=ids, extra=images) as lease:
            lease.reserve(3)
            lease.commit()
        for extra, want in ((images, 3), ([b"a" * 32, b"c" * 32, bytes(32)], 1), (None, 0)):
            with ns.match(OWNER, tokens=ids, extra=extra) as lease:
                self.assertEqual(lease.result.n_device, want)
        with self.fails(Status.ARGUMENT, "extra"):
            ns.match(OWNER, tokens=ids, extra=images[:2])

    def test_flags_that_are_not_spoken_are_refused(self):
        client = self.client()
        client.ping()
        sent = client._session._seq
        for bit in (4, 8, 16, 32, 1 << 31):  # STRIPE, WINDOWS, WORDS, and what nobody knows
            for flags in (bit, prefixd.NS_OPAQUE | bit):
                with self.fails(Status.ARGUMENT, "flags"):
                    client.open(kit.options(flags=flags))
        for flags in (-1, 1 << 32, "1"):
            with self.fails(Status.ARGUMENT, "flags"):
                client.open(kit.options(flags=flags))
        self.assertEqual(client._session._seq, sent, "nobody was asked")
        client.open(kit.options())

    def test_a_partial_tail_is_offered_and_counted(self):
        ns = self.client().open(kit.options(model="tail"))
        ids = kit.store(ns, 5, 3)
        with ns.match(OWNER, tokens=ids[: 2 * BLOCK + 7]) as lease:
            self.assertEqual((lease.result.n_device, lease.result.tail_tokens), (2, 7))
            np.testing.assert_array_equal(lease.pool[lease.result.tail_slot], (5 * 31 + 2) % 251)
            lease.commit(0, tail_tokens=7)
            self.assertEqual(lease.release().hit_device_tokens, 2 * BLOCK + 7)
        with ns.match(OWNER, tokens=ids[: 2 * BLOCK + 7], no_tail=True) as lease:
            self.assertEqual(lease.result.tail_tokens, 0)

    def test_extend_goes_on_where_the_prompt_ended(self):
        ns = self.client().open(kit.options(model="extend"))
        ids = kit.store(ns, 6, 8)
        with ns.match(OWNER, tokens=ids[:37]) as lease:
            self.assertEqual(lease.result.n_device, 2)
            more = lease.extend(tokens=ids[37:100])
            self.assertEqual((more.n_device, more.tail_tokens, more.miss_token), (4, 4, 100))
            more = lease.extend(tokens=ids[100:])
            self.assertEqual(more.n_device, 2)
            self.assertEqual(lease.slots.size, 8)
            self.assertTrue(kit.right(lease, lease.slots, 6))
            lease.extend(tokens=kit.prompt(60, 2 * BLOCK))
            todo = lease.reserve(9)
            self.assertEqual((todo.n, todo.first), (2, 8))
            lease.commit(2)
            self.assertEqual(lease.slots.size, 10)
            self.assertEqual(lease.release().queried_tokens, 10 * BLOCK)

    def test_order_of_calls_and_ends_of_leases(self):
        ns = self.client().open(kit.options())
        held = self.daemon.ctl("status", "--json")["leases"]
        lease = ns.match(OWNER, tokens=kit.prompt(7, BLOCK))
        with self.fails(Status.WRONG_STATE):
            lease.commit(1)
        with self.fails(Status.WRONG_STATE):
            lease.load_wait()
        with self.fails(Status.ARGUMENT, "n"):
            lease.reserve(-1)
        self.assertFalse(lease.ended)
        lease.release(next_use=3.0)
        self.assertTrue(lease.ended)
        for call in (lease.release, lease.extend, lambda: lease.reserve(1), lambda: lease.commit(1), lease.wait):
            with self.fails(Status.UNKNOWN_LEASE):
                call()
        with self.assertRaisesRegex(RuntimeError, "the engine failed"), ns.match(OWNER, tokens=[1]) as lease:
            raise RuntimeError("the engine failed")
        self.assertTrue(lease.ended)
        self.assertEqual(self.daemon.ctl("status", "--json")["leases"], held)

    def test_a_lease_that_was_forgotten_is_given_back_with_a_warning(self):
        client = self.client()
        ns = client.open(kit.options())
        leases = lambda: self.daemon.ctl("status", "--json")["leases"]  # noqa: E731
        before = leases()
        lease = ns.match(OWNER, tokens=[1])
        self.assertEqual(leases(), before + 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del lease
            gc.collect()
        self.assertEqual([w.category for w in caught], [ResourceWarning])
        client.ping()
        self.assertEqual(leases(), before)

    def test_checksums(self):
        ns = self.client().open(kit.options(model="sums"))
        with ns.match(OWNER, tokens=kit.prompt(8, 2 * BLOCK)) as lease:
            lease.reserve(2)
            with self.fails(Status.ARGUMENT, "checksums"):
                lease.commit(2, checksums=bytes(16))
            self.assertEqual(lease.commit(2, checksums=bytes(32)).n_stored, 2)

    def test_tokens_of_every_kind_make_the_same_keys(self):
        import array

        client = self.client()
        ns = client.open(kit.options(model="kinds"))
        ids = kit.store(ns, 9, 4)
        forms = [tuple(ids), array.array("I", ids), range(4 * BLOCK)]
        forms += [np.array(ids, dtype) for dtype in ("i4", "i8", "u4", "u8", ">i4", "u2")]
        forms.append(np.repeat(np.array(ids, "i8"), 2)[::2])
        for form in forms:
            with self.subTest(type(form).__name__), ns.match(OWNER, tokens=form) as lease:
                self.assertEqual(lease.result.n_device, 0 if isinstance(form, range) else 4)
        for wrong in ([-1], [1 << 32], [1.5], [[1], [2]], ["a"], b"bytes", "text", [None], *(np.array([n], kind) for n, kind in ((-1, "i4"), (-1, "i8"), (1 << 32, "i8"),
                      (1 << 32, "u8"), (1, "f4")))):  # fmt: skip
            with self.subTest(wrong), self.fails(Status.ARGUMENT, "tokens"):
                ns.match(OWNER, tokens=wrong)
        with self.fails(Status.ARGUMENT, "tokens"):
            ns.match(OWNER)
        with self.fails(Status.ARGUMENT, "digests"):
            ns.match(OWNER, digests=[b""])
        top = ns.match(OWNER, tokens=[(1 << 32) - 1])
        top.release()

    def test_probe_explain_report_and_prefetch(self):
        client = self.client()
        ns = client.open(kit.options(model="look"))
        ids = kit.store(ns, 10, 4)
        found = ns.probe(OWNER, tokens=ids + kit.prompt(99, BLOCK), bitmap=True)
        self.assertEqual(found.n_device, 4)
        np.testing.assert_array_equal(found.bitmap, [True] * 4 + [False])
        self.assertIsNone(ns.probe(OWNER, tokens=ids).bitmap)
        why = ns.explain(OWNER, tokens=ids[:20] + [49999] * 40)
        self.assertEqual((why.matched_tokens, why.position, why.reason), (16, 20, Reason.DIVERGED))
        self.assertEqual((why.own_token, why.stored_token), (49999, None))
        ns.report(ttft=0.25, tpot=0.01, input_tokens=64, running=2, waiting=1)
        with self.fails(Status.UNSUPPORTED):
            ns.prefetch(OWNER, tokens=ids)

    def test_quiesced_admin_boot_and_tenants(self):
        client = self.client()
        self.assertEqual((client.boot, client.connected), (wire.NO_ID, False))
        client.connect()
        self.assertNotEqual(client.boot, wire.NO_ID)
        self.assertIn("default", client.tenants)
        with self.fails(Status.FORBIDDEN, "tenant"):
            client.tenant("nobody")
        self.assertEqual(client.quiesced(), (0, 0))
        with self.fails(Status.UNKNOWN_OP):
            client.admin({"op": "ping"})
        with prefixd.Client(self.daemon.admin) as admin:
            self.assertEqual(admin.admin({"op": "ping"})["ok"], True)
            self.assertEqual(admin.admin('{"op": "nothing"}')["ok"], False)

    def test_maps(self):
        client = self.client()
        ids = kit.store(client.open(kit.options(model="maps")), 11, 1)
        ro, no = client.open(kit.options(model="maps"), map="ro"), client.open(kit.options(model="maps"), map="no")
        with ro.match(OWNER, tokens=ids) as lease:
            view = lease.pool[lease.slots[0]]
            self.assertFalse(view.flags.writeable)
            with self.assertRaises(ValueError):
                view[0] = 1
        with no.match(OWNER, tokens=ids) as lease, self.fails(Status.WRONG_STATE, "map"):
            lease.pool

    def test_pool_views(self):
        ns = self.client().open(kit.options(model="views", block_bytes=4000))
        pool = ns.pool
        self.assertEqual((pool.array.shape, len(pool), pool.slot_stride), ((pool.n_slots, 4000), pool.n_slots, 4032))
        ids = kit.prompt(12, 2 * BLOCK)
        with ns.match(OWNER, tokens=ids) as lease:
            todo = lease.reserve(2)
            pool.view(np.float16, (2, 1000))[todo.slots[1], 1, 7] = 3.5
            self.assertEqual(pool[todo.slots[1]].view(np.float16)[1007], 3.5)
            self.assertEqual(pool.view(np.int32).shape, (pool.n_slots, 1000))
            self.assertTrue(np.shares_memory(pool.view(np.int32), pool.array))
            with self.fails(Status.ARGUMENT, "shape"):
                pool.view(np.int32, (3, 7))
            with self.fails(Status.ARGUMENT, "dtype"):
                pool.view("V3")
            for outside in (-1, pool.n_slots):
                with self.assertRaises(IndexError):
                    pool[outside]
                self.assertTrue(pool.stale(outside, todo.reuse))
            # The last one's generation is the counter itself, and that is not above it.
            self.assertFalse(pool.stale(int(todo.slots[1]), todo.reuse))
            self.assertFalse(pool.stale(todo.slots, todo.reuse).any())
            self.assertTrue(pool.stale(np.array([-1, pool.n_slots]), todo.reuse).all())
            self.assertTrue(pool.stale(todo.slots, todo.reuse + (1 << 48)).all())
            self.assertTrue(pool.stale(int(todo.slots[0]), todo.reuse - 1 - todo.n), "reserving reused it")
            self.assertTrue(pool.stale(int(todo.slots[0]), todo.reuse + (1 << 48)), "of another life")

    def test_threads_wait_for_each_other(self):
        client = self.client()
        ns = client.open(kit.options(model="threads"))
        ids = kit.store(ns, 13, 4)
        wrong = []

        def work():
            for _ in range(50):
                with ns.match(OWNER, tokens=ids) as lease:
                    if lease.result.n_device != 4 or not kit.right(lease, lease.slots, 13):
                        wrong.append(lease.result)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    def test_closing_ends_the_call_of_another_thread(self):
        client, other = self.client(), self.client()
        ids = kit.prompt(15, BLOCK)
        first = other.open(kit.options(model="close")).match(OWNER, tokens=ids, lead=True)
        lease = client.open(kit.options(model="close")).match(OWNER, tokens=ids, lead=True)
        got = []

        def wait():
            try:
                lease.wait(deadline=30)
            except PrefixdError as error:
                got.append(error.status)

        thread = threading.Thread(target=wait)
        thread.start()
        kit.wait_until(client._lock.locked)
        client.close()
        thread.join(10)
        self.assertEqual(got, [Status.GONE])
        self.assertEqual(client._link.fileno(), -1)
        first.release()

    def test_deadlines_that_are_none(self):
        client = self.client()
        for wrong in (-1, float("nan"), "1"):
            with self.subTest(wrong), self.fails(Status.ARGUMENT, "deadline"):
                client.ping(deadline=wrong)
            with self.subTest(wrong), self.fails(Status.ARGUMENT, "deadline"):
                prefixd.Client(self.daemon.socket, deadline=wrong)
        client.ping(deadline=float("inf"))
        with self.fails(Status.DEADLINE):
            client.ping(deadline=0)

    def test_a_view_outlives_lease_and_client(self):
        client = prefixd.Client(self.daemon.socket)
        ns = client.open(kit.options(model="outlive"))
        ids = kit.store(ns, 14, 1)
        with ns.match(OWNER, tokens=ids) as lease:
            view = lease.pool[lease.slots[0]]
        client.close()
        del client, ns, lease
        gc.collect()
        self.assertEqual(int(view[0]), 14 * 31 % 251)
        with self.fails(Status.GONE):
            closed = prefixd.Client(self.daemon.socket)
            closed.close()
            closed.ping()


class Long(Live):
    settings = {"pool_blocks": 20000, "max_keys": 1000, "max_frame": "64KiB"}

    def test_a_prompt_of_100k_tokens_is_cut(self):
        client = self.client()
        ns = client.open(kit.options(model="long", block_bytes=64))
        ids = np.random.default_rng(1).integers(0, 50000, 100_005)
        n = 100_005 // BLOCK
        with ns.match(OWNER, tokens=ids) as lease:
            self.assertEqual(lease.result.n_device, 0)
            while lease.slots.size < n:
                todo = lease.reserve(n - lease.slots.size)
                lease.room[todo.slots, 0] = (todo.first + np.arange(todo.n)) % 251
                lease.commit(todo.n, checksums=bytes(16 * todo.n))
            self.assertEqual(todo.n, n, "more than one frame of checksums")
        with ns.match(OWNER, tokens=ids) as lease:
            self.assertEqual((lease.result.n_device, lease.result.miss_token), (n, n * BLOCK))
            np.testing.assert_array_equal(lease.pool.array[lease.slots, 0], np.arange(n) % 251)
            self.assertEqual(lease.release().queried_tokens, 100_005)
        with ns.match(OWNER, tokens=ids[:160]) as lease:
            self.assertEqual(lease.extend(tokens=ids[160:]).n_device, n - 10)
            self.assertEqual(lease.slots.size, n)
        # A path is asked for as far as one frame goes; what lies behind is not known to be there.
        found = ns.probe(OWNER, tokens=ids, bitmap=True)
        self.assertEqual((found.n_device, found.bitmap.size, found.bitmap.sum()), (1000, n, 1000))
        self.assertEqual(ns.probe(OWNER, tokens=ids).n_device, 1000)
        twice = np.concatenate((ids[: 1000 * BLOCK], ids[: 1000 * BLOCK]))
        self.assertEqual(ns.probe(OWNER, tokens=twice, bitmap=True).bitmap.sum(), 1000, "no path begins twice")
        with self.fails(Status.LIMIT):
            ns.explain(OWNER, tokens=ids)
        client.ping()

    def test_digests_are_probed_in_parts(self):
        ns = self.client().open(kit.digests(model="long", block_bytes=64))
        keys = np.random.default_rng(2).integers(0, 256, (2500, 16), np.uint8)
        with ns.match(OWNER, digests=keys) as lease:
            self.assertEqual(lease.reserve(2500).n, 2500)
            lease.commit()
        keys[[3, 1500, 2499]] ^= 1
        found = ns.probe(OWNER, digests=keys, bitmap=True).bitmap
        np.testing.assert_array_equal(np.flatnonzero(~found), [3, 1500, 2499])

    def test_replies_that_were_cut_add_up(self):
        """Two prompts whose blocks take turns in the pool: one run per block, too many for one reply."""
        ns = self.client().open(kit.options(model="turns", block_bytes=64))
        n = 8400
        a, b = (np.random.default_rng(seed).integers(0, 50000, n * BLOCK) for seed in (3, 4))
        with ns.match(OWNER, tokens=a) as one, ns.match(OWNER, tokens=b) as two:
            for _ in range(n):
                for lease in (one, two):
                    todo = lease.reserve(1)
                    lease.room[todo.slots, 0] = todo.first % 251
            for lease in (one, two):
                self.assertEqual(lease.commit().n_stored, n)
            self.assertGreater((np.diff(one.slots) != 1).sum(), 8191)
            want = one.slots
        with ns.match(OWNER, tokens=a) as lease:
            self.assertEqual(lease.result.n_device, n)
            np.testing.assert_array_equal(lease.slots, want)
            np.testing.assert_array_equal(lease.result.slots, want)
            np.testing.assert_array_equal(lease.pool.array[lease.slots, 0], np.arange(n) % 251)
            self.assertEqual(lease.release().hit_device_tokens, n * BLOCK)


class Waiting(Live):
    def test_one_leads_and_the_other_waits(self):
        a, b = self.client(), self.client()
        ns, other = a.open(kit.options()), b.open(kit.options())
        ids = kit.prompt(20, 4 * BLOCK)
        got = []
        with ns.match(OWNER, tokens=ids, lead=True) as lease:
            self.assertEqual((lease.result.n_device, lease.result.n_pending), (0, 0))

            def follow():
                with other.match(OWNER, tokens=ids, lead=True) as waiting:
                    got.append(waiting.result.n_pending)
                    got.append(waiting.wait(deadline=10))
                    got.append(waiting.extend(lead=True).n_device)
                    got.append(kit.right(waiting, waiting.slots, 20))
                    got.append(waiting.release().hit_pending_tokens)

            thread = threading.Thread(target=follow)
            thread.start()
            kit.wait_until(lambda: got)
            todo = lease.reserve(4)
            kit.fill(lease, todo, 20)
            lease.commit()
            thread.join()
        self.assertEqual(got, [4, (prefixd.WaitState.READY, 4, 0), 4, True, 4 * BLOCK])

    def test_who_waits_leads_when_the_leader_gives_up(self):
        a, b = self.client(), self.client()
        ids = kit.prompt(21, BLOCK)
        first = a.open(kit.options()).match(OWNER, tokens=ids, lead=True)
        with b.open(kit.options()).match(OWNER, tokens=ids, lead=True) as lease:
            start = time.monotonic()
            with self.fails(Status.DEADLINE):
                lease.wait(deadline=0.1)
            self.assertLess(time.monotonic() - start, 3.0)
            first.release()
            self.assertEqual(lease.wait().state, prefixd.WaitState.LEAD)
            lease.reserve(1)
            with self.fails(Status.WRONG_STATE):
                lease.wait()
            self.assertEqual(lease.commit().n_stored, 1)
            b.ping()


class HostTier(Live):
    settings = {"pool_blocks": 64, "host_blocks": 256, "prefill_rate": 1}

    def test_blocks_come_up_from_host_memory(self):
        client = self.client()
        ns = client.open(kit.options())
        ids = kit.store(ns, 30, 32)
        for seed in range(31, 35):
            kit.store(ns, seed, 32)  # pushes them down
        kit.wait_until(lambda: ns.probe(OWNER, tokens=ids).n_host == 32)
        with ns.match(OWNER, tokens=ids) as lease:
            self.assertEqual((lease.result.n_device, lease.result.n_host, lease.result.loading), (0, 32, False))
            with self.fails(Status.WRONG_STATE):
                lease.load_wait()
        with ns.match(OWNER, tokens=ids, promote=True, load_deadline=5.0) as lease:
            self.assertEqual((lease.result.n_host, lease.result.loading), (32, True))
            client.ping()  # the end may come between any two replies
            self.assertEqual(lease.load_wait(deadline=10), (32, Reason.NONE))
            self.assertEqual(lease.extend().n_device, 32)
            self.assertTrue(kit.right(lease, lease.slots, 30))
            with self.fails(Status.WRONG_STATE):
                lease.load_wait()
            self.assertEqual(lease.release().hit_host_tokens, 32 * BLOCK)

    def test_prefetch_brings_them_up_unasked(self):
        ns = self.client().open(kit.options(model="fetch"))
        ids = kit.store(ns, 40, 16)
        for seed in range(41, 48):
            kit.store(ns, seed, 16)
        kit.wait_until(lambda: ns.probe(OWNER, tokens=ids).n_host == 16)
        self.assertEqual(ns.prefetch(OWNER, tokens=ids, load_deadline=5.0), (0, 16, 0))
        self.assertTrue(kit.wait_until(lambda: ns.probe(OWNER, tokens=ids).n_device == 16))

    def test_reserving_ends_a_load(self):
        ns = self.client().open(kit.options(model="ends"))
        ids = kit.store(ns, 50, 8)
        for seed in range(51, 63):
            kit.store(ns, seed, 16)
        kit.wait_until(lambda: ns.probe(OWNER, tokens=ids).n_host == 8)
        with ns.match(OWNER, tokens=ids, promote=True) as lease:
            self.assertTrue(lease.result.loading)
            todo = lease.reserve(8)
            kit.fill(lease, todo, 50)
            self.assertEqual(lease.commit(todo.n).slots.size, todo.n)
            with self.fails(Status.WRONG_STATE):
                lease.load_wait()


class Stranger:
    """A namespace that is open nowhere."""

    info = {"ns": 999}
    life = 1


class Events(Live):
    def test_a_subscriber_hears_what_is_stored_and_what_goes(self):
        worker, listener = self.client(), self.client()
        ns = worker.open(kit.options())
        seen = listener.open(kit.options(), map="no")
        stream = listener.subscribe(seen)
        kit.store(ns, 70, 3)
        changes = [stream.next(deadline=5) for _ in range(3)]
        self.assertEqual([c.kind for c in changes], [prefixd.ChangeKind.STORED] * 3)
        self.assertEqual([c.position for c in changes], [0, 1, 2])
        self.assertEqual([c.parent for c in changes], [b"", changes[0].block, changes[1].block])
        self.assertEqual({c.tier for c in changes}, {prefixd.Tier.DEVICE})
        self.assertEqual({c.n_tokens for c in changes}, {BLOCK})
        self.assertEqual({c.root for c in changes}, {ns.probe(OWNER, tokens=[1]).root})
        self.assertIsNone(stream.next(deadline=0.05))
        with self.fails(Status.WRONG_STATE):
            listener.ping()
        with self.fails(Status.WRONG_STATE):
            listener.subscribe()
        again = self.client()
        again.open(kit.options(), map="no")
        missed = again.subscribe(since=changes[1].number, life=worker.boot)
        for change, want in zip(missed, changes[1:]):
            self.assertEqual(change, want)
            if change == changes[-1]:
                break
        with self.fails(Status.ARGUMENT, "life"):
            self.client().subscribe(since=1)
        with self.fails(Status.UNKNOWN_NAMESPACE):
            worker._run(call := worker._begin(None), worker._session.subscribe(call, Stranger(), 0, b""))
        worker.ping()  # a refusal ends nothing
        self.assertEqual(worker._session.life, 1)
        with self.fails(Status.WRONG_STATE):
            prefixd.Subscription(worker, 0, 0).next()
