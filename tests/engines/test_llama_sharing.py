"""prefixd-llama on a real daemon, as its API shows it: what is shared, with whom, and what happens without."""

import socket
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "lib")]
import make_gguf  # noqa: E402
from daemon import Daemon  # noqa: E402
from llama_http import (
    make_model,
    metric,
    metric_finish,
    raw_post,
    set_up_module,
    tiny_worker,
    until,
)  # noqa: E402

BLOCK = 16
PROMPT = [token * 7 % 256 for token in range(200)]
HIT = (len(PROMPT) - 1) // BLOCK * BLOCK  # the last token is always computed


def setUpModule():
    set_up_module()


def leases(daemon):
    return daemon.ctl("status", "--json")["leases"]


class Sharing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(pool_blocks=4096)
        cls.daemon.start()
        cls.addClassCleanup(cls.daemon.__exit__, None, None)

    def setUp(self):
        self.first = self.worker()
        self.prompt = [len(self.id()) % 256, *self.id().encode(), *PROMPT][: len(PROMPT)]  # each case its own

    def worker(self, **options):
        worker = tiny_worker(socket=self.daemon.socket, **{"slots": 2, **options}).start()
        self.addCleanup(worker.stop)
        return worker

    def tearDown(self):
        until(lambda: leases(self.daemon) == 0, "all leases given back")
        self.assertTrue(self.daemon.ctl("audit", "--json")["clean"])

    def hits(self, worker, **more):
        return worker.complete(self.prompt, max_tokens=4, **more).cached

    def test_another_worker(self):
        """The second worker has what the first computed; usage, timings and metrics say so."""
        second = self.worker()
        cold = self.first.complete(self.prompt, max_tokens=40)
        self.assertEqual((cold.cached, cold.timings["prefill_tokens"]), (0, len(self.prompt)))
        warm = second.complete(self.prompt, max_tokens=40, prefill_splits=[HIT])
        self.assertEqual((warm.cached, warm.timings["prefill_tokens"]), (HIT, len(self.prompt) - HIT))
        control = second.complete(self.prompt, max_tokens=40, prefill_splits=[HIT], cache_prompt=False)
        self.assertEqual((control.cached, control.tokens), (0, warm.tokens))
        self.assertEqual(metric(second, "cached_tokens_total"), HIT)
        self.assertEqual(metric(second, "cache_enabled"), 1)
        self.assertGreaterEqual(metric(self.first, "cache_stored_blocks_total"), HIT // BLOCK)

    def test_answers_are_stored_too(self):
        answer = self.first.complete(self.prompt, max_tokens=60)
        longer = self.prompt + answer.tokens + [1, 2, 3]
        again = self.first.complete(longer, max_tokens=4)
        self.assertEqual(again.cached, (len(self.prompt) + 59) // BLOCK * BLOCK)

    def test_cache_prompt_false(self):
        """It neither fills nor reads."""
        self.assertEqual(self.hits(self.first, cache_prompt=False), 0)
        self.assertEqual(self.hits(self.first), 0)
        self.assertEqual(self.hits(self.first, cache_prompt=False), 0)
        self.assertEqual(self.hits(self.first), HIT)

    def test_salts(self):
        """Nothing is shared across salts, the worker's or the request's; everything within one."""
        salted = self.worker(salt="s")
        asks = [
            (self.first, {}),
            (self.first, {"cache_salt": "a"}),
            (self.first, {"cache_salt": "b"}),
            (salted, {}),
            (salted, {"cache_salt": "a"}),
            (self.first, {"cache_salt": "sa"}),
        ]
        self.assertEqual([self.hits(worker, **more) for worker, more in asks], [0] * len(asks))
        self.assertEqual([self.hits(worker, **more) for worker, more in asks], [HIT] * len(asks))
        self.assertEqual(self.hits(self.first, salt="a"), HIT)

    def test_adapter(self):
        """An adapter, and how strongly it is applied, each keep apart; without strength it says the same."""
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            write_adapter(file)
            plain = self.first.complete(self.prompt, max_tokens=30)
            again = self.worker().complete(self.prompt, max_tokens=30, prefill_splits=[HIT])
            self.assertEqual(again.cached, HIT)
            answers = {}
            for scale in ("1", "0.5", "0"):
                worker = self.worker(lora=file.name, lora_scale=scale)
                answers[scale] = worker.complete(self.prompt, max_tokens=30)
                self.assertEqual(answers[scale].cached, 0, scale)
            self.assertEqual(self.worker(lora=file.name, lora_scale="1").complete(self.prompt).cached, HIT)
        self.assertNotEqual(answers["1"].tokens, plain.tokens)
        self.assertNotEqual(answers["1"].tokens, answers["0.5"].tokens)
        self.assertEqual(answers["0"].tokens, plain.tokens)

    def test_other_names(self):
        """Another model name, block size, or type of K or V: nothing shared.  Other chunks and slots: all."""
        self.assertEqual(self.hits(self.first), 0)
        for options in (
            {"model_name": "other"},
            {"block_tokens": 32},
            {"type_k": "q8_0"},
            {"type_v": "q8_0"},
        ):
            self.assertEqual(self.hits(self.worker(**options)), 0, options)
        for options in ({}, {"chunk": 64}, {"slots": 3}, {"ctx": 1024}, {"queue": 3}):
            self.assertEqual(self.hits(self.worker(**options)), HIT, options)

    def test_waits_for_another_worker(self):
        """What another worker is computing is waited for, and the other slots go on meanwhile."""
        slow = self.worker(ctx=8192, chunk=16)
        second = self.worker(ctx=8192, cache_wait="300s")
        long = (self.prompt * 40)[:8000]
        seconds = slow.complete(long, max_tokens=1, cache_prompt=False).timings["prefill_ms"] / 1000
        links = []
        for worker in (slow, second):
            link = socket.create_connection(("127.0.0.1", worker.port), timeout=120)
            self.addCleanup(link.close)
            link.sendall(raw_post("/v1/completions", {"prompt": long, "max_tokens": 4, "stream": True}))
            until(lambda: metric(worker, "slots_busy") == 1, "at work")
            links.append(link)
            time.sleep(min(seconds / 8, 1))
        short = second.complete(self.prompt[:100], max_tokens=8)
        self.assertEqual((len(short.tokens), metric(second, "slots_busy")), (8, 1))
        for link in links:
            while b"[DONE]" not in link.recv(65536):
                pass
        self.assertEqual(metric(second, "cache_waited_requests_total"), 1)
        # It had at least what the first had not yet computed when it asked.
        self.assertGreater(metric(second, "cached_tokens_total"), 4000)
        self.assertLess(metric(second, "prefill_tokens_total"), 4000 + 100)

    def test_same_prompt_at_once(self):
        """Eight askers at two workers: it is computed once, but for what is not a whole block."""
        workers = [self.worker(ctx=8192, slots=4, cache_wait="60s", chunk=64) for _ in range(2)]
        long = (self.prompt * 20)[:3000]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda i: workers[i % 2].complete(long, max_tokens=20), range(8)))
        hits = sorted(answer.cached for answer in answers)
        self.assertEqual((hits[0], hits[-1]), (0, (len(long) - 1) // BLOCK * BLOCK))
        self.assertLess(sum(metric(worker, "prefill_tokens_total") for worker in workers), 2 * len(long))
        self.assertEqual({len(answer.tokens) for answer in answers}, {20})

    def test_gone_while_waiting_for_another(self):
        slow = self.worker(ctx=8192, chunk=16)
        second = self.worker(ctx=8192, cache_wait="20s")
        long = (self.prompt * 40)[:8000]
        links = []
        for worker in (slow, second):
            link = socket.create_connection(("127.0.0.1", worker.port), timeout=120)
            self.addCleanup(link.close)
            link.sendall(raw_post("/v1/completions", {"prompt": long, "max_tokens": 4}))
            until(lambda: metric(worker, "slots_busy") == 1, "at work")
            links.append(link)
        links[1].close()
        until(lambda: metric(second, "slots_busy") == 0, "slot given back", 5)
        self.assertEqual((metric_finish(second, "abort"), metric(second, "prefill_tokens_total")), (1, 0))
        links[0].close()
        until(lambda: metric(slow, "slots_busy") == 0, "slot given back", 5)

    def test_killed_worker(self):
        """kill -9 in the middle of a prompt and in the middle of an answer: nothing is left in the daemon."""
        for tokens, max_tokens in ((self.prompt * 35, 4), (self.prompt, 7000)):
            worker = self.worker(ctx=8192, chunk=16)
            link = socket.create_connection(("127.0.0.1", worker.port), timeout=60)
            self.addCleanup(link.close)
            body = {"prompt": tokens, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
            link.sendall(raw_post("/v1/completions", body))
            until(lambda: metric(worker, "cache_stored_blocks_total") > 20, "in the middle")
            self.assertEqual(leases(self.daemon), 1)
            worker.kill()
            until(lambda: leases(self.daemon) == 0, "lease taken back", 5)
            self.assertEqual(self.daemon.ctl("status", "--json")["slots"]["reserved"], 0)
        self.assertEqual(self.hits(self.first), HIT)  # what was committed is there


class WithoutDaemon(unittest.TestCase):
    def test_daemon_goes_and_comes(self):
        """Answers stay the same, whatever becomes of the daemon; hits come back with it."""
        with tiny_worker() as plain:
            right = [plain.complete(PROMPT, max_tokens=30).tokens]
            right.append(plain.complete(PROMPT, max_tokens=30, prefill_splits=[HIT]).tokens)
        daemon = Daemon(pool_blocks=1024)
        daemon.start()
        self.addCleanup(daemon.__exit__, None, None)
        with tiny_worker(socket=daemon.socket) as worker:

            def ask():
                answer = worker.complete(PROMPT, max_tokens=30)
                self.assertEqual(answer.tokens, right[answer.cached > 0])
                return answer.cached

            self.assertEqual([ask(), ask()], [0, HIT])
            daemon.kill()
            self.assertEqual([ask(), ask()], [0, 0])
            self.assertEqual(worker.get("/health")[0], 200)
            daemon.start()
            time.sleep(0.3)  # it tries again 200 ms after it failed
            self.assertEqual(ask(), 0)
            until(lambda: ask() == HIT, "hits again", 10)
            self.assertIn("prefixd: ", worker.text())

    def test_no_daemon_at_all(self):
        with tempfile.TemporaryDirectory() as folder, tiny_worker(socket=f"{folder}/none.sock") as worker:
            begun = time.monotonic()
            answer = worker.complete(PROMPT, max_tokens=5)
            self.assertEqual((len(answer.tokens), answer.cached), (5, 0))
            self.assertLess(time.monotonic() - begun, 5)

    def test_model_whose_state_is_no_blocks(self):
        """It is served, without prefixd, and the log says why."""
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file, Daemon(pool_blocks=64) as daemon:
            make_model(file.name, "--arch", "gemma3")
            with tiny_worker(model=file.name, socket=daemon.socket) as worker:
                one, two = (worker.complete(PROMPT, max_tokens=20) for _ in range(2))
                self.assertEqual((one.tokens, two.cached), (two.tokens, 0))
                self.assertEqual(metric(worker, "cache_enabled"), 0)
                self.assertIn("prefixd is not used: ", worker.text())


def write_adapter(file, rank=4, alpha=64.0):
    """A LoRA with random weights for the tiny model's first layers' queries and outputs."""
    model = make_gguf.Model("llama", 5)
    model.put("general.type", "adapter")
    model.put("adapter.type", "lora")
    model.put("adapter.lora.alpha", alpha)
    for layer in range(2):
        for name in ("attn_q", "attn_output"):
            model.weights(f"blk.{layer}.{name}.weight.lora_a", [256, rank], 0.1)
            model.weights(f"blk.{layer}.{name}.weight.lora_b", [rank, 256], 0.1)
    model.write(file)
    file.flush()


if __name__ == "__main__":
    unittest.main()
