"""The vLLM connector in real engines: one process computes, another one reads, a daemon dies.

Each engine is a process (vllm_driver.py) with a tiny model of random weights.  The numbers asserted are
the engine's own: its outputs, the cached tokens of its request outputs, the counters of its metrics.
"""

import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lib")]

import vllm_model  # noqa: E402
from vllm_child import Child  # noqa: E402

from daemon import Daemon  # noqa: E402

BLOCK = 32
VOCAB = 768


def words(seed, n):
    made = random.Random(seed)
    return [made.randrange(10, VOCAB) for _ in range(n)]


SYSTEM = words(1, 600)
PROMPTS = [SYSTEM + words(10 + i, 40 + 17 * i) for i in range(5)] + [
    words(20 + i, 150 + 70 * i) for i in range(3)
]


def full_blocks(prompt):
    """Tokens of a prompt that can be hit: whole blocks, and one token is left to compute."""
    return (len(prompt) - 1) // BLOCK * BLOCK


class Bed(unittest.TestCase):
    """A daemon, and engines that are stopped whatever happens.  All share the one without a daemon."""

    folder = model = plain = None

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(pool_blocks=1024).start()
        cls.addClassCleanup(shutil.rmtree, cls.daemon.dir, True)
        cls.addClassCleanup(cls.daemon.stop)

    @classmethod
    def engine(cls, name, **more):
        # A long deadline: what is tested is not how busy the machine is.
        connector = {
            "socket": cls.daemon.socket,
            "tenant": "default",
            "salt": "",
            "name": name,
            "lookup_deadline_ms": 200,
        }
        child = Child(os.path.join(Bed.folder, name + ".log"), Bed.model, connector, **more)
        cls.addClassCleanup(child.stop)
        return child

    @classmethod
    def expected(cls, prompts, **more):
        """What the engine says that has no connector, with nothing in its own cache."""
        Bed.plain.ask("forget")
        return Bed.plain.ask("generate", prompts=prompts, **more)["tokens"]

    def forget(self, engine):
        """Empties the engine's own prefix cache, as soon as the blocks of finished requests are free."""
        until = time.monotonic() + 20
        while not engine.ask("forget")["done"]:
            self.assertLess(time.monotonic(), until, "blocks are held for ever")
            engine.ask("idle")

    def assert_nothing_held(self):
        """The daemon's books are in order and nobody holds a block."""
        self.assertIn("clean", self.daemon.ctl("audit"))
        status = self.daemon.ctl("status", "--json")
        self.assertEqual(status["leases"], 0, status)
        for group in status["groups"]:
            self.assertEqual(group["pins"], 0, group)


def setUpModule():
    Bed.folder = tempfile.mkdtemp(prefix="prefixd-vllm-")
    unittest.addModuleCleanup(shutil.rmtree, Bed.folder, True)
    Bed.model = vllm_model.make(os.path.join(Bed.folder, "model"))
    Bed.plain = Child(os.path.join(Bed.folder, "plain.log"), Bed.model)
    unittest.addModuleCleanup(Bed.plain.stop)


