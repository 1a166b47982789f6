"""Eight requests at a time per engine, and requests that go away in the middle: same tokens, no leak."""
import json
import random
import socket
import sys
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "lib"), str(Path(__file__).resolve().parents[1] / "bench")]
import llama_turns  # noqa: E402
from daemon import Daemon  # noqa: E402
from llama_worker import Worker, missing  # noqa: E402

CHUNK, BLOCK, ANSWER = 256, 16, 48
OPTIONS = {"threads": 2, "ctx": 2048, "slots": 8, "chunk": CHUNK}


def prompts_of(worker, n, system_tokens=500):
    """n prompts that share a system prompt of whole blocks and go on differently from its end on."""
    shared = llama_turns.Conversation(worker, system_tokens).ids
    shared = shared + worker.tokenize(" .") * (-len(shared) % BLOCK)
    assert len(shared) % BLOCK == 0
    return [shared + worker.tokenize(f"{i} <|im_start|>user\n{llama_turns.QUESTIONS[i % 8]}<|im_end|>\n"
                                     "<|im_start|>assistant\n") for i in range(n)], shared


def alike(prompt, shared):
    """Where the prefill of every run is cut: where a hit can end.  Then all runs compute the same bits."""
    return sorted({len(shared), (len(prompt) - 1) // BLOCK * BLOCK})


def settled(daemon):
    """True once the daemon holds nothing for anybody."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        status = daemon.ctl("status", "--json")
        if status["leases"] == 0 and status["slots"]["reserved"] == 0:
            return True
        time.sleep(0.1)
    return False


@unittest.skipIf(missing(), missing())
class Parallel(unittest.TestCase):
    def test_eight_at_once_same_tokens(self):
        with Daemon(pool_blocks=4096) as daemon, Worker(socket=None, **OPTIONS) as plain, \
                Worker(socket=daemon.socket, **OPTIONS) as first, Worker(socket=daemon.socket, **OPTIONS) as second, \
                ThreadPoolExecutor(16) as pool:
            prompts, shared = prompts_of(plain, 8)

            def ask(worker, prompt):
                return worker.complete(prompt, max_tokens=ANSWER, prefill_splits=alike(prompt, shared))

            control = [ask(plain, prompt).tokens for prompt in prompts]
            # What all share is stored by one, first: so every hit is known beforehand.
            first.complete(shared + [1], max_tokens=1, prefill_splits=[len(shared)])
            cold = list(pool.map(lambda prompt: ask(first, prompt), prompts))
            self.assertEqual([answer.cached for answer in cold], [len(shared)] * 8)
            self.assertEqual([answer.tokens for answer in cold], control)
            # Both engines at once, eight requests each; the second one never saw any of it.
            both = [pool.submit(ask, worker, prompt) for prompt in prompts for worker in (first, second)]
            warm = [job.result() for job in both]
            for number, answer in enumerate(warm):
                prompt = prompts[number // 2]
                self.assertEqual(answer.cached, (len(prompt) - 1) // BLOCK * BLOCK)
                self.assertEqual(answer.tokens, control[number // 2], f"prompt {number // 2}")
            self.assertTrue(settled(daemon))
            self.assertTrue(daemon.ctl("audit", "--json")["clean"])

    def test_aborts_leak_nothing(self):
        """Askers that go away while their prompt is loaded or computed, or in the answer; then all is as before."""
        # A pool that holds a part of it, with host memory below: aborts meet loads and evictions too.
        with Daemon(pool_blocks=56, host_blocks=2048) as daemon, Worker(socket=None, **OPTIONS) as plain, \
                Worker(socket=daemon.socket, **OPTIONS) as first, Worker(socket=daemon.socket, **OPTIONS) as second:
            prompts, shared = prompts_of(plain, 8, 300)
            for prompt in prompts:  # one after the other, so that the first ones go down again
                first.complete(prompt, max_tokens=ANSWER)
            dice = random.Random(4)
            wrong, aborted = [], []
            lock = threading.Lock()

            def client(number):
                worker = (first, second)[number % 2]
                mine = random.Random(number)
                for _ in range(6):
                    prompt = prompts[mine.randrange(8)] + [mine.randrange(100, 1000) for _ in range(mine.randrange(40))]
                    patience = mine.random() * 0.8
                    try:
                        seen = 0
                        events = worker.stream(prompt, max_tokens=ANSWER)
                        start = time.monotonic()
                        for _, event in events:
                            seen += 1
                            if time.monotonic() - start > patience:
                                events.close()
                                break
                        with lock:
                            aborted.append(seen)
                    except (OSError, RuntimeError) as error:
                        with lock:
                            wrong.append(repr(error))
                    # Half of them leave before the first token: the connection is cut while the prompt is worked on.
                    hang_up(worker, prompt, mine.random() * 0.2)

            def met():
                """Were requests of both workers aborted, had some waited for blocks, and did loads run?"""
                waited = sum(metric(worker, "cache_waited_requests_total") for worker in (first, second))
                return (all(metric(worker, 'requests_total{finish="abort"}') for worker in (first, second)) and waited
                        and daemon.ctl("status", "--json")["counters"]["loads"])

            for round in range(6):  # what meets what is chance
                threads = [threading.Thread(target=client, args=(dice.randrange(1000) * 16 + i,)) for i in range(16)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(300)
                self.assertFalse(any(thread.is_alive() for thread in threads))
                if met():
                    break
            # A worker may refuse when all its slots and its queue are full; nothing else is in order.
            self.assertEqual([line for line in wrong if "429" not in line], [])
            self.assertLess(len(wrong), len(aborted))
            self.assertTrue(settled(daemon), daemon.ctl("pins", "--json"))
            self.assertTrue(met(), [worker.get("/metrics")[1] for worker in (first, second)])
            audit = daemon.ctl("audit", "--json")
            self.assertTrue(audit["clean"], audit)
            for worker in (first, second):
                self.assertEqual(worker.get("/health")[0], 200)
                self.assertIsNone(worker.process.poll())
            counters = daemon.ctl("status", "--json")["counters"]
            self.assertEqual(counters["unknown_lease"], 0)
            # And answers are still right, under a salt of its own: cold from one worker, warm from the other.
            for number, prompt in enumerate(prompts[:2]):
                options = {"max_tokens": ANSWER, "prefill_splits": alike(prompt, shared)}
                control = plain.complete(prompt, **options)
                cold = first.complete(prompt, cache_salt="after", **options)
                warm = second.complete(prompt, cache_salt="after", **options)
                self.assertEqual(cold.cached, len(shared) if number else 0)
                self.assertEqual(warm.cached, (len(prompt) - 1) // BLOCK * BLOCK)
                self.assertEqual(cold.tokens, control.tokens)
                self.assertEqual(warm.tokens, control.tokens)


def metric(worker, name):
    """A figure of the worker's /metrics."""
    for line in worker.get("/metrics")[1].decode().splitlines():
        words = line.split()
        if len(words) == 2 and words[0].endswith(name):
            return float(words[1])
    raise AssertionError(f"/metrics has no {name}")


def hang_up(worker, prompt, after):
    body = json.dumps({"prompt": prompt, "max_tokens": 8, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", worker.port), timeout=60) as link:
        link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(after)


if __name__ == "__main__":
    unittest.main()
