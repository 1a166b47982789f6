"""prefixd-llama for tests and benchmarks in Python: starts workers, asks them, and talks by token ids.

    with Worker(socket=daemon.socket) as worker:
        answer = worker.complete([1, 2, 3], max_tokens=64)     # an Answer: tokens, ttft, usage, timings

The program is $PREFIXD_LLAMA_BIN, the model $PREFIXD_LLAMA_MODEL; `missing()` says what is not set.
"""
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field


def missing():
    """'' when a worker can be started, else the reason why not."""
    for name in ("PREFIXD_LLAMA_BIN", "PREFIXD_LLAMA_MODEL"):
        path = os.environ.get(name)
        if not path:
            return f"{name} is not set: make check-engines ENGINES=llama sets it"
        if not os.path.exists(path):
            return f"{name}: there is no {path}"
    return ""


@dataclass
class Answer:
    """What one streamed completion brought.  Times in seconds, as the asker saw them."""

    tokens: list = field(default_factory=list)
    text: str = ""
    ttft: float = 0.0  # from the request's first byte to the first byte of the first event
    total: float = 0.0
    finish: str = ""
    usage: dict = field(default_factory=dict)
    timings: dict = field(default_factory=dict)

    @property
    def prompt_tokens(self):
        return self.usage["prompt_tokens"]

    @property
    def cached(self):
        return self.usage["prompt_tokens_details"]["cached_tokens"]


class Worker:
    """One prefixd-llama on a loopback port.  socket None: without a cache.  Options with _ for -."""

    def __init__(self, *, socket=None, model=None, **options):
        self.socket, self.options = socket, options
        self.model = model or os.environ["PREFIXD_LLAMA_MODEL"]
        self.process, self.port = None, 0

    def start(self):
        self.port = free_port()
        self.log = tempfile.TemporaryFile()
        args = [os.environ["PREFIXD_LLAMA_BIN"], "--model", self.model, "--listen", f"127.0.0.1:{self.port}",
                "--socket", self.socket or "off"]
        for key, value in self.options.items():
            args += ["--" + key.replace("_", "-"), str(value)]
        self.process = subprocess.Popen(args, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{' '.join(args)}\ndid not start: {self.text()}")
            time.sleep(0.02)
        return self

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def healthy(self):
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False

    def get(self, path):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            link.request("GET", path)
            reply = link.getresponse()
            return reply.status, reply.read()
        finally:
            link.close()

    def post(self, path, body):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            reply = link.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            link.close()

    def tokenize(self, text):
        status, reply = self.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})
        if status != 200:
            raise RuntimeError(f"/tokenize answered {status}: {reply}")
        return reply["tokens"]

    def stream(self, prompt, *, max_tokens=64, path="/v1/completions", **more):
        """Yields (seconds since the request was sent, event) for each event of a streamed completion."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, "stream_options": {"include_usage": True}, **more}
        data = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=600) as link:
            head = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n").encode()
            start = time.monotonic()
            link.sendall(head + data)
            reply = http.client.HTTPResponse(link)
            reply.begin()
            if reply.status != 200:
                raise RuntimeError(f"{path} answered {reply.status}: {reply.read().decode(errors='replace')}")
            for line in reply:
                now = time.monotonic() - start
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield now, json.loads(line[6:])

    def complete(self, prompt, **options):
        answer = Answer()
        for now, event in self.stream(prompt, **options):
            if "error" in event:
                raise RuntimeError(f"error in the stream: {event['error']}")
            if not answer.ttft:
                answer.ttft = now
            for choice in event.get("choices", ()):
                answer.text += choice.get("text", "")
                answer.tokens += choice.get("token_ids") or []
                answer.finish = choice.get("finish_reason") or answer.finish
            answer.usage = event.get("usage") or answer.usage
            answer.timings = event.get("timings") or answer.timings
            answer.total = now
        return answer

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cuts:
    """Where the K/V of a conversation was cut when it was computed, turn by turn.

    Rounding depends on how many tokens are decoded at a time.  A run without the cache computes the
    same bits if its prefill is cut where the stored K/V was: at multiples of `chunk`, at the end of
    each hit, and between all tokens of an answer.
    """

    def __init__(self, chunk):
        self.chunk, self.cuts = chunk, set()

    def turn(self, hit, prompt, computed):
        """A turn that had `hit` tokens from the cache, a prompt of `prompt`, and K/V up to `computed`."""
        self.cuts = {cut for cut in self.cuts if cut <= hit} | {hit}
        self.cuts |= set(range(hit - hit % self.chunk + self.chunk, prompt, self.chunk))
        self.cuts |= set(range(prompt, computed + 1))

    def before(self, prompt, hit):
        """The cuts of a run that computes `prompt` tokens as if `hit` of them came from the cache."""
        return sorted(cut for cut in {cut for cut in self.cuts if cut <= hit} | {hit} if 0 < cut < prompt)
