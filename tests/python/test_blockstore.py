"""BlockStore against the real daemon: right bytes or a miss, never an exception, never late."""

import gc
import logging
import sys
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
from blockstore_kit import (  # noqa: E402
    IDENTITY, N, OWNER, Traffic, WithDaemon, block, descriptors, eventually, key, path, room, run_all, store,
)  # fmt: skip

import prefixd  # noqa: E402
from prefixd.blockstore import BlockStore, digest_of  # noqa: E402

logging.getLogger("prefixd.blockstore").setLevel(logging.CRITICAL)


class Paths(WithDaemon):
    def test_what_one_stores_another_reads(self):
        keys, other = path("a", 20), store(self.daemon)
        self.assertEqual(self.store.insert(keys[:12], 0, [block(k) for k in keys[:12]]), 12)
        self.assertEqual(self.store.insert(keys, 12, [block(k) for k in keys[12:]]), 8)
        with other.lookup(keys) as hit:
            self.assertEqual((hit.n, len(hit), len(hit.slots), hit.lead, hit.pending), (20, 20, 20, False, 0))
            outs = room(20)
            self.assertEqual(hit.read_many(range(20), outs), [True] * 20)
            for i, out in enumerate(outs):
                self.assertTrue((out == block(keys[i])).all())
            out = room()[0]
            self.assertFalse(hit.read(20, out) or hit.read(-1, out))
            self.assertFalse(out.any())
        self.assertFalse(hit.read(0, out), "a closed hit reads nothing")
        self.assertIsNone(hit.view(0))
        # A prompt that differs from its third block on.
        with other.lookup(keys[:2] + path("b", 20)) as hit:
            self.assertEqual(hit.n, 2)
        with other.lookup([]) as hit:
            self.assertEqual(hit.n, 0)
        stats = other.stats()
        self.assertEqual((stats["lookups"], stats["hit_blocks"], stats["missed_blocks"]), (3, 22, 20))
        self.assertEqual((stats["bytes_read"], stats["errors"]), (20 * N, {}))
        self.assertEqual((self.store.stats()["stored"], self.store.stats()["bytes_written"]), (20, 20 * N))
        other.close()
        self.clean()

    def test_stored_already_counts_and_is_not_copied(self):
        keys = path("a", 8)
        self.assertEqual(self.store.insert(keys, 0, [block(k) for k in keys[:6]]), 6)
        called = []
        self.assertEqual(self.store.insert(keys, 2, [called.append] * 2), 2)
        self.assertEqual(called, [])
        self.assertEqual(
            self.store.insert(keys, 3, [called.append] * 3 + [block(keys[6]), block(keys[7])]), 5
        )
        self.assertEqual(called, [])
        stats = self.store.stats()
        self.assertEqual((stats["stored"], stats["duplicates"], stats["not_stored"]), (8, 5, 0))
        self.clean()

    def test_a_path_has_no_holes(self):
        keys = path("a", 8)
        self.assertEqual(self.store.insert(keys, 2, [block(k) for k in keys[2:]]), 0)
        self.assertEqual(self.store.lookup(keys).n, 0)
        self.assertEqual(self.store.stats()["not_stored"], 6)
        self.assertEqual(self.store.stats()["errors"], {"HOLE": 1})
        gc.collect()
        self.store.contains([keys[0]])
        self.clean()

    def test_views_are_read_only_and_lie_in_the_pool(self):
        keys = path("a", 3)
        self.store.insert(keys, 0, [block(k) for k in keys])
        with self.store.lookup(keys) as hit:
            view = hit.view(1)
            self.assertTrue((view == block(keys[1])).all())
            with self.assertRaises(ValueError):
                view[0] = 1
            self.assertIsNone(hit.view(3))
            self.assertTrue(hit.still_right(1))
        self.assertFalse(hit.still_right(1))
        self.clean()

    def test_every_kind_of_buffer(self):
        keys = path("a", 7)
        whole = [block(k) for k in keys]
        # The same bytes as a two-dimensional array, rows of a larger one, and elements of another type.
        wide = np.zeros((N // 64, 128), np.uint8)
        wide[:, ::2] = whole[3].reshape(-1, 64)

        def fill(slot):
            self.assertEqual((slot.dtype, slot.shape), (np.uint8, (N,)))
            slot[:] = whole[6]

        given = [whole[0].tobytes(), bytearray(whole[1]), memoryview(whole[2]), wide[:, ::2],
                 whole[4].view(np.float16).reshape(4, -1), whole[5].view("<u4"), fill]  # fmt: skip
        self.assertEqual(self.store.insert(keys, 0, given), 7)
        taken = []
        outs = [bytearray(N), memoryview(bytearray(N)), np.zeros(N, np.uint8),
                np.zeros((N // 64, 64), np.uint8),
                np.zeros((N // 64, 128), np.uint8)[:, ::2], np.zeros(N // 2, np.float16),
                lambda view: taken.append(bytes(view))]  # fmt: skip
        with self.store.lookup(keys) as hit:
            self.assertEqual(hit.read_many(range(7), outs), [True] * 7)
        for out, right in zip(outs[:6], whole):
            data = out.tobytes() if isinstance(out, np.ndarray) else bytes(out)
            self.assertEqual(data, right.tobytes())
        self.assertEqual(taken, [whole[6].tobytes()])

        def scribble(view):
            view[:] = 0

        with self.store.lookup(keys) as hit:
            self.assertFalse(hit.read(2, scribble), "what reads gets no way to write")
            out = room()[0]
            self.assertTrue(hit.read(2, out) and (out == whole[2]).all())
        self.clean()

    def test_what_is_not_a_block_is_not_stored(self):
        keys = path("a", 6)
        good = [block(k) for k in keys]
        wrong = [
            b"",
            b"x",
            good[0][:-1],
            np.zeros(N + 1, np.uint8),
            None,
            7,
            "text",
            np.zeros(N // 8, object),
        ]
        for value in wrong:
            # What lies before the wrong one is stored, what lies behind it is not.
            name = path(repr(value), 6)
            self.assertEqual(self.store.insert(name, 0, [*good[:3], value, *good[4:]]), 3, repr(value))
            with self.store.lookup(name) as hit:
                self.assertEqual(hit.n, 3)

        def fails(slot):
            raise KeyError("of the engine")

        self.assertEqual(self.store.insert(keys, 0, [good[0], fails]), 1)
        self.assertEqual(self.store.insert(keys, 4, good), 0, "more blocks than keys")
        self.assertEqual(self.store.insert(keys, -1, good[:1]), 0)
        with self.store.lookup(keys) as hit:
            self.assertFalse(hit.read(0, bytearray(N - 1)) or hit.read(0, b"read only".ljust(N)))
            self.assertFalse(hit.read(0, fails) or hit.read(0, None))
            self.assertTrue(hit.read(0, bytearray(N)))
        self.assertEqual(self.store.stats()["errors"]["KeyError"], 2)
        self.clean()

    def test_nothing_a_caller_gives_raises(self):
        for bad in (None, 5, [None], [5], "text", [b""], object()):
            self.store.lookup(bad if hasattr(bad, "__len__") else [bad]).close()
            self.assertEqual(self.store.insert([bad], 0, [bad]), 0)
            self.assertEqual(self.store.get([bad], [bad]), [False])
            self.assertEqual(self.store.put([bad], [bad]), [False])
            self.assertEqual(self.store.contains([bad]), [False])
        self.assertEqual(self.store.get([key(1)], []), [False])
        self.assertEqual(self.store.put([key(1)], []), [False])
        self.assertEqual(
            (self.store.get([], []), self.store.put([], []), self.store.contains([])), ([], [], [])
        )
        self.clean()

    def test_token_mode_is_refused_at_the_start(self):
        with self.assertRaises(prefixd.PrefixdError) as caught:
            BlockStore(self.daemon.socket, IDENTITY.tokens(), OWNER)
        self.assertEqual(caught.exception.field, "options")
        with self.assertRaises(prefixd.PrefixdError):
            BlockStore(self.daemon.socket, IDENTITY.digests(32, b"p"), None)

    def test_a_hit_that_is_forgotten_is_given_back(self):
        keys = path("a", 4)
        self.store.insert(keys, 0, [block(k) for k in keys])
        hit = self.store.lookup(keys)
        self.assertEqual(self.daemon.ctl("pins", "--json")["total"], 1)
        del hit
        gc.collect()
        self.store.contains(keys)  # the next use of the connection takes it along
        self.clean()

    def test_close_gives_back_what_open_hits_hold(self):
        keys = path("a", 4)
        self.store.insert(keys, 0, [block(k) for k in keys])
        hits = [self.store.lookup(keys) for _ in range(3)]
        self.assertEqual(self.daemon.ctl("pins", "--json")["total"], 3)
        self.store.close()
        self.clean()
        self.assertFalse(hits[0].read(0, room()[0]))
        for hit in hits:
            hit.close()
        self.assertEqual((self.store.lookup(keys).n, self.store.insert(keys, 0, [block(keys[0])])), (0, 0))

    def test_a_call_under_way_at_close_makes_no_connection(self):
        connections = self.store._connections
        self.store.close()
        self.assertIsNone(connections._another())
        with self.assertRaises(prefixd.connections.Late):
            connections.borrow(time.monotonic() + 1)
        self.assertIsNone(connections.borrow_to_wait())
        self.assertEqual((connections._all, connections._waiting), ([], 0))

    def test_owners_and_identities_share_nothing(self):
        keys = path("a", 4)
        self.store.insert(keys, 0, [block(k) for k in keys])
        same = store(self.daemon)
        others = [
            store(self.daemon, owner=prefixd.Owner("default", b"salt")),
            store(self.daemon, identity=IDENTITY.with_(model="n")),
            store(self.daemon, identity=IDENTITY.with_(adapter="lora 1")),
            store(self.daemon, identity=IDENTITY.with_(tp_size=2)),
            BlockStore(self.daemon.socket, IDENTITY.digests(32, b"another seed"), OWNER, deadline=5),
        ]
        self.assertEqual([one.lookup(keys).n for one in [same, *others]], [4, 0, 0, 0, 0, 0])
        for one in [same, *others]:
            one.close()
        self.clean()


class Flat(WithDaemon):
    def test_order_duplicates_and_what_is_not_there(self):
        keys = [key("flat", i) for i in range(150)]
        done = self.store.put(keys, [block(k) for k in keys])
        self.assertEqual(done, [True] * 150)
        other = store(self.daemon)
        asked = [keys[7], key("no"), keys[149], keys[7], key("nor"), keys[0]]
        outs = room(6)
        self.assertEqual(other.get(asked, outs), [True, False, True, True, False, True])
        for k, out, there in zip(asked, outs, [True, False, True, True, False, True]):
            self.assertTrue((out == block(k)).all() if there else not out.any())
        self.assertEqual(other.contains(asked), [True, False, True, True, False, True])
        outs = room(150)
        self.assertEqual(other.get(keys, outs), [True] * 150)
        self.assertTrue(all((out == block(k)).all() for out, k in zip(outs, keys)))
        # Of a key that comes twice the first block counts, and both places hear of it.
        twice = [key("t"), key("u"), key("t")]
        self.assertEqual(other.put(twice, [block(twice[0]), block(twice[1]), b"wrong"]), [True] * 3)
        self.assertEqual(other.put(twice, [b"wrong"] * 3), [True] * 3, "what is stored is not copied")
        other.close()
        self.clean()

    def test_one_that_fails_is_one(self):
        keys = [key("flat", i) for i in range(9)]
        given = [block(k) for k in keys]
        given[2], given[5] = given[2][:-1], None
        right = [True, True, False, True, True, False, True, True, True]
        self.assertEqual(self.store.put(keys, given), right)
        self.assertEqual(self.store.contains(keys), right)
        outs = room(9)
        outs[1], outs[7] = bytearray(1), "text"
        expected = [i not in (1, 2, 5, 7) for i in range(9)]
        self.assertEqual(self.store.get(keys, outs), expected)
        self.assertTrue(all((outs[i] == block(keys[i])).all() for i in range(9) if expected[i]))
        self.clean()

    def test_keys_of_any_length(self):
        keys = ["chunk 1", b"short", b"l" * 100, "é", b"", key("as it is")]
        blocks = [block(repr(k).encode()) for k in keys]
        self.assertEqual(self.store.put(keys, blocks), [True] * 6, self.store.stats())
        outs = room(6)
        self.assertEqual(self.store.get(keys, outs), [True] * 6)
        self.assertTrue(all((out == right).all() for out, right in zip(outs, blocks)))
        self.assertEqual(
            self.store.contains([b"chunk 1", "short", digest_of(b"short")]), [False, False, True]
        )
        self.assertEqual(len({digest_of("a"), digest_of(b"a"), digest_of(b"a", 31)}), 3)
        self.assertEqual(len(digest_of("a", 20)), 20)
        self.clean()

    def test_flat_keys_and_paths_do_not_contradict(self):
        """Whatever was stored first, and in whichever order: no CONFLICT, and the path is found whole."""
        keys = path("mixed", 12)
        self.assertEqual(self.store.put(keys[3:6], [block(k) for k in keys[3:6]]), [True] * 3)
        self.assertEqual(self.store.insert(keys[:8], 0, [block(k) for k in keys[:8]]), 8)
        self.assertEqual(
            self.store.put(list(reversed(keys)), [block(k) for k in reversed(keys)]), [True] * 12
        )
        self.assertEqual(self.store.insert(keys, 0, [block(k) for k in keys]), 12)
        with self.store.lookup(keys) as hit:
            outs = room(12)
            self.assertEqual((hit.n, hit.read_many(range(12), outs)), (12, [True] * 12))
        flat = room(12)
        self.assertEqual(self.store.get(keys, flat), [True] * 12)
        for k, a, b in zip(keys, outs, flat):
            self.assertTrue((a == block(k)).all() and (b == block(k)).all())
        self.assertEqual(self.store.stats()["errors"], {})
        self.clean()

    def test_many_threads_of_both_kinds_do_not_contradict(self):
        keys = path("mixed", 24)
        wrong = []

        def work(n):
            mine = store(self.daemon)
            order = np.random.default_rng(n).permutation(24)
            for _ in range(5):
                if n % 2:
                    mine.insert(keys, 0, [block(k) for k in keys])
                else:
                    mine.put([keys[i] for i in order], [block(keys[i]) for i in order])
            if mine.stats()["errors"]:
                wrong.append(mine.stats()["errors"])
            mine.close()

        run_all([threading.Thread(target=work, args=(n,)) for n in range(6)])
        self.assertEqual(wrong, [])
        self.assertEqual(self.store.lookup(keys).n, 24)
        gc.collect()
        self.store.contains(keys[:1])
        self.clean()


class Threads(WithDaemon):
    OPTIONS = {"pool_blocks": 1024}

    def test_eight_threads(self):
        before = descriptors()
        traffic = Traffic(self.store).start()
        time.sleep(3)
        traffic.end(self)
        self.assertGreater(traffic.hits, 200)
        self.assertEqual(self.store.stats()["errors"], {})
        self.store.close()
        self.assertTrue(eventually(lambda: descriptors() <= before))
        self.clean()

    def test_threads_that_ended_leave_nothing(self):
        keys = path("a", 4)
        self.store.insert(keys, 0, [block(k) for k in keys])
        before, one, found = descriptors(), store(self.daemon, connections=4, name="four"), []

        def work():
            with one.lookup(keys) as hit:
                found.append(hit.n)

        # What a thread kept to its end, 88 of them would soon miss.
        for _ in range(11):
            run_all([threading.Thread(target=work) for _ in range(8)])
        self.assertEqual(found, [4] * 88)
        self.assertEqual(one.stats()["errors"], {})
        sessions = self.daemon.ctl("status", "--json")["sessions"]
        self.assertIn(sum(s["name"] == "four" for s in sessions), range(1, 5))
        # A socket each, and before Python 3.13 the mappings' descriptors: the pool's, the generations'.
        self.assertLessEqual(descriptors(), before + 3 * 4)
        one.close()
        self.clean()

    def test_more_threads_than_connections(self):
        one = store(self.daemon, connections=2)
        traffic = Traffic(one).start()
        time.sleep(1)
        traffic.end(self)
        self.assertGreater(traffic.hits, 20)
        self.assertEqual(one.stats()["errors"], {})
        one.close()
        self.clean()

    def test_hits_cross_threads(self):
        keys = path("a", 4)
        self.store.insert(keys, 0, [block(k) for k in keys])
        hits = [self.store.lookup(keys) for _ in range(8)]
        wrong = []

        def work(hit):
            out = room()[0]
            for _ in range(50):
                if not hit.read(2, out) or not (out == block(keys[2])).all():
                    wrong.append(hit)
            hit.close()

        run_all([threading.Thread(target=work, args=(hit,)) for hit in hits])
        self.assertEqual(wrong, [])
        self.clean()


class Small(WithDaemon):
    OPTIONS = {"pool_blocks": 32}

    def test_a_pool_far_smaller_than_what_is_wanted(self):
        traffic = Traffic(self.store, n_keys=800).start()
        time.sleep(3)
        traffic.end(self)
        self.assertGreater(traffic.hits, 10)
        self.assertGreater(traffic.misses, traffic.hits)
        self.assertLessEqual(set(self.store.stats()["errors"]), {"BUSY", "HOLE", "LATE", "DEADLINE"})
        self.store.close()
        self.clean()

    def test_a_path_longer_than_the_pool_is_stored_as_far_as_it_goes(self):
        keys = path("long", 40)
        n = self.store.insert(keys, 0, [block(k) for k in keys])
        self.assertEqual(n, 32)
        with self.store.lookup(keys) as hit:
            outs = room(32)
            self.assertEqual((hit.n, hit.read_many(range(32), outs)), (32, [True] * 32))
        self.assertTrue(all((out == block(k)).all() for out, k in zip(outs, keys)))
        # Many flat keys at once: each that is said to be stored was, when it was.
        keys = [key("many", i) for i in range(100)]
        self.assertEqual(self.store.put(keys, [block(k) for k in keys]), [True] * 100)
        self.assertEqual(sum(self.store.contains(keys)), 32)
        self.clean()

    def test_many_flat_keys_hold_few_blocks_at_a_time(self):
        keys = [key("window", i) for i in range(24)]
        self.assertEqual(self.store.put(keys, [block(k) for k in keys]), [True] * 24)
        held = []

        def look(view):
            held.append(self.daemon.ctl("pins", "--json")["total"])

        self.assertEqual(self.store.get(keys, [look] * 24, deadline=60), [True] * 24)
        self.assertEqual(max(held), 4, "an eighth of the pool")
        self.clean()

    def test_while_all_is_held_nothing_is_stored_and_nothing_is_wrong(self):
        keys, more = path("held", 32), path("more", 4)
        self.store.insert(keys, 0, [block(k) for k in keys])
        with self.store.lookup(keys) as hit:
            self.assertEqual(hit.n, 32)
            self.assertEqual(self.store.insert(more, 0, [block(k) for k in more]), 0)
            self.assertEqual(self.store.put(more, [block(k) for k in more]), [False] * 4)
            self.assertGreaterEqual(self.store.stats()["errors"]["BUSY"], 2)
            out = room()[0]
            self.assertTrue(hit.read(31, out) and (out == block(keys[31])).all())
        self.assertEqual(self.store.insert(more, 0, [block(k) for k in more]), 4)
        self.clean()


class Tiers(WithDaemon):
    OPTIONS = {"pool_blocks": 32, "host_blocks": 512}

    def test_what_went_to_host_memory_comes_back(self):
        paths = [path(("tier", i), 16) for i in range(16)]
        for keys in paths:
            self.assertEqual(self.store.insert(keys, 0, [block(k) for k in keys]), 16)
        other = store(self.daemon)
        for keys in paths:
            with other.lookup(keys) as hit:
                outs = room(hit.n)
                self.assertEqual((hit.n, hit.read_many(range(hit.n), outs)), (16, [True] * 16))
                self.assertTrue(all((out == block(k)).all() for out, k in zip(outs, keys)))
        with other.lookup(paths[0][:8] + path("x", 2), promote=False) as hit:
            self.assertLess(hit.n, 8, "without promote nothing comes up")
        stats = other.stats()
        self.assertEqual((stats["errors"], stats["late_loads"]), ({}, 0))
        other.close()
        self.store.close()
        self.clean()

    def test_flat_keys_come_back(self):
        keys = [key("tier", i) for i in range(200)]
        self.assertEqual(self.store.put(keys, [block(k) for k in keys]), [True] * 200)
        self.assertEqual(self.store.contains(keys), [True] * 200)
        for at in range(0, 200, 10):
            outs = room(10)
            self.assertEqual(self.store.get(keys[at : at + 10], outs), [True] * 10)
            self.assertTrue(all((out == block(k)).all() for out, k in zip(outs, keys[at:])))
        # What lies lower is stored too: it is not copied once more.
        called = []
        self.assertEqual(self.store.put(keys[:20], [called.append] * 20), [True] * 20)
        self.assertEqual(called, [])
        self.clean()

    def test_a_path_goes_on_behind_what_lies_lower(self):
        keys = path("front", 12)
        self.store.insert(keys, 0, [block(k) for k in keys[:8]])
        for i in range(8):
            other = path(("push", i), 16)
            self.store.insert(other, 0, [block(k) for k in other])
        with self.store.lookup(keys, promote=False) as hit:
            self.assertLess(hit.n, 8)
        self.assertEqual(self.store.insert(keys, 8, [block(k) for k in keys[8:]]), 4)
        with self.store.lookup(keys) as hit:
            outs = room(12)
            self.assertEqual((hit.n, hit.read_many(range(12), outs)), (12, [True] * 12))
        self.assertTrue(all((out == block(k)).all() for out, k in zip(outs, keys)))
        self.clean()

    def test_traffic_over_tiers(self):
        traffic = Traffic(self.store, n_threads=4, n_keys=300).start()
        time.sleep(3)
        traffic.end(self)
        self.assertGreater(traffic.hits, 50)
        self.store.close()
        self.clean()


class SingleFlight(WithDaemon):
    def test_one_computes_and_the_others_wait(self):
        keys = path("flight", 8)
        led, found, wrong = [], [], []

        def work():
            with self.store.lookup(keys, lead=True, wait=10) as hit:
                if hit.lead:
                    led.append(hit.n)
                    time.sleep(0.2)
                    if hit.insert([block(k) for k in keys[hit.n :]]) != 8 or hit.n != 8:
                        wrong.append(hit)
                outs = room(hit.n)
                found.append(hit.n)
                for k, out, ok in zip(keys, outs, hit.read_many(range(hit.n), outs)):
                    if not ok or not (out == block(k)).all():
                        wrong.append(k)

        run_all([threading.Thread(target=work) for _ in range(6)])
        self.assertEqual((led, found, wrong), ([0], [8] * 6, []))
        self.assertEqual(self.store.stats()["errors"], {})
        self.clean()

    def test_a_leader_that_gives_up_is_followed_by_another(self):
        keys = path("flight", 4)
        first = self.store.lookup(keys, lead=True)
        self.assertTrue(first.lead)
        got = []

        def work():
            with self.store.lookup(keys, lead=True, wait=10) as hit:
                got.append((hit.lead, hit.n))

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.2)
        first.close()
        thread.join(20)
        self.assertEqual(got, [(True, 0)])
        self.clean()

    def test_what_a_failed_insert_left_reserved_is_never_published(self):
        s = self.store
        keys = path("holed", 8)
        good = [block(key) for key in keys]
        with s.lookup(keys, lead=True) as hit:
            self.assertEqual(hit.insert([good[0], b"too short", good[2]]), 1)
            # What is stored is named, and can be read.
            out = room()
            self.assertEqual(hit.n, 1)
            self.assertTrue(hit.read(0, out[0]))
            self.assertTrue(np.array_equal(out[0], good[0]))
            # Two slots are reserved and hold nothing: the next commit would begin with them.
            self.assertEqual(hit.insert(good[hit.n :]), 0)
        with s.lookup(keys) as hit:
            out = room(8)
            right = [hit.read(i, out[i]) and np.array_equal(out[i], good[i]) for i in range(hit.n)]
            self.assertEqual(right, [True])
        # A lease of its own goes on where that one ended.
        self.assertEqual(s.insert(keys, 1, good[1:]), 7)
        with s.lookup(keys) as hit:
            self.assertEqual(hit.n, 8)

    def test_those_who_wait_leave_connections_to_others(self):
        keys = path("flight", 4)
        one = store(self.daemon, connections=2)
        first = one.lookup(keys, lead=True)  # on one connection
        got = []

        def work():
            with one.lookup(keys, lead=True, wait=10) as hit:
                got.append((hit.n, hit.lead))

        thread = threading.Thread(target=work)  # waits on the other
        thread.start()
        self.assertTrue(eventually(lambda: one._connections._waiting == 1))
        time.sleep(0.1)
        started = time.monotonic()
        with one.lookup(keys, lead=True, wait=10) as hit:
            self.assertEqual((hit.n, hit.lead, hit.pending), (0, False, 4), "who cannot wait is told at once")
        self.assertLess(time.monotonic() - started, 5)
        self.assertEqual(first.insert([block(k) for k in keys]), 4, "the leader is not kept waiting")
        first.close()
        thread.join(20)
        self.assertEqual(got, [(4, False)])
        self.assertEqual(one._connections._waiting, 0)
        one.close()
        self.clean()

    def test_waiting_ends(self):
        keys = path("flight", 4)
        with self.store.lookup(keys, lead=True) as first:
            self.assertTrue(first.lead)
            started = time.monotonic()
            with self.store.lookup(keys, lead=True, wait=0.3) as hit:
                took = time.monotonic() - started
                self.assertEqual((hit.n, hit.lead, hit.pending), (0, False, 4))
            self.assertTrue(0.25 <= took < 3, took)
            with self.store.lookup(keys, lead=True) as hit:
                self.assertEqual((hit.lead, hit.pending), (False, 4), "without wait it says so at once")
        self.clean()


if __name__ == "__main__":
    unittest.main()
