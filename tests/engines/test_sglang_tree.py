"""SGLang's prefix tree with prefixd as its third level: requests of two processes, down to the device pool.

See sglang_tree.py for what is real (the tree, its controller, threads and pools) and what is not (the
copying kernels of CUDA, a model).
"""

import importlib.util
import os
import signal
import sys
import time
import unittest
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

# What SGLang's tree loads beyond what its controllers do.
MODULES = ("sglang", "openai", "httpx", "sniffio", "distro", "partial_json_parser")
MISSING = [name for name in MODULES if importlib.util.find_spec(name) is None]
if MISSING:
    raise unittest.SkipTest(f"not installed here: {', '.join(MISSING)}")

from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang_case import POOLS, SLACK, WORKER, Case, pages, pools, tokens  # noqa: E402
from sglang_tree import Tree  # noqa: E402

TOLD = {"hicache_storage_pass_prefix_keys": True}


def tearDownModule():
    WORKER.stop()


class TreeCase(Case):
    def tree(self, extra=None, **spec):
        made = Tree(self.extra(**(TOLD if extra is None else extra)), **spec)
        self.instances.append(made)
        return made

    def other(self, name="B", extra=None, **spec):
        return self.there(name, TOLD if extra is None else extra, what="Tree", **spec)

    def serve_there(self, name, *ranges):
        return WORKER.ask("serve", name, tokens=list(ranges))["result"]

    def assert_served(self, got, n, **levels):
        """All n pages are on the device and right, from these levels."""
        wanted = {"device": 0, "host": 0, "storage": 0, "computed": 0, **levels}
        self.assertEqual({level: got[level] for level in wanted}, wanted, got)
        self.assertEqual(got["right"], n, got)


class Requests(TreeCase):
    def test_computed_by_one_fetched_by_the_other(self):
        for number, extra in enumerate((TOLD, {})):
            with self.subTest(extra=extra):
                a, b = self.tree(extra), self.other(f"B{number}", extra)
                prompt = pages(number + 1, 20)
                self.assert_served(a.serve(tokens(prompt)), 20, computed=20)
                self.assert_served(self.serve_there(b, prompt), 20, storage=20)
                self.assert_served(self.serve_there(b, prompt), 20, device=20)
                self.assert_served(a.serve(tokens(prompt)), 20, device=20)

    def test_conversation_that_changes_instances(self):
        """Each turn is served by the other process, which fetches what the first one computed in between."""
        for number, extra in enumerate((TOLD, {})):
            with self.subTest(extra=extra):
                a, b = self.tree(extra), self.other(f"B{number}", extra)
                prompt, known = [pages(10 * number + 1, 6)], {"a": 0, "b": 0}
                self.assert_served(a.serve(tokens(*prompt)), 6, computed=6)
                length, known["a"] = 6, 6
                for turn in range(1, 7):
                    prompt.append(pages(10 * number + 1 + turn, 3))
                    who = "ba"[turn % 2 - 1]
                    got = a.serve(tokens(*prompt)) if who == "a" else self.serve_there(b, *prompt)
                    own, length = known[who], length + 3
                    self.assert_served(got, length, device=own, storage=length - 3 - own, computed=3)
                    known[who] = length

    def test_one_prefix_of_many_conversations(self):
        a, b = self.tree(), self.other()
        system = pages(1, 10)
        for user in range(2, 6):
            a.serve(tokens(system, pages(user, 4)))
        for user in range(2, 6):
            got = self.serve_there(b, system, pages(user, 4))
            first = user == 2
            self.assert_served(got, 14, device=0 if first else 10, storage=14 if first else 4)
        # A prompt that nobody had: what is common to all.
        self.assert_served(self.serve_there(b, system, pages(9, 4)), 14, device=10, computed=4)

    def test_more_than_device_and_host_hold(self):
        """240 pages through 30 of device and 45 of host memory, twice: the second time storage has them."""
        a = self.tree(pages=30, ratio=1.5)
        for number in range(1, 13):
            self.assert_served(a.serve(tokens(pages(number, 20))), 20, computed=20)
        fetched = 0
        for number in range(1, 13):
            got = a.serve(tokens(pages(number, 20)))
            self.assertEqual((got["right"], got["computed"]), (20, 0), got)
            fetched += got["storage"]
        self.assertGreater(fetched, 100)

    def test_instance_that_forgot_everything(self):
        a = self.tree()
        prompt = pages(1, 25)
        a.serve(tokens(prompt))
        a.forget()
        self.assert_served(a.serve(tokens(prompt)), 25, storage=25)

    def test_aborted_requests_leave_nothing(self):
        """Requests that end while their pages are on the way: no lease, no page of the host pool is left."""
        a, b = self.tree(), self.tree()
        a.serve(tokens(pages(1, 30)))
        free = b.controller.mem_pool_host.available_size()
        for attempt in range(20):
            ids = array("q", tokens(pages(1, 30)))
            found = b.tree.match_prefix(MatchPrefixParams(key=RadixKey(ids)))
            handle = CacheRequestHandle(f"aborted {attempt}", 0)
            b.tree.prefetch_from_storage(
                handle, found.last_host_node, ids, None, [], matched_prefix_tokens=[]
            )
            for _ in range(attempt % 5):
                b.tree.check_hicache_events()
                time.sleep(0.001 * attempt)
            b.tree.release_aborted_request(handle)
            end = time.monotonic() + 10
            while time.monotonic() < end and self.daemon.ctl("pins", "--json")["total"]:
                b.tree.check_hicache_events()
            self.assertEqual(self.daemon.ctl("pins", "--json")["total"], 0)
            for _ in range(50):
                b.tree.check_hicache_events()
                time.sleep(0.001)
            b.forget()
            self.assertEqual(b.controller.mem_pool_host.available_size(), free)
        self.assert_served(b.serve(tokens(pages(1, 30))), 30, storage=30)
        self.assert_alive(a, b)


