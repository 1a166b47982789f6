"""What clients may do to prefixd-llama, and how it starts and stops."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from llama_http import (
    Events,
    OneWorker,
    Shared,
    UnixConnection,
    link_to,
    metric,
    metric_finish,
    raw_post,
    refused,
    request,
    set_up_module,
    tiny,
    tiny_worker,
    until,
)  # noqa: E402


def setUpModule():
    set_up_module()


class Connections(OneWorker):
    """What clients do to a connection."""

    OPTIONS = {"max_body": 65536, "ctx": 8192, "chunk": 32}

    def raw(self, *pieces, shut=False):
        link = socket.create_connection(("127.0.0.1", self.worker.port), timeout=60)
        self.addCleanup(link.close)
        for piece in pieces:
            link.sendall(piece)
        return link

    def replies(self, link, n):
        """Reads n replies off a connection."""
        got = []
        for _ in range(n):
            reply = http.client.HTTPResponse(link)
            reply.begin()
            got.append((reply.status, reply.read()))
        return got

    def test_keep_alive(self):
        for _ in range(5):
            self.ask({"prompt": "x", "max_tokens": 2})
            self.stream({"prompt": "x", "max_tokens": 2})
            self.refused({}, "prompt")
        self.assertIsNotNone(self.link.sock)

    def test_pipelining(self):
        """Requests sent ahead are answered one after the other, in their order."""
        bodies = [
            {
                "prompt": [65 + i],
                "max_tokens": 20,
                "ignore_eos": True,
                "return_token_ids": True,
                "stream": i % 2 == 1,
            }
            for i in range(6)
        ]
        link = self.raw(b"".join(raw_post("/v1/completions", body) for body in bodies))
        file = link.makefile("rb")
        for body in bodies:
            reply = http.client.HTTPResponse(Shared(file))
            reply.begin()
            data = reply.read()
            alone = self.ask({**body, "stream": False})["choices"][0]["token_ids"]
            tokens = Events(data).tokens if body["stream"] else json.loads(data)["choices"][0]["token_ids"]
            self.assertEqual((reply.status, tokens), (200, alone))

    def test_sent_far_ahead(self):
        """More than is kept for a later request waits in the kernel, and is answered in its turn."""
        body = {"prompt": "x", "max_tokens": 2, "ignored": "y" * 60000}
        link = self.raw(raw_post("/v1/completions", {"prompt": "x", "max_tokens": 2000, "ignore_eos": True}))
        sender = threading.Thread(
            target=link.sendall, args=(b"".join(raw_post("/v1/completions", body) for _ in range(40)),)
        )
        sender.start()
        file = Shared(link.makefile("rb"))
        statuses = []
        for _ in range(41):
            reply = http.client.HTTPResponse(file)
            reply.begin()
            reply.read()
            statuses.append(reply.status)
        sender.join()
        self.assertEqual(statuses, [200] * 41)

    def test_slow_request(self):
        data = raw_post("/v1/completions", {"prompt": "abc", "max_tokens": 3})
        link = self.raw()
        for at in range(0, len(data), 7):
            link.sendall(data[at : at + 7])
            time.sleep(0.005)
        self.assertEqual(self.replies(link, 1)[0][0], 200)

    def test_half_a_request(self):
        """Its peer goes away, or stays and says no more: others are served."""
        data = raw_post("/v1/completions", {"prompt": "abc", "max_tokens": 3})
        links = [self.raw(data[:cut]) for cut in range(1, len(data), 9)]
        for link in links[::2]:
            link.close()
        self.ask({"prompt": "x", "max_tokens": 2})
        for link in links[1::2]:
            link.close()
        self.ask({"prompt": "x", "max_tokens": 2})

    def test_chunked_request(self):
        body = json.dumps({"prompt": "abc", "max_tokens": 3}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = b"".join(
            b"%x\r\n%s\r\n" % (len(body[i : i + 5]), body[i : i + 5]) for i in range(0, len(body), 5)
        )
        self.assertEqual(self.replies(self.raw(head + chunks + b"0\r\n\r\n"), 1)[0][0], 200)

    def test_http_1_0(self):
        """No chunks there: the reply ends with the connection."""
        data = json.dumps({"prompt": "abc", "max_tokens": 9, "stream": True, "ignore_eos": True}).encode()
        link = self.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
        whole = b"".join(iter(lambda: link.recv(65536), b""))
        head, _, body = whole.partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)
        self.assertTrue(Events(body).done)

    def test_huge_bodies(self):
        text = "x" * 70000
        self.refused({"prompt": text}, None, "65536", status=413)
        self.refused({"content": text}, None, "65536", path="/tokenize", status=413)
        self.refused({"prompt": "x" * 230000}, None, "65536", status=413)
        self.ask({"prompt": "x", "max_tokens": 2, "ignored": "y" * 60000})
        # So long that it is not even read: still an answer, or the connection ends.
        link = self.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        try:
            for _ in range(64):
                link.sendall(b"z" * 65536)
        except OSError:
            pass
        link.close()
        self.ask({"prompt": "x", "max_tokens": 2})

    def test_nonsense(self):
        for data in (
            b"\0" * 5000,
            b"GET\r\n\r\n",
            b"POST /v1/completions HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\0\x01\0",
            b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
            b"POST /tokenize HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            b"POST /tokenize HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        ):
            link = socket.create_connection(("127.0.0.1", self.worker.port), timeout=20)
            try:
                link.sendall(data)
                link.shutdown(socket.SHUT_WR)
                while link.recv(65536):
                    pass
            except OSError:
                pass
            link.close()
        self.ask({"prompt": "x", "max_tokens": 2})

    def test_gone_while_answered(self):
        """A peer that goes away in the middle of its answer frees its slot, long before the answer's end."""
        for stream in (True, False):
            ended = metric_finish(self.worker, "abort")
            links = [
                self.raw(
                    raw_post(
                        "/v1/completions",
                        {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": stream},
                    )
                )
                for _ in range(4)
            ]
            if stream:
                for link in links:
                    self.assertTrue(link.recv(100))
            else:
                until(lambda: metric(self.worker, "slots_busy") == 4, "four at work")
            for link in links:
                link.close()
            until(lambda: metric(self.worker, "slots_busy") == 0, "slots given back", 5)
            self.assertEqual(metric_finish(self.worker, "abort") - ended, 4)

    def test_gone_while_prefilled(self):
        prompt = [i % 256 for i in range(8000)]
        whole = self.ask({"prompt": prompt, "max_tokens": 1})["timings"]["prefill_ms"] / 1000
        ended, computed = metric_finish(self.worker, "abort"), metric(self.worker, "prefill_tokens_total")
        link = self.raw(raw_post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "stream": True}))
        until(lambda: metric(self.worker, "slots_busy") == 1, "at work")
        time.sleep(whole / 4)
        link.close()
        until(lambda: metric(self.worker, "slots_busy") == 0, "slot given back", 5)
        self.assertEqual(metric_finish(self.worker, "abort") - ended, 1)
        self.assertLess(metric(self.worker, "prefill_tokens_total") - computed, 8000)
        self.assertEqual(
            self.ask({"prompt": prompt[:50], "max_tokens": 9, "ignore_eos": True})["usage"][
                "completion_tokens"
            ],
            9,
        )

    def test_gone_after_a_half_close(self):
        """A peer that says it sends no more counts as gone: it could not be told from one that went."""
        ended = metric_finish(self.worker, "abort")
        link = self.raw(raw_post("/v1/completions", {"prompt": "x", "max_tokens": 8000, "ignore_eos": True}))
        until(lambda: metric(self.worker, "slots_busy") == 1, "at work")
        link.shutdown(socket.SHUT_WR)
        until(lambda: metric_finish(self.worker, "abort") == ended + 1, "aborted", 5)


