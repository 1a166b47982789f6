"""A conversation over real workers: same tokens with the cache as without, and the first one sooner."""
import os
import sys
import time
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "lib"), str(Path(__file__).resolve().parents[1] / "bench")]
import llama_turns  # noqa: E402
from daemon import Daemon  # noqa: E402
from llama_worker import Cuts, Worker, missing  # noqa: E402

OPTIONS = {"threads": 2, "ctx": 4096, "slots": 1}
CHUNK, BLOCK = 256, 16
LIGHT = bool(os.environ.get("PREFIXD_ENGINES_LIGHT"))
REPEATS, TURNS = (1, 3) if LIGHT else (5, 6)


@unittest.skipIf(missing(), missing())
class Conversation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Daemon(pool_blocks=8192) as daemon:
            cls.table, cls.system_tokens = llama_turns.play(daemon, OPTIONS, repeats=REPEATS, turns=TURNS, answer_tokens=64,
                                                            system_tokens=1500, chunk=CHUNK)
            cls.audit = daemon.ctl("audit", "--json")
            cls.status = daemon.ctl("status", "--json")
        llama_turns.show(cls.table, cls.system_tokens, sys.stderr)

    def test_same_tokens_with_and_without_the_cache(self):
        self.assertGreaterEqual(self.system_tokens, 1500)
        for number, turn in enumerate(self.table, 1):
            print(f"turn {number}: with    {turn.tokens_with[0]}\nturn {number}: without {turn.tokens_control}",
                  file=sys.stderr)
            self.assertEqual(turn.tokens_with, [turn.tokens_control] * REPEATS, f"turn {number}")
            for tokens in turn.tokens_with:
                self.assertEqual(len(tokens), 64)
            if number > 1:
                self.assertEqual(turn.hits, [turn.earlier_blocks] * REPEATS, f"turn {number}")
                self.assertGreater(turn.earlier_blocks, 1500)
            else:
                self.assertEqual(turn.hits, [0] * REPEATS)

    @unittest.skipIf(LIGHT, "one repeat tells nothing about time")
    def test_first_token_five_times_sooner(self):
        self.assertEqual([line for line in llama_turns.problems(self.table, 5.0) if "sooner" in line], [])

    def test_nothing_is_left_behind(self):
        self.assertTrue(self.audit["clean"], self.audit)
        self.assertEqual(self.status["leases"], 0)
        self.assertEqual(self.status["slots"]["reserved"], 0)

    def test_killed_worker_mid_answer(self):
        """kill -9 of A in the middle of its answer: B goes on from everything that A had committed."""
        with Daemon(pool_blocks=4096) as daemon, Worker(socket=None, chunk=CHUNK, **OPTIONS) as plain:
            talk = llama_turns.Conversation(plain, 1500)
            prompt = talk.ask(0)
            whole = plain.complete(prompt, max_tokens=160)
            first = Worker(socket=daemon.socket, chunk=CHUNK, **OPTIONS).start()
            got = []
            try:
                for _, event in first.stream(prompt, max_tokens=160):
                    for choice in event.get("choices", ()):
                        got += choice.get("token_ids") or []
                    if len(got) >= 70:
                        break
            finally:
                first.kill()
                first.log.close()
            self.assertEqual(got, whole.tokens[:len(got)])
            until = time.monotonic() + 10
            while daemon.ctl("status", "--json")["leases"] and time.monotonic() < until:
                time.sleep(0.05)
            committed = committed_blocks(daemon)
            # Of what A had told, all but the newest tokens' K/V was computed, so its full blocks were there.
            self.assertGreaterEqual(committed, (len(prompt) + len(got) - 2) // BLOCK)
            self.assertTrue(daemon.ctl("audit", "--json")["clean"])
            # B is given what A had told its asker, and more of the same answer than A ever committed.
            rest = whole.tokens[:committed * BLOCK + BLOCK - len(prompt)]
            with Worker(socket=daemon.socket, chunk=CHUNK, **OPTIONS) as second:
                answer = second.complete(prompt + rest, max_tokens=64)
            self.assertEqual(answer.cached, committed * BLOCK)
            cuts = Cuts(CHUNK)
            cuts.turn(0, len(prompt), committed * BLOCK)
            with_cuts = plain.complete(prompt + rest, max_tokens=64,
                                       prefill_splits=cuts.before(len(prompt) + len(rest), answer.cached))
            self.assertEqual(answer.tokens, with_cuts.tokens)
            self.assertTrue(daemon.ctl("audit", "--json")["clean"])


def committed_blocks(daemon):
    return daemon.ctl("status", "--json")["tiers"]["device"]["blocks"]
