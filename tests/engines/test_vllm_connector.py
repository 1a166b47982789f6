"""The vLLM connector in real engines: one process computes, another one reads, a daemon dies.

Each engine is a process (vllm_driver.py) with a tiny model of random weights.  The numbers asserted are
the engine's own: its outputs, the cached tokens of its request outputs, the counters of its metrics.
"""
import os
import random
import shutil
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lib")]

import vllm_model  # noqa: E402
from daemon import Daemon  # noqa: E402
from vllm_child import Child  # noqa: E402

BLOCK = 32
VOCAB = 768


def words(seed, n):
    made = random.Random(seed)
    return [made.randrange(10, VOCAB) for _ in range(n)]


SYSTEM = words(1, 600)
PROMPTS = [SYSTEM + words(10 + i, 40 + 17 * i) for i in range(5)] + [words(20 + i, 150 + 70 * i) for i in range(3)]


def full_blocks(prompt):
    """Tokens of a prompt that can be hit: whole blocks, and one token is left to compute."""
    return (len(prompt) - 1) // BLOCK * BLOCK


class Bed(unittest.TestCase):
    """A folder with a model, a daemon, and engines that are stopped whatever happens."""

    daemon_options = {"pool_blocks": 1024}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="prefixd-vllm-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.model = vllm_model.make(os.path.join(cls.folder, "model"))
        cls.daemon = Daemon(**cls.daemon_options).start()
        cls.addClassCleanup(shutil.rmtree, cls.daemon.dir, True)
        cls.addClassCleanup(cls.daemon.stop)

    @classmethod
    def engine(cls, name, connected=True, extra=None, **more):
        connector = None
        if connected:
            connector = {"socket": cls.daemon.socket, "tenant": "default", "salt": "", "name": name, **(extra or {})}
        child = Child(os.path.join(cls.folder, name + ".log"), cls.model, connector, **more)
        cls.addClassCleanup(child.stop)
        return child

    def leases(self):
        return self.daemon.ctl("status", "--json")

    def assert_nothing_held(self):
        """The daemon's books are in order and nobody holds a block."""
        self.assertIn("clean", self.daemon.ctl("audit"))
        status = self.daemon.ctl("status", "--json")
        self.assertEqual(status["leases"], 0, status)
        for group in status["groups"]:
            self.assertEqual(group["pins"], 0, group)


class TwoEngines(Bed):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        plain, a, b = cls.engine("plain", connected=False), cls.engine("a"), cls.engine("b")
        cls.plain, cls.a, cls.b = plain.ready(), a.ready(), b.ready()
        cls.expected = cls.plain.ask("generate", prompts=PROMPTS)

    def test_1_outputs_depend_on_far_tokens(self):
        """The control of all others: K/V of the first block that is wrong would change what comes out."""
        other = [words(99, BLOCK) + prompt[BLOCK:] for prompt in PROMPTS]
        changed = self.plain.ask("generate", prompts=other)["tokens"]
        for one, two in zip(self.expected["tokens"], changed):
            self.assertNotEqual(one, two)

    def test_2_second_engine_computes_less_and_says_the_same(self):
        first = self.a.ask("generate", prompts=PROMPTS)
        self.a.ask("idle")
        before = self.b.ask("metrics")["metrics"]
        second = self.b.ask("generate", prompts=PROMPTS)
        after = self.b.ask("metrics")["metrics"]
        self.assertEqual(first["tokens"], self.expected["tokens"])
        self.assertEqual(second["tokens"], self.expected["tokens"])
        hits = [full_blocks(prompt) for prompt in PROMPTS]
        self.assertEqual(second["cached"], hits)

        def grown(name):
            return after["vllm:" + name] - before.get("vllm:" + name, 0)

        computed, total = grown("request_prefill_kv_computed_tokens"), sum(map(len, PROMPTS))
        self.assertEqual(computed, total - sum(hits))
        alone = self.plain.ask("metrics")["metrics"]["vllm:external_prefix_cache_hits"]
        print(f"# {total} prompt tokens, {computed:.0f} computed by the second engine", file=sys.stderr)
        self.assertEqual(alone, 0)
        self.assertGreater(grown("external_prefix_cache_hits"), 0)
        self.assertEqual(self.a.ask("metrics")["metrics"]["vllm:external_prefix_cache_hits"], 0)

    def test_3_blocks_are_the_same_bytes(self):
        self.test_2_second_engine_computes_less_and_says_the_same()


if __name__ == "__main__":
    unittest.main()