class Load(unittest.TestCase):
    def test_sixteen_clients_on_four_slots(self):
        """Each gets the answer that it gets alone, whoever is served beside it."""
        prompts = [[(7 * i + 3 * k) % 256 for k in range(20 + 37 * i)] for i in range(16)]
        with tiny_worker() as worker:

            def say(i):
                answer = worker.complete(prompts[i], max_tokens=100 + i)
                return answer.tokens, answer.timings["queued_ms"]

            alone = [say(i)[0] for i in range(16)]
            with ThreadPoolExecutor(16) as pool:
                together = list(pool.map(say, range(16)))
            self.assertEqual([tokens for tokens, _ in together], alone)
            self.assertEqual(len({tuple(tokens) for tokens in alone}), 16)
            self.assertGreater(max(queued for _, queued in together), 0)
            self.assertEqual(metric_finish(worker, "length"), 32)

    def test_too_many(self):
        """Full slots and a full queue: 429 with Retry-After; those that wait are served in the end."""
        with tiny_worker(slots=1, queue=2, ctx=8192) as worker:
            long = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True}
            links = []
            for _ in range(3):
                link = socket.create_connection(("127.0.0.1", worker.port), timeout=60)
                self.addCleanup(link.close)
                link.sendall(raw_post("/v1/completions", long))
                links.append(link)
            until(lambda: metric(worker, "queue") == 2, "a full queue")
            extra = link_to(worker)
            self.addCleanup(extra.close)
            status, headers, data = request(extra, "/v1/completions", long)
            error = json.loads(data)["error"]
            self.assertEqual(
                (status, headers["Retry-After"], error["type"], error["code"]),
                (429, "1", "rate_limit_error", "queue_full"),
            )
            self.assertIn("2 requests wait", error["message"])
            self.assertEqual(metric(worker, "requests_refused_total"), 1)
            for link in links:
                reply = http.client.HTTPResponse(link)
                reply.begin()
                self.assertEqual(
                    (reply.status, json.loads(reply.read())["usage"]["completion_tokens"]), (200, 1500)
                )
            self.assertEqual(request(extra, "/v1/completions", {**long, "max_tokens": 1})[0], 200)

    def test_gone_while_waiting(self):
        """A request whose peer leaves the queue is never begun."""
        with tiny_worker(slots=1, queue=8, ctx=8192) as worker:
            first = socket.create_connection(("127.0.0.1", worker.port), timeout=60)
            first.sendall(
                raw_post("/v1/completions", {"prompt": "x", "max_tokens": 8000, "ignore_eos": True})
            )
            until(lambda: metric(worker, "prefill_tokens_total") > 0, "at work")
            computed = metric(worker, "prefill_tokens_total")
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", worker.port), timeout=60) as link:
                    link.sendall(raw_post("/v1/completions", {"prompt": "y" * 500, "max_tokens": 8000}))
                    until(lambda: metric(worker, "queue") == 1, "waits")
                until(lambda: metric(worker, "queue") == 0, "left the queue")
            first.close()
            until(lambda: metric(worker, "slots_busy") == 0, "idle")
            self.assertEqual(metric(worker, "prefill_tokens_total"), computed)
            self.assertEqual(metric_finish(worker, "abort"), 6)

    def test_connections_have_a_limit(self):
        """More wait to be accepted, and are served when others go."""
        with tiny_worker(connections=4) as worker:
            idle = [socket.create_connection(("127.0.0.1", worker.port), timeout=60) for _ in range(4)]
            time.sleep(0.3)
            late = socket.create_connection(("127.0.0.1", worker.port), timeout=1)
            self.addCleanup(late.close)
            late.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            with self.assertRaises(TimeoutError):
                late.recv(1)
            for link in idle:
                link.close()
            late.settimeout(20)
            self.assertTrue(late.recv(100).startswith(b"HTTP/1.1 200"))


