"""prefixd-llama's API taken apart strictly, for tests: events, raw connections, a tiny model of bytes.

The model is make_gguf.py's: random weights, and a token for each byte.  So its answers are wild text,
characters and stop words lie across tokens, and a request can be long without taking long.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from llama_worker import Worker, missing

TREE = Path(__file__).resolve().parents[2]
SPECIAL = {"<s>": 256, "</s>": 257, "<|im_start|>": 258, "<|im_end|>": 259}
_tiny = {}


def set_up_module():
    """For setUpModule: makes the tiny model, or skips with the reason why nothing can be tested."""
    if missing():
        raise unittest.SkipTest(missing())
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    _tiny["path"] = os.path.join(folder.name, "tiny.gguf")
    make_model(_tiny["path"])


def make_model(path, *options):
    subprocess.run([sys.executable, str(TREE / "tests/engines/make_gguf.py"), path, *options], check=True)


def tiny():
    """Path of the tiny model."""
    return _tiny["path"]


def tiny_worker(**options):
    return Worker(**{"model": tiny(), "threads": 1, "ctx": 2048, "slots": 4, "model_name": "tiny", **options})


def ids(text):
    """The tiny model's tokens of a text, by its vocabulary alone."""
    tokens = []
    for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
        tokens += [SPECIAL[part]] if part in SPECIAL else list(part.encode())
    return tokens


def text_of(tokens):
    """What the tiny model's tokens say; control tokens say nothing."""
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


class Events:
    """The body of a streamed reply, taken apart strictly: nothing but events, [DONE] last."""

    def __init__(self, body):
        self.raw = body
        text = body.decode("utf-8")  # strict: the worker promises it
        if not text.endswith("\n\n"):
            raise AssertionError(f"the stream breaks off: {text[-60:]!r}")
        lines = text[:-2].split("\n\n")
        self.done = lines[-1] == "data: [DONE]"
        self.objects = []
        for line in lines[:-1] if self.done else lines:
            if not line.startswith("data: {") or "\n" in line or "\r" in line:
                raise AssertionError(f"not an event: {line!r}")
            self.objects.append(json.loads(line[6:]))

    @property
    def choices(self):
        return [choice for event in self.objects for choice in event.get("choices", ())]

    @property
    def text(self):
        return "".join(choice["text"] for choice in self.choices)

    @property
    def content(self):
        return "".join(choice["delta"].get("content", "") for choice in self.choices)

    @property
    def tokens(self):
        return [token for choice in self.choices for token in choice["token_ids"]]

    @property
    def finish(self):
        return [choice["finish_reason"] for choice in self.choices if choice["finish_reason"]]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def link_to(worker):
    return http.client.HTTPConnection("127.0.0.1", worker.port, timeout=60)


def request(link, path, body, method="POST"):
    """(status, headers, body) on a connection that stays open."""
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    link.request(method, path, data, {"Content-Type": "application/json"} if data is not None else {})
    reply = link.getresponse()
    return reply.status, reply.headers, reply.read()


def raw_post(path, body, more=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n{more}\r\n".encode() + data


def metric(worker, name):
    for line in worker.get("/metrics")[1].decode().splitlines():
        if line.startswith(f"prefixd_llama_{name} "):
            return int(line.split()[-1])
    raise AssertionError(f"no metric {name}")


def until(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def metric_finish(worker, finish):
    text = worker.get("/metrics")[1].decode()
    return int(
        re.search(rf'^prefixd_llama_requests_total\{{finish="{finish}"\}} (\d+)$', text, re.M).group(1)
    )


def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return False
    except ConnectionRefusedError:
        return True


class Shared:
    """Lets HTTPResponse read from a file that several replies share."""

    def __init__(self, file):
        self.file = file

    def makefile(self, *_):
        return _Unclosed(self.file)


class _Unclosed:
    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def close(self):
        pass


class OneWorker(unittest.TestCase):
    """Cases that share a worker; each leaves it idle."""

    OPTIONS = {}

    @classmethod
    def setUpClass(cls):
        cls.worker = tiny_worker(**cls.OPTIONS).start()

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()

    def setUp(self):
        self.link = link_to(self.worker)
        self.addCleanup(self.link.close)

    def tearDown(self):
        until(
            lambda: metric(self.worker, "slots_busy") == 0 and metric(self.worker, "queue") == 0, "idle again"
        )

    def ask(self, body, path="/v1/completions", status=200):
        got, headers, data = request(self.link, path, body)
        self.assertEqual(got, status, data)
        self.assertEqual(headers["Content-Type"], "application/json")
        return json.loads(data)

    def stream(self, body, path="/v1/completions"):
        got, headers, data = request(self.link, path, {"stream": True, **body})
        self.assertEqual(got, 200, data)
        self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
        return Events(data)

    def refused(self, body, param, *words, path="/v1/completions", status=400):
        """The request is refused for this field, in these words; returns the error."""
        error = self.ask(body, path, status)["error"]
        self.assertEqual(sorted(error), ["code", "message", "param", "type"])
        self.assertEqual(error["param"], param, error)
        for word in words:
            self.assertIn(word, error["message"])
        return error
