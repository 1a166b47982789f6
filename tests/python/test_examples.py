"""The examples against a small server that caches prefixes of words and says what it did.

What they print is compared with what the server counted by itself.
"""

import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
EXAMPLES = TREE / "clients/python/examples"
sys.path.insert(0, str(EXAMPLES))

import completions  # noqa: E402
import documents  # noqa: E402
import rag  # noqa: E402

BLOCK = 16
WORD = 2e-5  # seconds to compute one word of a prompt


class Server(http.server.ThreadingHTTPServer):
    """OpenAI's streaming API with words for tokens.  `asked`: (path, body, prompt words, cached words)."""

    daemon_threads = True

    def __init__(self, mode=""):
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode = mode
        self.blocks, self.asked, self.lock = set(), [], threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def cached(self, words, cache):
        """How many leading words are known; with `cache` they all are from now on."""
        if not cache:
            return 0
        at, n, going = 0, 0, True
        with self.lock:
            for i in range(0, len(words) // BLOCK * BLOCK, BLOCK):
                at = hash((at, tuple(words[i : i + BLOCK])))
                going = going and at in self.blocks
                n += BLOCK if going else 0
                self.blocks.add(at)
        return n


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = self.path.endswith("/chat/completions")
        if server.mode == "error":
            self.send_response(503, "Busy")
            self.send_header("Content-Length", "9")
            self.end_headers()
            self.wfile.write(b"come back")
            return
        text = completions.plain_prompt(body["messages"]) if chat else body["prompt"]
        words = text.split()
        cached = server.cached(words, body.get("cache_prompt", True))
        with server.lock:
            server.asked.append((self.path, body, len(words), cached))
        time.sleep(WORD * (len(words) - cached))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        answer = f"answer {len(words)}" + (
            " without" if server.mode == "differs" and not body.get("cache_prompt", True) else ""
        )
        if chat:
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for piece in re.findall(r"\S+\s*", answer):
            self.event({"choices": [{"delta": {"content": piece}} if chat else {"text": piece}]})
        if server.mode == "broken":
            self.wfile.write(b"data: {not json\n\n")
        usage = {"prompt_tokens": len(words), "completion_tokens": 2}
        if server.mode != "silent":
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b": a comment\n\ndata: [DONE]\n\n")
        self.close_connection = True

    def event(self, data):
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()


def run(script, *args, code=0):
    out = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *args],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    if out.returncode != code:
        raise AssertionError(f"{script} {args}: {out.returncode}\n{out.stdout}\n{out.stderr}")
    return out.stderr if code else out.stdout