class TwoEngines(Bed):
    """In the order of their names: later cases build on what earlier ones have stored."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        a, b = cls.engine("a"), cls.engine("b")
        cls.a, cls.b = a.ready(), b.ready()
        cls.tokens = cls.expected(PROMPTS)

    def test_1_outputs_depend_on_far_tokens(self):
        """The control of all others: K/V of the first block that is wrong would change what comes out."""
        other = [words(99, BLOCK) + prompt[BLOCK:] for prompt in PROMPTS]
        for one, two in zip(self.tokens, self.expected(other)):
            self.assertNotEqual(one, two)

    def test_2_second_engine_computes_less_and_says_the_same(self):
        first = self.a.ask("generate", prompts=PROMPTS)
        self.a.ask("idle")
        before = self.b.ask("metrics")["metrics"]
        second = self.b.ask("generate", prompts=PROMPTS)
        after = self.b.ask("metrics")["metrics"]
        self.assertEqual(first["tokens"], self.tokens)
        self.assertEqual(second["tokens"], self.tokens)
        hits = [full_blocks(prompt) for prompt in PROMPTS]
        self.assertEqual(second["cached"], hits)

        def grown(name):
            return after["vllm:" + name] - before.get("vllm:" + name, 0)

        computed, total = grown("request_prefill_kv_computed_tokens"), sum(map(len, PROMPTS))
        self.assertEqual(computed, total - sum(hits))
        self.assertEqual(grown("external_prefix_cache_hits") + grown("prefix_cache_hits"), sum(hits))
        alone = self.a.ask("metrics")["metrics"]
        self.assertEqual(alone["vllm:external_prefix_cache_hits"], 0)
        first_computed = alone["vllm:request_prefill_kv_computed_tokens"]
        self.assertGreater(first_computed, 10 * computed)
        print(
            f"# of {total} prompt tokens the first engine computed {first_computed:.0f}"
            f", the second {computed:.0f}",
            file=sys.stderr,
        )

    def test_3_blocks_are_the_same_bytes(self):
        """What was loaded is, byte for byte, what the other engine has computed."""
        seen = set()
        for prompt in PROMPTS:
            computed = self.a.ask("blocks", prompt=prompt)["blocks"]
            loaded = self.b.ask("blocks", prompt=prompt)["blocks"]
            self.assertGreaterEqual(len(computed), full_blocks(prompt) // BLOCK)
            self.assertEqual(computed, loaded)
            seen.update(computed)
        # Five prompts share the system prompt's full blocks; no two other blocks are the same.
        shared = len(SYSTEM) // BLOCK
        blocks = [len(prompt) // BLOCK for prompt in PROMPTS]
        self.assertEqual(len(seen), sum(blocks) - 4 * shared)

    def test_4_conversation_goes_on_in_the_other_engine(self):
        prompt = SYSTEM[:100] + words(40, 77)
        answer = self.b.ask("generate", prompts=[prompt], max_tokens=90)["tokens"][0]
        self.b.ask("idle")
        turn = prompt + answer + words(41, 50)
        there = self.a.ask("generate", prompts=[turn])
        self.assertEqual(there["tokens"], self.expected([turn]))
        # The last token of an answer is never computed; all blocks before it are.
        self.assertEqual(there["cached"], [(len(prompt) + len(answer) - 1) // BLOCK * BLOCK])

    def test_5_salt_of_a_request_separates(self):
        prompt = words(50, 300)
        self.a.ask("generate", prompts=[prompt], salts=["mine"])
        self.a.ask("idle")
        other = self.b.ask("generate", prompts=[prompt], salts=["yours"])
        none = self.b.ask("generate", prompts=[prompt])
        same = self.b.ask("generate", prompts=[prompt], salts=["mine"])
        self.assertEqual((other["cached"], none["cached"], same["cached"]), ([0], [0], [full_blocks(prompt)]))
        self.assertEqual(same["tokens"], self.expected([prompt]))

    def test_6_aborted_requests_leak_nothing(self):
        free = self.b.ask("idle")["free"]
        tokens = self.expected(PROMPTS)
        for steps in (0, 1, 2, 3, 5, 9):
            self.forget(self.b)
            left = self.b.ask("abort", prompts=PROMPTS, steps=steps)
            self.assertEqual(left["unfinished"], len(PROMPTS))
            self.assertEqual((left["free"], left["busy"]), (free, False), f"aborted after {steps} steps")
            self.assert_nothing_held()
            self.assertEqual(self.b.ask("generate", prompts=PROMPTS)["tokens"], tokens)
            self.b.ask("idle")

    def test_7_nothing_is_held_at_the_end(self):
        for engine in (self.a, self.b):
            self.assertFalse(engine.ask("idle")["busy"])
        self.assert_nothing_held()
        for engine in (self.a, self.b):
            self.assertTrue(engine.stop(), engine.text()[-2000:])
        self.assertIn("clean", self.daemon.ctl("audit"))
        for engine in (self.a, self.b):
            self.assertNotIn("failed:", engine.text())


class LittleRoom(Bed):
    """An engine whose K/V cache is too small for its requests: they are preempted and begin anew."""

    def test_preempted_requests_say_the_same(self):
        prompts = [SYSTEM[:200] + words(60 + i, 60 + 9 * i) for i in range(8)]
        engine = self.engine("little", engine={"num_gpu_blocks_override": 72}).ready()
        tokens = self.expected(prompts, max_tokens=150)
        for _ in range(3):
            self.forget(engine)
            self.assertEqual(engine.ask("generate", prompts=prompts, max_tokens=150)["tokens"], tokens)
        metrics = engine.ask("metrics")["metrics"]
        self.assertGreater(metrics["vllm:num_preemptions"], 0)
        self.assertGreater(metrics["vllm:external_prefix_cache_hits"], 0)
        self.assertFalse(engine.ask("idle")["busy"])
        self.assert_nothing_held()


class TwoRanks(Bed):
    """Tensor parallelism: each rank's K/V in a namespace of its own, and a hit is what both have."""

    def test_both_ranks_load_what_both_have_saved(self):
        env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        engine = self.engine("ranks", env=env, engine={"tensor_parallel_size": 2}).ready()
        first = engine.ask("generate", prompts=PROMPTS)["tokens"]
        self.forget(engine)
        second = engine.ask("generate", prompts=PROMPTS)
        self.assertEqual(second["tokens"], first)
        self.assertEqual(second["cached"], [full_blocks(prompt) for prompt in PROMPTS])
        self.assertGreater(engine.ask("metrics")["metrics"]["vllm:external_prefix_cache_hits"], 0)
        self.forget(engine)
        spaces = self.daemon.ctl("status", "--json")["namespaces"]
        self.assertEqual(len(spaces), 2)
        self.assertEqual(len({space["blocks"] for space in spaces}), 1, spaces)
        self.assert_nothing_held()