class SlowReader(unittest.TestCase):
    def test_is_given_up(self):
        """Who asks and does not read is let go of, and nobody else notices."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "api.sock")
            process, _ = start_raw(["--listen", f"unix:{path}", "--ctx", "16384", "--slots", "2"])
            self.addCleanup(finish, process)
            link = UnixConnection(path)
            tokens = None
            slow = socket.socket(socket.AF_UNIX)
            self.addCleanup(slow.close)
            slow.connect(path)
            slow.sendall(
                raw_post(
                    "/v1/completions",
                    {
                        "prompt": "x",
                        "max_tokens": 16000,
                        "ignore_eos": True,
                        "stream": True,
                        "return_token_ids": True,
                    },
                )
            )
            for _ in range(3):
                status, _, data = request(
                    link,
                    "/v1/completions",
                    {"prompt": "abc", "max_tokens": 200, "ignore_eos": True, "return_token_ids": True},
                )
                self.assertEqual(status, 200)
                one = json.loads(data)["choices"][0]["token_ids"]
                tokens = tokens or one
                self.assertEqual(one, tokens)

            def aborted():
                return b'finish="abort"} 1\n' in request(link, "/metrics", None, "GET")[2]

            until(aborted, "given up", 60)
            text = request(link, "/metrics", None, "GET")[2].decode()
            self.assertIn("prefixd_llama_slots_busy 0\n", text)
            self.assertLess(int(re.search(r"completion_tokens_total (\d+)\n", text).group(1)), 16000)


def start_raw(args, wait="ready"):
    """A worker started by hand; returns it and its standard output up to the line `wait`."""
    process = subprocess.Popen(
        [os.environ["PREFIXD_LLAMA_BIN"], "--model", tiny(), "--socket", "off", "--threads", "1", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    seen = []
    for line in process.stdout:
        seen.append(line.rstrip("\n"))
        if seen[-1].startswith(wait):
            break
    return process, seen


def finish(process):
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


class Process(unittest.TestCase):
    def run_to_end(self, *args):
        return subprocess.run(
            [os.environ["PREFIXD_LLAMA_BIN"], *args], capture_output=True, text=True, timeout=60, check=False
        )

    def test_help_and_version(self):
        for args in (["--help"], ["-h"]):
            out = self.run_to_end(*args)
            self.assertEqual((out.returncode, out.stderr), (0, ""))
            for name in (
                "--model FILE",
                "--listen ADDRESS",
                "--slots N",
                "--cache-deadline TIME",
                "--socket PATH",
            ):
                self.assertIn(name, out.stdout)
            self.assertLessEqual(max(map(len, out.stdout.splitlines())), 80)
        self.assertRegex(self.run_to_end("--version").stdout, r"^prefixd-llama \d+\.\d+\.\d+\n$")

    def test_wrong_command_lines(self):
        for args, word in (
            ([], "--model"),
            (["--modle", "x"], "modle"),
            (["x"], "`x`"),
            (["--model"], "needs a value"),
            (["--model", tiny(), "--slots", "0"], "1 to 256"),
            (["--model", tiny(), "--slots", "many"], "many"),
            (["--model", tiny(), "--ctx=1e3"], "ctx"),
            (["--model", tiny(), "--cache-deadline", "5"], "500ms"),
            (["--model", tiny(), "--lora-scale", "x"], "0.5"),
            (["--model", tiny(), "--socket", ""], "empty"),
            (["--model", tiny(), "--help=yes"], "no value"),
            (["--model", tiny(), "--block-tokens", "64", "--ctx", "64"], "less than"),
        ):
            with self.subTest(args=args):
                out = self.run_to_end(*args)
                self.assertEqual((out.returncode, out.stdout), (2, ""))
                self.assertIn(word, out.stderr)
                self.assertEqual(out.stderr.count("\n"), 1)

    def test_what_cannot_be_served(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = os.path.join(folder, "bad.gguf")
            with open(bad, "wb") as file:
                file.write(b"GGUF" + bytes(100))
            taken = os.path.join(folder, "file")
            with open(taken, "wb"):
                pass
            local = ["--listen", "127.0.0.1:0"]
            for args, word in (
                (["--model", os.path.join(folder, "none.gguf"), *local], "none.gguf"),
                (["--model", bad, *local], "bad.gguf"),
                (["--model", tiny(), "--listen", "0.0.0.0:8080"], "other machines"),
                (["--model", tiny(), "--listen", "8080"], "not an address"),
                (["--model", tiny(), "--listen", f"unix:{taken}"], "File exists"),
                (["--model", tiny(), "--listen", "unix:" + "x" * 200], "107"),
                (["--model", tiny(), "--type-k", "f8", "--socket", "off", *local], "--type-k"),
                (["--model", tiny(), "--lora", bad, "--socket", "off", *local], "--lora"),
            ):
                with self.subTest(args=args):
                    out = self.run_to_end(*args)
                    self.assertEqual(out.returncode, 1, out.stderr)
                    self.assertIn(word, out.stderr)

    def test_any_port(self):
        process, seen = start_raw(["--listen", "127.0.0.1:0"])
        self.addCleanup(finish, process)
        self.assertRegex(seen[0], r"^listening on 127\.0\.0\.1:[1-9]\d*$")
        link = http.client.HTTPConnection(seen[0].split()[-1], timeout=20)
        self.assertEqual(request(link, "/health", None, "GET")[0], 200)
        link.close()

    def test_unix_socket(self):
        """One that a killed worker left is taken over, one in use is not; it goes with its worker."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "api.sock")
            first, seen = start_raw(["--listen", f"unix:{path}"])
            self.addCleanup(finish, first)
            self.assertEqual(seen[0], f"listening on unix:{path}")
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            out = self.run_to_end("--model", tiny(), "--socket", "off", "--listen", f"unix:{path}")
            self.assertEqual(out.returncode, 1)
            self.assertIn("in use", out.stderr)
            first.kill()
            first.wait()
            self.assertTrue(os.path.exists(path))
            second, _ = start_raw(["--listen", f"unix:{path}"])
            self.addCleanup(finish, second)
            link = UnixConnection(path)
            status, _, data = request(
                link, "/v1/completions", {"prompt": "x", "max_tokens": 3, "ignore_eos": True}
            )
            self.assertEqual((status, json.loads(data)["usage"]["completion_tokens"]), (200, 3))
            link.close()
            second.terminate()
            self.assertEqual(second.wait(20), 0)
            self.assertFalse(os.path.exists(path))

    def test_not_ready_yet(self):
        """It listens before it can serve, and says so."""
        with tempfile.TemporaryDirectory() as folder:
            # A model that takes as long to open as nobody writes it.
            fifo = os.path.join(folder, "slow.gguf")
            os.mkfifo(fifo)
            process = subprocess.Popen(
                [
                    os.environ["PREFIXD_LLAMA_BIN"],
                    "--model",
                    fifo,
                    "--socket",
                    "off",
                    "--listen",
                    "127.0.0.1:0",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.addCleanup(finish, process)
            address = process.stdout.readline().split()[-1]
            link = http.client.HTTPConnection(address, timeout=20)
            self.addCleanup(link.close)
            for method, path, body in (
                ("GET", "/health", None),
                ("POST", "/v1/completions", {"prompt": "x"}),
                ("POST", "/v1/chat/completions", {}),
                ("POST", "/tokenize", {"content": "x"}),
            ):
                status, headers, data = request(link, path, body, method)
                self.assertEqual(
                    (status, json.loads(data)["error"]["code"], headers["Retry-After"]), (503, "loading", "1")
                )
            status, _, data = request(link, "/metrics", None, "GET")
            self.assertEqual(status, 200)
            self.assertIn(b"prefixd_llama_ready 0\n", data)
            # What comes is no model: the worker reads as much as it needs to see it, says so and ends.
            with contextlib.suppress(BrokenPipeError), open(fifo, "wb") as file:
                file.write(b"x" * 1000)
            self.assertEqual(process.wait(20), 1)
            self.assertIn("slow.gguf", process.stderr.read())


class Stopping(unittest.TestCase):
    """SIGTERM: what runs may end, in 5 seconds it is over, and the exit status is 0."""

    def busy(self, max_tokens, n=6, **options):
        worker = tiny_worker(ctx=16384, slots=2, **options).start()
        self.addCleanup(worker.log.close)
        links = []
        for i in range(n):
            link = socket.create_connection(("127.0.0.1", worker.port), timeout=60)
            self.addCleanup(link.close)
            link.sendall(
                raw_post(
                    "/v1/completions",
                    {"prompt": [i + 1], "max_tokens": max_tokens, "ignore_eos": True, "stream": i % 2 == 0},
                )
            )
            links.append(link)
        until(lambda: metric(worker, "queue") == n - 2, "all there")
        return worker, links

    def read_all(self, link):
        """(status, body) of a reply that may break off."""
        reply = http.client.HTTPResponse(link)
        reply.begin()
        try:
            return reply.status, reply.read()
        except http.client.IncompleteRead as short:
            return reply.status, short.partial

    def test_what_runs_may_end(self):
        worker, links = self.busy(300)
        worker.process.send_signal(signal.SIGTERM)
        for i, link in enumerate(links):
            status, body = self.read_all(link)
            self.assertEqual(status, 200)
            if i % 2 == 0:
                self.assertTrue(Events(body).done)
            else:
                self.assertEqual(json.loads(body)["usage"]["completion_tokens"], 300)
        self.assertEqual(worker.process.wait(5), 0)

    def test_what_does_not_end_is_cut(self):
        worker, links = self.busy(16000)
        keep = link_to(worker)
        self.addCleanup(keep.close)
        self.assertEqual(request(keep, "/health", None, "GET")[0], 200)
        begun = time.monotonic()
        worker.process.send_signal(signal.SIGTERM)
        until(lambda: refused(worker.port), "listens no more", 2)
        status, _, data = request(keep, "/health", None, "GET")
        self.assertEqual((status, json.loads(data)["error"]["code"]), (503, "stopping"))
        replies = [self.read_all(link) for link in links]
        self.assertEqual(worker.process.wait(10), 0)
        self.assertLess(time.monotonic() - begun, 5.5)
        for status, body in replies:
            if status == 200:  # a stream that had begun: the last event says what happened, and no [DONE]
                events = Events(body)
                self.assertFalse(events.done)
                self.assertEqual(events.objects[-1]["error"]["code"], "stopping")
            else:
                self.assertEqual((status, json.loads(body)["error"]["code"]), (503, "stopping"))
        self.assertIn(503, [status for status, _ in replies])
        self.assertIn(200, [status for status, _ in replies])

    def test_second_signal_is_at_once(self):
        worker, _ = self.busy(16000)
        begun = time.monotonic()
        worker.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        worker.process.send_signal(signal.SIGTERM)
        self.assertEqual(worker.process.wait(10), 0)
        self.assertLess(time.monotonic() - begun, 3)

    def test_while_idle(self):
        worker = tiny_worker().start()
        self.addCleanup(worker.log.close)
        begun = time.monotonic()
        worker.process.terminate()
        self.assertEqual(worker.process.wait(10), 0)
        self.assertLess(time.monotonic() - begun, 2)
        self.assertEqual(worker.text().split("\n")[1:], ["ready", ""])


if __name__ == "__main__":
    unittest.main()