class Examples(unittest.TestCase):
    def server(self, mode=""):
        server = Server(mode)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server

    def lines(self, out):
        """(prompt, cached, ttft, without) of each request."""
        found = re.findall(
            r"^(?:turn|[ \d]{3} ).*?\s(\d+)\s+(\d+)\s+([\d.]+)(?:\s+([\d.]+))?(?:  another.*)?$", out, re.M
        )
        return [(int(p), int(c), float(a), float(b) if b else None) for p, c, a, b in found]

    def test_rag_says_what_the_server_counted(self):
        server = self.server()
        out = run("rag.py", "--url", server.url)
        asked = server.asked
        self.assertEqual(len(asked), 200)
        with_, without = (
            [one for one in asked if one[1].get("cache_prompt", True) is wanted] for wanted in (True, False)
        )
        self.assertEqual((len(with_), len(without)), (100, 100))
        self.assertEqual(
            self.lines(out), [(*a, *b) for a, b in zip([one[2:] for one in with_], self.times(out))]
        )
        prompt, cached = sum(one[2] for one in with_), sum(one[3] for one in with_)
        self.assertGreater(cached / prompt, 0.5)
        self.assertIn(f"hit ratio: {cached / prompt:.1%} ({cached} of {prompt} prompt tokens", out)
        self.assertEqual(sum(one[3] for one in without), 0)
        self.assertNotIn("another answer", out)
        # Interleaved, and each of the two goes first in half of the cases; the two differ in nothing else.
        order = [one[1].get("cache_prompt", True) for one in asked]
        self.assertEqual(order, [True, False, False, True] * 50)
        for a, b in zip(with_, without):
            self.assertEqual({**a[1], "cache_prompt": False}, b[1])
        saved, whole, share, n = re.search(
            r"time saved: ([-\d.]+) s of ([\d.]+) s until .*, ([-\d.]+)% \((\d+) req", out
        ).groups()
        times = self.times(out)
        self.assertAlmostEqual(float(whole), sum(b for _, b in times) / 1000, delta=0.02)
        self.assertAlmostEqual(float(saved), sum(b - a for a, b in times) / 1000, delta=0.02)
        self.assertGreater(float(share), 10)
        self.assertEqual(n, "100")
        self.assertIn("was among those given 100 times of 100", out)

    def times(self, out):
        return [line[2:] for line in self.lines(out)]

    def test_rag_by_completions_alone_and_few(self):
        server = self.server()
        out = run("rag.py", "--url", server.url + "/v1/", "--endpoint", "completions", "--no-compare",
                  "--questions", "12", "--documents", "1", "--model", "m", "--max-tokens", "5",
                  "--answers")  # fmt: skip
        self.assertEqual(len(server.asked), 12)
        for path, body, _, _ in server.asked:
            self.assertEqual(path, "/v1/completions")
            self.assertEqual(
                (body["model"], body["max_tokens"], body["temperature"], body["stream"]), ("m", 5, 0, True)
            )
            self.assertEqual(body["stream_options"], {"include_usage": True})
        self.assertEqual([line[:2] for line in self.lines(out)], [one[2:] for one in server.asked])
        self.assertIn("not measured", out)
        self.assertEqual(out.count("; right: "), 12)

    def test_chat_sends_all_that_was_said(self):
        server = self.server()
        out = run("chat.py", "--url", server.url, "--turns", "6")
        with_ = [one for one in server.asked if one[1].get("cache_prompt", True)]
        self.assertEqual((len(server.asked), len(with_), len(self.lines(out))), (12, 6, 6))
        for turn, (_, body, words, cached) in enumerate(with_):
            roles = [message["role"] for message in body["messages"]]
            self.assertEqual(roles, ["system"] + ["user", "assistant"] * turn + ["user"])
            if turn:
                before = with_[turn - 1]
                self.assertEqual(body["messages"][: 2 * turn], before[1]["messages"])
                # All full blocks of what was asked before, but for its last word or two.
                self.assertGreaterEqual(cached, (before[2] - 1) // BLOCK * BLOCK)
                self.assertLess(words - cached, 60)
        self.assertEqual(with_[0][3], 0)

    def test_chat_at_two_servers_and_own_words(self):
        one, two = self.server(), self.server()
        out = run(
            "chat.py",
            "--url",
            one.url,
            "--other",
            two.url,
            "--say",
            "first",
            "--say",
            "second",
            "--say",
            "third",
        )
        self.assertEqual((len(one.asked), len(two.asked)), (4, 2))
        self.assertEqual(two.asked[0][1]["messages"][-1], {"role": "user", "content": "second"})
        self.assertEqual(one.asked[-1][1]["messages"][-1], {"role": "user", "content": "third"})
        self.assertEqual(re.findall(r"^turn (\d) at (.)", out, re.M), [("1", "A"), ("2", "B"), ("3", "A")])

    def test_a_server_that_does_not_tell(self):
        out = run("chat.py", "--url", self.server("silent").url, "--turns", "2")
        self.assertIn("hit ratio: this server does not say", out)
        self.assertIn("time saved: ", out)
        self.assertNotIn("%)", out)

    def test_answers_that_differ_are_told(self):
        out = run("chat.py", "--url", self.server("differs").url, "--turns", "3")
        self.assertEqual(out.count("  another answer"), 3)
        self.assertIn("3 answers differ", out)

    def test_what_goes_wrong_is_one_line(self):
        for mode, why in (("error", "503 Busy: come back"), ("broken", "Expecting property name")):
            err = run("rag.py", "--url", self.server(mode).url, "--questions", "1", code=1)
            self.assertIn(why, err)
            self.assertEqual(err.count("\n"), 1)
        server = self.server()
        server.shutdown()
        server.server_close()
        self.assertIn("refused", run("chat.py", "--url", server.url, code=1))
        self.assertIn("no address", run("chat.py", "--url", "ftp://x", code=1))


class Texts(unittest.TestCase):
    def test_documents_are_sixteen_and_the_same_every_time(self):
        texts = documents.documents()
        self.assertEqual(len(texts), 16)
        self.assertEqual(texts, documents.documents())
        for one in texts:
            self.assertTrue(380 <= len(one.text.split()) <= 420, one.title)
            for name, fact in one.facts.items():
                self.assertIn(fact, one.text, (one.title, name))
        self.assertEqual(len({one.text for one in texts}), 16)

    def test_questions_are_a_hundred_and_can_be_answered(self):
        texts, asked = documents.documents(), documents.questions()
        self.assertEqual((len(asked), len({one.text for one in asked})), (100, 100))
        self.assertEqual(asked, documents.questions())
        self.assertEqual(asked[:7], documents.questions(7))
        self.assertEqual({one.document for one in asked}, set(range(16)))
        for one in asked:
            self.assertIn(one.answer, texts[one.document].text)
            self.assertIn(texts[one.document].facts["name"], one.text)

    def test_the_same_documents_are_the_same_prefix(self):
        retriever = rag.Retriever([f"{one.title} {one.text}" for one in documents.documents()])
        for one in documents.questions():
            best = retriever.best(one.text, 3)
            self.assertEqual(best, sorted(best))
            self.assertIn(one.document, retriever.best(one.text, 1))


if __name__ == "__main__":
    unittest.main()
