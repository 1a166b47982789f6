"""SGLang's own controllers, threads, pools and storage factory on prefixd, in two processes.

See sglang_pools.py for what of SGLang is real (all that runs) and what is not (computing, the GPU).
"""

import importlib.util
import os
import signal
import sys
import threading
import time
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "connectors"))

if importlib.util.find_spec("sglang") is None:
    raise unittest.SkipTest("SGLang is not installed here")

import torch  # noqa: E402
from conformance import IdentityConformance  # noqa: E402
from prefixd_sglang import PrefixdHiCache  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage import StorageBackendFactory  # noqa: E402
from sglang_case import PAGE, POOLS, SLACK, WORKER, Case, Daemon, pages, pools, tokens  # noqa: E402

LAYOUTS = [
    ("mha", "layer_first"), ("mha", "page_first"), ("mha", "page_first_direct"), ("mha", "page_head"),
    ("asymmetric", "page_first"), ("asymmetric", "page_first_direct"),
    ("mla", "layer_first"), ("mla", "page_first"), ("mla", "page_first_direct"),
]  # fmt: skip


def tearDownModule():
    WORKER.stop()


class TwoProcesses(Case):
    def test_put_through_one_hit_through_another_every_layout(self):
        """Both controllers, all pools and layouts: a page's bytes, put by one process, read by another."""
        for number, (kind, layout) in enumerate(LAYOUTS):
            for hybrid in (False, True):
                with self.subTest(kind=kind, layout=layout, hybrid=hybrid):
                    first = pages(2 * number + hybrid + 1, 20)
                    a = self.here(kind=kind, layout=layout, hybrid=hybrid)
                    b = self.there(f"{kind} {layout} {hybrid}", kind=kind, layout=layout, hybrid=hybrid)
                    self.assertEqual(type(a.backend), PrefixdHiCache)
                    self.assertEqual(WORKER.ask("prefetch", b, tokens=[first])["result"]["hit"], 0)
                    self.assertEqual(a.backup(tokens(first)), 20)
                    self.assert_hit(WORKER.ask("prefetch", b, tokens=[first])["result"], 20)
                    # One page differs, and with it all that follow.
                    self.assert_hit(
                        WORKER.ask("prefetch", b, tokens=[[first[0], first[0] + 7 * PAGE], pages(90, 3)])[
                            "result"
                        ],
                        7,
                    )

    def test_other_sizes_and_types(self):
        for number, spec in enumerate((
            {"page": 1, "dtype": "float16", "layout": "layer_first"},
            {"page": 64, "dtype": "float32", "layers": 1, "heads": 1, "layout": "page_first_direct",
             "pages": 80},
            {"page": 32, "dtype": "bfloat16", "layers": 5, "heads": 3, "dim": 16, "layout": "page_first"},
        )):  # fmt: skip
            with self.subTest(**spec):
                a = self.here({"dtype": spec["dtype"]}, **spec)
                b = self.there(f"size {number}", {"dtype": spec["dtype"]}, **spec)
                run = [[0, 50 * spec["page"]]]
                self.assertEqual(a.backup(tokens(*run)), 50)
                self.assert_hit(WORKER.ask("prefetch", b, tokens=run)["result"], 50)

    def test_fp8_as_sglang_stores_it(self):
        for name, other in (("float8_e4m3fn", "fp8_e5m2"), ("float8_e5m2", "fp8_e4m3")):
            told = {"dtype": {"fp8_e5m2": "fp8_e4m3", "fp8_e4m3": "fp8_e5m2"}[other], "scales": "checkpoint"}
            a = self.here(told, dtype=name)
            b = self.here(told, dtype=name)
            c = self.here(
                {**told, "dtype": other}, dtype=name
            )  # stored alike: only the operator's word differs
            run = tokens(pages(len(self.instances), 5))
            self.assertEqual(a.backup(run), 5)
            self.assert_hit(b.prefetch(run), 5)
            self.assertEqual(c.prefetch(run)["hit"], 0)

    def test_older_interface_has_the_same_bytes(self):
        """Without interface_v1 SGLang moves flat pages; both find what the other stored."""
        for number, (kind, layout) in enumerate(case for case in LAYOUTS if case[0] != "asymmetric"):
            with self.subTest(kind=kind, layout=layout):
                old = self.here({"interface_v1": None}, kind=kind, layout=layout)
                new = self.here(kind=kind, layout=layout)
                one, two = tokens(pages(2 * number + 1, 6)), tokens(pages(2 * number + 2, 6))
                self.assertEqual((old.backup(one), new.backup(two)), (6, 6))
                self.assert_hit(new.prefetch(one), 6)
                self.assert_hit(old.prefetch(two), 6)