class SmallPool(TreeCase):
    options = {**POOLS, "pool_blocks": 30}

    def test_storage_smaller_than_what_is_served(self):
        """What storage lost is computed; what it has is right; no request fails."""
        a, b = self.tree(), self.other()
        fetched = computed = 0
        for number in range(1, 31):
            # Two prompts in turn, each forgotten by one side at a time, with tails that push others out.
            prompt = pages(number % 2 + 1, 12)
            WORKER.send("serve", b, tokens=[prompt, pages(100 + number, 2)])
            mine = a.serve(tokens(prompt, pages(200 + number, 2)))
            theirs = WORKER.answer()["result"]
            self.assertEqual((mine["right"], theirs["right"]), (14, 14))
            fetched += mine["storage"] + theirs["storage"]
            computed += mine["computed"] + theirs["computed"]
            a.forget()
            if number % 3 == 0:
                WORKER.ask("forget", b)
        self.assertGreater(fetched, 0)
        self.assertGreater(computed, 28 * 4)


class Outages(TreeCase):
    def test_daemon_killed_and_started_again(self):
        """Every request completes, computed if need be; hits come back with what is computed again."""
        a, b = self.tree(), self.other()
        self.assert_served(a.serve(tokens(pages(1, 10))), 10, computed=10)
        self.assert_served(self.serve_there(b, pages(1, 10)), 10, storage=10)
        self.daemon.kill()
        for number in range(2, 6):
            got = a.serve(tokens(pages(number, 10)))
            self.assert_served(got, 10, computed=10)
            self.assertLess(got["wait"], 1 + SLACK)
            self.assert_served(self.serve_there(b, pages(number + 10, 10)), 10, computed=10)
        self.daemon.start()
        number = 20

        def comes_back():
            nonlocal number
            number += 1
            a.serve(tokens(pages(number, 10)))
            got = self.serve_there(b, pages(number, 10))
            self.assertEqual(got["right"], 10)
            return got["storage"] == 10

        self.until(comes_back)
        self.assert_alive(a)

    def test_stopped_daemon(self):
        for step, policy in enumerate(("wait_complete", "best_effort", "timeout")):
            with self.subTest(policy=policy):
                first = 10 * step + 1
                a = self.tree({**TOLD, "deadline": 0.4, "probe_deadline": 0.1}, policy=policy)
                self.assert_served(a.serve(tokens(pages(first, 10))), 10, computed=10)
                os.kill(self.daemon.process.pid, signal.SIGSTOP)
                try:
                    for number in range(1, 6):
                        got = a.serve(tokens(pages(first + number, 10)))
                        self.assert_served(got, 10, computed=10)
                        self.assertLess(got["wait"], 0.1 + SLACK)
                finally:
                    os.kill(self.daemon.process.pid, signal.SIGCONT)
                self.assert_alive(a)

                def fetched(a=a, first=first, policy=policy):
                    a.forget()
                    got = a.serve(tokens(pages(first, 10)))
                    self.assertEqual(got["right"], 10)
                    return got["storage"] == 10 or policy == "best_effort"  # which waits for nothing

                self.until(fetched)

    def test_killed_while_pages_are_on_the_way(self):
        a = self.tree({**TOLD, "deadline": 0.4})
        prompt = tokens(pages(1, 30))
        names = pools.hashes(prompt, a.spec)

        def stored():
            a.forget()  # SGLang backs a page up once; what a lost daemon had, only what is new replaces
            self.assertEqual(a.serve(prompt)["right"], 30)
            return a.backend.batch_exists(names) == 30

        for life in range(6):
            self.until(stored)
            a.forget()
            ids = array("q", prompt)
            handle = CacheRequestHandle(f"life {life}", 0)
            found = a.tree.match_prefix(MatchPrefixParams(key=RadixKey(ids)))
            a.tree.prefetch_from_storage(
                handle, found.last_host_node, ids, None, [], matched_prefix_tokens=[]
            )
            time.sleep(0.0005 * life)
            a.tree.check_hicache_events()
            self.daemon.kill()
            end = time.monotonic() + 10
            while not a.tree.check_prefetch_progress(handle):
                a.tree.check_hicache_events()
                self.assertLess(time.monotonic(), end)
            self.assertEqual(a.serve(prompt)["right"], 30)
            self.daemon.start()
        self.assert_alive(a)


if __name__ == "__main__":
    unittest.main()