class DaemonDies(Bed):
    """An engine as users run it, with a process for its core; the daemon is killed, started and stopped."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.c = cls.engine("c", env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}).ready()
        cls.prompts = PROMPTS + [SYSTEM[:320] + words(70 + i, 100) for i in range(12)]
        cls.hits = [full_blocks(prompt) for prompt in cls.prompts]
        cls.tokens = cls.expected(cls.prompts, max_tokens=160)

    def run_c(self):
        self.forget(self.c)
        return self.c.ask("generate", prompts=self.prompts, max_tokens=160)

    def external_hits(self):
        return self.c.ask("metrics")["metrics"]["vllm:external_prefix_cache_hits"]

    def run_until_hits(self):
        """Runs that all say the same, until everything comes from the daemon again."""
        until = time.monotonic() + 60
        while True:
            answer = self.run_c()
            self.assertEqual(answer["tokens"], self.tokens)
            if answer["cached"] == self.hits:
                return
            self.assertLess(
                time.monotonic(), until, f"{answer['cached']} instead of {self.hits}\n{self.c.text()[-2000:]}"
            )

    def test_1_killed_in_mid_run(self):
        self.run_until_hits()
        for delay in (0.0, 0.05, 0.3, 0.8):
            asked = self.daemon.ctl("status", "--json")["counters"]["lookups"]
            self.forget(self.c)
            self.c.begin("generate", prompts=self.prompts, max_tokens=160)
            while self.daemon.ctl("status", "--json")["counters"]["lookups"] == asked:
                time.sleep(0.001)
            time.sleep(delay)
            self.assertFalse(
                select.select([self.c.process.stdout], [], [], 0)[0], "it had ended before the kill"
            )
            self.daemon.kill()
            self.assertEqual(self.c.end()["tokens"], self.tokens)
            before = self.external_hits()
            self.assertEqual(self.run_c()["tokens"], self.tokens)
            self.assertEqual(self.external_hits(), before, "hits without a daemon")
            self.daemon.start()
            self.assertEqual(self.daemon.ctl("status", "--json")["tiers"]["device"]["blocks"], 0)
            self.run_until_hits()
        self.assert_nothing_held()

    def test_2_a_daemon_that_hangs_costs_next_to_nothing(self):
        self.run_until_hits()
        begin = time.monotonic()
        self.run_c()
        normal = time.monotonic() - begin
        hits = self.external_hits()
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            answer = self.run_c()
            hung = time.monotonic() - begin
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.assertEqual(answer["tokens"], self.tokens)
        self.assertEqual(self.external_hits(), hits, "hits from a daemon that hangs")
        print(
            f"# a run with hits takes {normal:.2f} s, with a daemon that hangs {hung:.2f} s", file=sys.stderr
        )
        self.assertLess(hung, 3 * normal + 3)
        self.run_until_hits()
        self.assert_nothing_held()


if __name__ == "__main__":
    unittest.main()