class Chains(Case):
    def test_exists_counts_leading_pages(self):
        a = self.here()
        run = pages(1, 20)
        keys = self.keys(a, run)
        indices = a.host.alloc(20 * PAGE)
        for i in (0, 1, 2, 3, 4, 8, 9):
            self.assertEqual(a.backend.batch_set_v1([keys[i]], indices[i * PAGE : (i + 1) * PAGE]), [True])
        self.assertEqual(a.backend.batch_exists(keys), 5)
        self.assertEqual(a.backend.batch_exists(keys[5:]), 0)
        self.assertEqual(a.backend.batch_exists(keys[8:]), 2)
        self.assertEqual([a.backend.exists(key) for key in keys[7:11]], [False, True, True, False])
        self.assertEqual(a.backend.batch_get_v1(keys, indices), [True] * 5 + [False] * 15)
        # What is stored already is counted and not written again; the holes are filled.
        self.assertEqual(a.backend.batch_set_v1(keys, indices), [True] * 20)
        self.assertEqual(a.backend.batch_exists(keys), 20)
        self.assertEqual(a.backend.batch_exists([]), 0)
        self.assertEqual(a.backend.batch_set_v1([], indices[:0]), [])

    def test_more_than_one_batch(self):
        a, b = self.here(), self.there()
        run = pages(1, 300)
        self.assertEqual(a.backup(tokens(run)), 300)
        self.assertEqual(self.daemon.ctl("pins", "--json")["pins"], [])
        self.assert_hit(WORKER.ask("prefetch", b, tokens=[run])["result"], 300)
        self.assertEqual(self.daemon.ctl("pins", "--json")["pins"], [])

    def test_found_however_it_was_stored(self):
        """With and without what SGLang tells of the pages before, in every order: the same is found."""
        number = 0
        for head_told in (True, False):
            for tail_told in (True, False):
                for tail_first in (True, False):
                    with self.subTest(head_told=head_told, tail_told=tail_told, tail_first=tail_first):
                        a = self.here()
                        number += 1
                        head, tail = pages(number, 9), [
                            number * 1_000_000 + 500_000,
                            number * 1_000_000 + 500_000 + 5 * PAGE,
                        ]
                        steps = [
                            lambda: a.backup(tokens(head), tell_prefix=head_told),
                            lambda: a.backup(tokens(tail), prior=tokens(head), tell_prefix=tail_told),
                        ]
                        if tail_first:
                            steps.reverse()
                        self.assertEqual(sorted(step() for step in steps), [5, 9])
                        b = self.here()
                        for told in (True, False):
                            self.assert_hit(b.prefetch(tokens(head, tail), tell_prefix=told), 14)
                            self.assert_hit(b.prefetch(tokens(tail), prior=tokens(head), tell_prefix=told), 5)

    def test_a_wrong_word_about_what_came_before(self):
        """SGLang's prefix keys skip pages when it trims a prefetch: the daemon is not misled."""
        a, b = self.here(), self.here()
        run, indices = pages(1, 12), a.host.alloc(12 * PAGE)
        keys = self.keys(a, run)
        for i, key in enumerate(keys):
            pools.write_page(a.host, a.spec, int(indices[i * PAGE]), key)
        wrong = HiCacheStorageExtraInfo(prefix_keys=[keys[0]])
        self.assertEqual(a.backend.batch_set_v1(keys[:1], indices[:PAGE]), [True])
        self.assertEqual(a.backend.batch_set_v1(keys[6:], indices[6 * PAGE :], wrong), [True] * 6)
        self.assertEqual(a.backup(tokens(run)), 12)
        self.assert_hit(b.prefetch(tokens(run)), 12)

    def test_another_stores_the_same_elsewhere_meanwhile(self):
        """While one copies, the other stores pages of the same run below another page: both get all."""
        a, b = self.here(), self.here()
        run, elsewhere = pages(1, 12), tokens(pages(2, 1))
        self.assertEqual(b.backup(elsewhere), 1)
        below = HiCacheStorageExtraInfo(prefix_keys=self.keys(b, pages(2, 1)))
        keys, theirs = self.keys(a, run), b.host.alloc(2 * PAGE)
        for i in (0, 1):
            pools.write_page(b.host, b.spec, int(theirs[i * PAGE]), keys[5 + i])
        store, meanwhile = a.backend._pages.store, []

        def interrupted(start, slot):
            if not meanwhile:
                meanwhile.append(b.backend.batch_set_v1(keys[5:7], theirs, below))
            store(start, slot)

        a.backend._pages.store = interrupted
        self.assertEqual(a.backup(tokens(run)), 12)
        self.assertEqual(meanwhile, [[True, True]])
        self.assert_hit(b.prefetch(tokens(run)), 12)

    def test_same_pages_by_several_at_once(self):
        """Instances that cut the same chain in other places store it at the same time."""
        instances = [self.here() for _ in range(4)]
        run = pages(1, 60)

        def put(instance, cut):
            for first in range(0, 60, cut):
                part = [run[0] + first * PAGE, run[0] + min(first + cut, 60) * PAGE]
                instance.backup(tokens(part), prior=tokens([run[0], part[0]]), tell_prefix=cut % 2 == 0)

        threads = [
            threading.Thread(target=put, args=(one, cut)) for one, cut in zip(instances, (7, 10, 60, 16))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for instance in instances:
            self.assert_hit(instance.prefetch(tokens(run)), 60)
        self.assert_alive(*instances)


class Evicted(Case):
    options = {"pool_blocks": 40, "pool_bytes": "512MiB"}

    def test_a_chain_is_given_up_from_its_end(self):
        a = self.here()
        head, tail = pages(1, 10), pages(2, 10)
        self.assertEqual(a.backup(tokens(head)), 10)
        self.assertEqual(a.backup(tokens(tail), prior=tokens(head)), 10)
        keys = pools.hashes(tokens(head, tail), a.spec)
        # The head is the older part; 30 other pages push 10 of these 20 out.
        self.assertEqual(a.backup(tokens(pages(3, 30))), 30)
        leading = a.backend.batch_exists(keys)
        self.assertEqual(sum(a.backend.exists(key) for key in keys), leading)
        self.assertEqual(leading, 10)
        self.assert_hit(a.prefetch(tokens(head, tail)), 10)

    def test_pool_smaller_than_the_working_set_gives_no_wrong_bytes(self):
        """Two processes write and read 300 pages through 40 slots: what is loaded is right, always."""
        a, b = self.here(layout="page_first"), self.there(layout="page_first")
        loaded = hits = 0
        for round_ in range(3):
            for number in range(1, 16):
                run = pages(number, 20)
                WORKER.send("backup" if (number + round_) % 2 else "prefetch", b, tokens=[run])
                mine = a.prefetch(tokens(run))
                a.backup(tokens(pages(number + 1, 20)))
                theirs = WORKER.answer()
                for result in (mine, theirs["result"]):
                    if isinstance(result, dict):
                        self.assertEqual(result["right"], result["loaded"], result)
                        loaded += result["loaded"]
                        hits += result["hit"] > 0
                self.assertTrue(theirs["alive"])
        self.assert_alive(a)
        self.assertGreater(loaded, 0)
        self.assertGreater(hits, 0)

    def test_more_than_the_pool_holds_at_once(self):
        """One prompt of more than twice the pool: its head stays, and nothing is wrong."""
        a = self.here()
        run = tokens(pages(1, 100))
        self.assertLess(a.backup(run), 100)
        result = a.prefetch(run)
        self.assert_hit(result, result["hit"])
        self.assertGreater(result["right"], 30)
        self.assertLessEqual(result["right"], 40)
        self.assert_alive(a)

    def test_what_is_said_to_be_stored_is(self):
        a = self.here()
        other = tokens(pages(2, 3))
        self.assertEqual(a.backup(other), 3)
        keys = self.keys(a, pages(1, 100))
        indices = a.host.alloc(100 * PAGE)
        said = a.backend.batch_set_v1(keys, indices)
        self.assertEqual([a.backend.exists(key) for key in keys], said)
        self.assertGreater(said.count(True), 30)


class LowerTiers(Case):
    options = {"pool_blocks": 60, "host_bytes": "64MiB"}

    def test_pages_that_moved_down_come_back(self):
        """400 pages through 60 slots, with host memory below: all are there, and all are right."""
        a, b = self.here(), self.there()
        prompts = [pages(number, 40) for number in range(1, 11)]
        for number, run in enumerate(prompts):
            self.assertEqual(a.backup(tokens(run), tell_prefix=number % 2 == 0), 40)
        for run in prompts:
            self.assert_hit(WORKER.ask("prefetch", b, tokens=[run])["result"], 40)
        self.assert_hit(a.prefetch(tokens(prompts[0])), 40)
        self.assertGreater(self.daemon.ctl("status", "--json")["tiers"]["host"]["hit_tokens"], 5000)


class Outages(Case):
    def test_daemon_comes_after_the_engine(self):
        self.daemon.kill()
        a, seconds = pools.timed(self.here)
        self.assertLess(seconds, 10 + SLACK)
        run = tokens(pages(1, 10))
        self.assertEqual((a.prefetch(run)["hit"], a.backup(run)), (0, 0))
        self.daemon.start()
        self.until(lambda: a.backup(run) == 10)
        self.assert_hit(a.prefetch(run), 10)
        self.assert_alive(a)

    def test_calls_have_the_deadlines_that_were_set(self):
        a = self.here({"deadline": 0.5, "probe_deadline": 0.2})
        keys, indices = self.keys(a, pages(1, 2)), a.host.alloc(2 * PAGE)
        with unittest.mock.patch("prefixd.blockstore.BlockStore._run", return_value=None) as asked:
            a.backend.batch_exists(keys)
            a.backend.batch_get_v1(keys, indices)
            a.backend.batch_set_v1(keys, indices)
        own = a.backend._store.deadline
        given = [call.args[1] if call.args[1] is not None else own for call in asked.call_args_list]
        self.assertEqual(given, [0.2, 0.5, 0.5])

    def test_stopped_daemon_costs_the_deadline_and_nothing_else(self):
        a = self.here({"deadline": 0.5, "probe_deadline": 0.2})
        run = tokens(pages(1, 10))
        keys, indices = pools.hashes(run, a.spec), a.host.alloc(10 * PAGE)
        self.assertEqual(a.backup(run), 10)
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            calls = [
                (lambda: a.backend.batch_exists(keys), 0, 0.2),
                (lambda: a.backend.batch_get_v1(keys, indices), [False] * 10, 0.5),
                (lambda: a.backend.batch_set_v1(keys, indices), [False] * 10, 0.5),
            ]
            for _ in range(4):
                for call, miss, deadline in calls:
                    got, seconds = pools.timed(call)
                    self.assertEqual(got, miss)
                    self.assertLess(seconds, deadline + SLACK)
            # Three times it is waited for, then asked once a second only: the other calls cost nothing.
            stats = a.backend.stats()
            self.assertEqual(stats["deadline"] + stats["gone"], 12, stats)
            self.assertGreaterEqual(stats["deadline"], 3, stats)
            self.assertGreater(stats["gone"], 0, stats)
            # Through the threads: the request goes on, computed.
            self.assertEqual((a.prefetch(run)["hit"], a.backup(run)), (0, 0))
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assert_alive(a)
        self.until(lambda: a.prefetch(run)["hit"] == 10)
        self.assert_hit(a.prefetch(run), 10)

    def test_daemon_killed_and_started_again(self):
        a, b = self.here(), self.there()
        run = pages(1, 30)
        self.assertEqual(a.backup(tokens(run)), 30)
        self.assert_hit(WORKER.ask("prefetch", b, tokens=[run])["result"], 30)
        self.daemon.kill()
        (lost, stored), seconds = pools.timed(lambda: (a.prefetch(tokens(run)), a.backup(tokens(run))))
        self.assertEqual((lost["hit"], stored), (0, 0))
        self.assertLess(seconds, SLACK)
        self.assertEqual(WORKER.ask("prefetch", b, tokens=[run])["result"]["hit"], 0)
        self.daemon.start()
        self.until(lambda: a.backup(tokens(run)) == 30)
        self.until(lambda: WORKER.ask("prefetch", b, tokens=[run])["result"]["hit"] == 30)
        answer = WORKER.ask("prefetch", b, tokens=[run])
        self.assert_hit(answer["result"], 30)
        self.assertTrue(answer["alive"])
        self.assert_alive(a)

    def test_killed_in_the_middle_of_traffic(self):
        """Four lives of the daemon under two processes' requests: no raise, no hang, no wrong bytes."""
        a, b = self.here({"deadline": 0.3}), self.there(extra={"deadline": 0.3})
        over, failures, right = threading.Event(), [], []

        def traffic():
            number = 0
            while not over.is_set():
                number = number % 8 + 1
                try:
                    stored, seconds = pools.timed(a.backup, tokens(pages(number, 40)))
                    result, more = pools.timed(a.prefetch, tokens(pages(number % 8 + 1, 40)))
                    if result["right"] != result["loaded"] or max(seconds, more) > 2 * SLACK:
                        failures.append((stored, seconds, result, more))
                    right.append(result["right"])
                except Exception as error:
                    failures.append(repr(error))
                    return

        thread = threading.Thread(target=traffic)
        thread.start()
        try:
            for life in range(4):
                for number in range(1, 9):
                    result = WORKER.ask("prefetch", b, tokens=[pages(number, 40)])["result"]
                    self.assertEqual(result["right"], result["loaded"])
                    WORKER.ask("backup", b, tokens=[pages(number, 40)])
                self.daemon.kill()
                time.sleep(0.1)
                self.daemon.start()
            time.sleep(1.2)
        finally:
            over.set()
            thread.join()
        self.assertEqual(failures, [])
        self.assertGreater(sum(right), 0)
        self.assert_alive(a)
        self.until(lambda: a.backup(tokens(pages(1, 40))) == 40)
        self.until(lambda: WORKER.ask("prefetch", b, tokens=[pages(1, 40)])["result"]["right"] == 40)

    def test_detached_backend_misses(self):
        a = self.here()
        run = tokens(pages(1, 3))
        keys, indices = pools.hashes(run, a.spec), a.host.alloc(3 * PAGE)
        self.assertEqual(a.backup(run), 3)
        backend = a.backend
        self.assertEqual(backend.batch_exists(keys), 3)
        a.controller.detach_storage_backend()
        self.assertEqual((backend.batch_exists(keys), backend.batch_get_v1(keys, indices)), (0, [False] * 3))
        self.instances.remove(a)


class Robust(Case):
    def test_nothing_raises_whatever_is_asked(self):
        a = self.here()
        run = tokens(pages(1, 4))
        keys, indices = pools.hashes(run, a.spec), a.host.alloc(4 * PAGE)
        backend = a.backend
        self.assertEqual(backend.batch_set_v1(keys, indices), [True] * 4)
        no = [False] * 4
        # Keys that are no page hashes end what can be known of a chain.
        self.assertEqual(backend.batch_exists(keys[:2] + ["no hash"] + keys[2:]), 2)
        self.assertEqual(
            backend.batch_get_v1(keys[:2] + ["no hash", keys[3]], indices), [True, True, False, False]
        )
        self.assertEqual(backend.batch_set_v1(["", "zz", "00", keys[0] + "00"], indices), no)
        swapped = indices.clone()
        swapped[1], swapped[2] = indices[2], indices[1]
        for wrong in (
            None,
            swapped,
            indices[:-1],
            indices.flip(0),
            indices + 1,
            indices + 10**6,
            indices - 10**6,
            "indices",
        ):
            self.assertEqual(backend.batch_get_v1(keys, wrong), no)
            self.assertEqual(backend.batch_set_v1([key[::-1] for key in keys], wrong), no)
        self.assertIsNone(backend.get("no hash"))
        self.assertEqual(backend.batch_get(keys, [torch.zeros(3)] * 4), [None] * 4)
        self.assertFalse(backend.set(keys[0][::-1], torch.zeros(3)))
        self.assertFalse(backend.batch_set(keys, None))
        self.assertTrue(backend.get(keys[0]).numel())
        # Pools beside K/V have nothing here.
        mamba = PoolTransfer(PoolName.MAMBA, keys=keys, host_indices=indices)
        self.assertEqual(backend.batch_exists_v2(keys, [mamba]).kv_hit_pages, 0)
        self.assertEqual(backend.batch_exists_v2(keys).kv_hit_pages, 4)
        self.assertEqual(backend.batch_get_v2([mamba]), {PoolName.MAMBA: no})
        self.assertEqual(backend.batch_set_v2([mamba]), {PoolName.MAMBA: no})
        backend.clear()
        self.assertEqual(backend.batch_exists(keys), 4)
        self.assertIsNone(backend.get_stats())
        # Memory that the pool gave back.
        buffer, a.host.kv_buffer = a.host.kv_buffer, None
        self.assertEqual(backend.batch_get_v1(keys, indices), no)
        self.assertEqual(backend.batch_set_v1([key[::-1] for key in keys], indices), no)
        a.host.kv_buffer = buffer
        self.assertEqual(backend.batch_get_v1(keys, indices), [True] * 4)

    def test_pages_that_were_reused_while_they_were_read_do_not_count(self):
        a = self.here()
        keys, indices = self.keys(a, pages(1, 4)), a.host.alloc(4 * PAGE)
        self.assertEqual(a.backend.batch_set_v1(keys, indices), [True] * 4)
        with unittest.mock.patch("prefixd.pool.Pool.stale", side_effect=[False, False, True]):
            self.assertEqual(a.backend.batch_get_v1(keys, indices), [True, True, False, False])
        self.assertEqual(a.backend.batch_get_v1(keys, indices), [True] * 4)

    def test_other_pages_are_not_touched(self):
        for kind, layout in LAYOUTS:
            with self.subTest(kind=kind, layout=layout):
                a = self.here(kind=kind, layout=layout, pages=12)
                indices = a.host.alloc(12 * PAGE)
                keys = pools.hashes(tokens(pages(1, 12)), a.spec)
                for i, key in enumerate(keys):
                    pools.write_page(a.host, a.spec, int(indices[i * PAGE]), key)
                self.assertEqual(a.backend.batch_set_v1(keys[4:6], indices[4 * PAGE : 6 * PAGE]), [True] * 2)
                for i in range(12):
                    pools.write_page(a.host, a.spec, int(indices[i * PAGE]), "other")
                self.assertEqual(a.backend.batch_get_v1(keys[4:6], indices[4 * PAGE : 6 * PAGE]), [True] * 2)
                for i, key in enumerate(keys):
                    expected = key if i in (4, 5) else "other"
                    self.assertTrue(pools.page_is(a.host, a.spec, int(indices[i * PAGE]), expected), i)


class Shared(Case):
    """What is shared, and in the same run what is not."""

    def test_everything_that_makes_pages_different(self):
        base_spec = {"layout": "layer_first"}
        run = tokens(pages(1, 8))
        self.assertEqual(self.here(**base_spec).backup(run), 8)
        different = [
            ({"revision": "r2"}, {}), ({"adapter": "lora@1"}, {}), ({"salt": "other"}, {}),
            ({}, {"model": "test/other"}),
            ({"scales": "file"}, {}), ({"dtype": "float16"}, {"dtype": "float16"}),
            ({}, {"layout": "page_first"}), ({}, {"layout": "page_first_direct"}),
            ({}, {"layout": "page_head"}),
            ({}, {"kind": "mla"}), ({}, {"layers": 4}), ({}, {"heads": 4}), ({}, {"dim": 16}),
            ({}, {"tp_size": 2}), ({}, {"tp_size": 2, "tp_rank": 1}), ({}, {"tp_size": 4, "tp_rank": 1}),
            ({}, {"pp_size": 2}), ({}, {"pp_size": 2, "pp_rank": 1}),
            # Of equal size, told by nothing but the shape.
            ({}, {"heads": 4, "dim": 4}), ({}, {"layers": 6, "dim": 4}),
        ]  # fmt: skip
        for extra, spec in different:
            with self.subTest(extra=extra, spec=spec):
                other = self.here(extra, **{**base_spec, **spec})
                self.assertEqual(other.prefetch(run)["hit"], 0)
                # It works for those who agree with it, and what they store is not the first one's either.
                self.assertEqual(other.backup(run, label="other"), 8)
                self.assert_hit(self.here(extra, **{**base_spec, **spec}).prefetch(run, label="other"), 8)
                self.assert_hit(self.here(**base_spec).prefetch(run), 8)
                while self.instances:
                    self.instances.pop().close()

    def test_mla_is_shared_between_ranks(self):
        spec = {"kind": "mla", "tp_size": 4}
        first, last = self.here(tp_rank=0, **spec), self.here(tp_rank=3, **spec)
        run = tokens(pages(1, 8))
        # SGLang lets only one rank write what all ranks have.
        self.assertEqual((last.backup(run), last.prefetch(run)["hit"]), (0, 0))
        self.assertEqual(first.backup(run), 8)
        self.assert_hit(last.prefetch(run), 8)
        self.assert_hit(self.here(kind="mla").prefetch(run), 8)
        # K and V by heads are each rank's own.
        ranks = [self.here(tp_rank=rank, tp_size=2) for rank in (0, 1)]
        self.assertEqual(ranks[0].backup(run), 8)
        self.assert_hit(ranks[0].prefetch(run), 8)
        self.assertEqual(ranks[1].prefetch(run)["hit"], 0)

    def test_tenants(self):
        config = Path(self.daemon.dir) / "config"
        config.write_text("[tenants]\none = any\ntwo = any\n")
        with Daemon(**POOLS, config=config) as daemon:
            made = [
                pools.Instance(extra=pools.extra_config(daemon.socket, tenant=name))
                for name in ("one", "one", "two")
            ]
            run = tokens(pages(1, 8))
            self.assertEqual(made[0].backup(run), 8)
            self.assert_hit(made[1].prefetch(run), 8)
            self.assertEqual(made[2].prefetch(run)["hit"], 0)
            for instance in made:
                instance.close()

    def test_requests_of_other_namespaces_of_sglang(self):
        """SGLang seeds its hashes with a request's extra key (LoRA) and salt: they arrive as other keys."""
        a = self.here()
        plain, salted = pools.Key(tokens(pages(1, 4))), pools.Key(tokens(pages(1, 4)), cache_salt="s")
        lora = pools.Key(tokens(pages(1, 4)), extra_key="lora")
        names = [pools.get_storage_hash_str(key, None, page_size=PAGE) for key in (plain, salted, lora)]
        self.assertEqual(len({name for chain in names for name in chain}), 12)
        indices = a.host.alloc(4 * PAGE)
        self.assertEqual(a.backend.batch_set_v1(names[0], indices), [True] * 4)
        self.assertEqual([a.backend.batch_exists(chain) for chain in names], [4, 0, 0])


class Backend:
    """A back end made by SGLang's factory on a host pool, without a controller."""

    def __init__(self, spec, extra):
        self.spec = {**pools.SPEC, "pages": 40, **spec}
        self.host = pools.pools(self.spec)[1]
        config = HiCacheStorageConfig(
            tp_rank=self.spec["tp_rank"], tp_size=self.spec["tp_size"], pp_rank=0, pp_size=1, attn_cp_rank=0,
            attn_cp_size=1, is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=False,
            model_name=self.spec["model"], extra_config=extra,
        )  # fmt: skip
        self.backend = StorageBackendFactory.create_backend("dynamic", config, self.host)
        self.backend.register_mem_pool_host(self.host)

    def put(self, prompt):
        return self.pages(prompt, True)

    def hit(self, prompt):
        return self.pages(prompt, False)

    def pages(self, prompt, put):
        keys = pools.hashes(prompt, self.spec)
        indices = self.host.alloc(len(keys) * PAGE)
        starts = indices[::PAGE].tolist()
        try:
            for start, key in zip(starts, keys):
                pools.write_page(self.host, self.spec, start, key if put else "another")
            if put:
                return sum(self.backend.batch_set_v1(keys, indices))
            n = self.backend.batch_get_v1(keys, indices).count(True)
            right = [pools.page_is(self.host, self.spec, start, key) for start, key in zip(starts, keys)]
            return n if all(right[:n]) and n == self.backend.batch_exists(keys) else -1
        finally:
            self.host.free(indices)

    def close(self):
        self.backend.close()


class Conformance(IdentityConformance, unittest.TestCase):
    """What every connector's identity must do, by the class that SGLang loads."""

    FIELDS = {**IdentityConformance.FIELDS, "layout": "page_first", "salt": ""}
    CHANGES = {
        **IdentityConformance.CHANGES,
        "layout": ({"layout": "page_first_direct"}, {"layout": "layer_first"}),
        "salt": ({"salt": "secret"}, {"salt": "another"}),
    }
    REFUSED = ("model", "revision", "dtype", "adapter", "tenant", "salt")

    def make(self, *, model, layout, dtype, tp_size, tp_rank, **extra):
        stored = dtype if dtype in ("float16", "bfloat16") else "float16"
        spec = {"model": model, "layout": layout, "dtype": stored, "tp_size": tp_size, "tp_rank": tp_rank}
        return Backend(spec, pools.extra_config(self.daemon.socket, dtype=dtype, **extra))


class Refused(Case):
    """While the server starts, by name; never later."""

    def refusal(self, extra=None, **spec):
        with self.assertRaises(Exception) as caught:
            self.here(extra, **spec)
        return str(caught.exception)

    def test_missing_or_wrong_fields_are_named(self):
        for field in ("tenant", "salt", "revision", "dtype", "adapter"):
            self.assertIn(field, self.refusal({field: None}))
        for field, value in (
            ("tenant", ""), ("revision", ""), ("revision", "none"), ("dtype", "auto"), ("dtype", "float16"),
            ("dtype", "int8"), ("dtype", 16), ("salt", 7), ("salt", "x" * 256), ("adapter", 0),
            ("socket", ""), ("deadline", 0), ("deadline", "1"),
            ("deadline", 61), ("probe_deadline", -1), ("deadline", True), ("scales", 3),
        ):  # fmt: skip
            with self.subTest(field=field, value=value):
                self.assertIn(field, self.refusal({field: value}))
        for model in (None, ""):
            self.assertIn("model", self.refusal(model=model))
        self.assertIn("scales", self.refusal({"dtype": "fp8_e4m3"}, dtype="float8_e4m3fn"))
        self.assertEqual(self.here().backup(tokens(pages(1, 2))), 2)

    def test_pools_that_are_not_whole_are_named(self):
        config = self.here().controller.storage_config
        config.extra_config = pools.extra_config(self.daemon.socket)

        class MambaPoolHost:
            pass

        def backend():
            return StorageBackendFactory.create_backend("dynamic", config, None)

        with self.assertRaisesRegex(ValueError, "MambaPoolHost"):
            backend().register_mem_pool_host(MambaPoolHost())
        unified = self.here().host
        for attribute, value, word in (
            ("layout", "page_unified", "--hicache-mem-layout"),
            ("dcp_size", 2, "dcp_size"),
            ("kv_buffer", None, "no buffer of its own"),
            ("_layer_shard_enabled", True, "sharded over ranks"),
        ):
            host = pools.pools(pools.SPEC)[1]
            setattr(host, attribute, value)
            with self.assertRaisesRegex(ValueError, word):
                backend().register_mem_pool_host(host)
        made = backend()
        made.register_mem_pool_host(unified)
        made.register_mem_host_pool_v2(unified, PoolName.KV)
        made.on_host_pools_registered()
        keys = pools.hashes(tokens(pages(1, 2)), pools.SPEC)
        indices = unified.alloc(2 * PAGE)
        self.assertEqual(made.batch_set_v1(keys, indices), [True] * 2)
        with self.assertRaisesRegex(ValueError, "mamba.*MambaPoolHost"):
            made.register_mem_host_pool_v2(MambaPoolHost(), PoolName.MAMBA)
        # Whoever goes on in spite of it gets nothing: K/V without its other half.
        self.assertEqual((made.batch_exists(keys), made.batch_get_v1(keys, indices)), (0, [False] * 2))
        self.assertEqual(made.batch_set_v1(keys, indices), [False] * 2)
        made.close()

    def test_draft_layers_need_a_name(self):
        host = pools.pools(pools.SPEC, drafts=1)[1]
        config = self.here().controller.storage_config

        def backend(**extra):
            config.extra_config = pools.extra_config(self.daemon.socket, **extra)
            made = StorageBackendFactory.create_backend("dynamic", config, host)
            made.register_mem_pool_host(host)
            return made

        with self.assertRaisesRegex(ValueError, "draft"):
            backend()
        one, same, other = backend(draft="eagle@1"), backend(draft="eagle@1"), backend(draft="eagle@2")
        keys, indices = pools.hashes(tokens(pages(1, 2)), pools.SPEC), host.alloc(2 * PAGE)
        self.assertEqual(one.batch_set_v1(keys, indices), [True] * 2)
        self.assertEqual((same.batch_exists(keys), other.batch_exists(keys)), (2, 0))
        for made in (one, same, other):
            made.close()


if __name__ == "__main__":
    unittest.main()
