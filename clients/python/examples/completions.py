"""Requests to an OpenAI-compatible server, each with the cache and without it, and what that saved.

Standard library only.  The comparison is fair in three ways: the two requests are the same but for
``"cache_prompt": false``, with which the server neither uses nor fills its cache; they are asked one right
after the other, and which goes first alternates; what is compared is the time to the first piece of text.
A server that does not know `cache_prompt` ignores it or refuses it: then ask with --no-compare.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence

Message = Dict[str, str]


class ServerError(Exception):
    """The server did not answer as an OpenAI-compatible one does; the text says how."""


@dataclass
class Answer:
    """One streamed answer.  Times are seconds from sending the request on; None: the server did not say."""

    text: str
    ttft: float
    seconds: float
    prompt_tokens: Optional[int]
    cached_tokens: Optional[int]
    completion_tokens: Optional[int]


class Server:
    """`url` with or without a path before /v1; `endpoint`: "chat" or "completions"."""

    def __init__(
        self,
        url: str,
        *,
        endpoint: str = "chat",
        model: str = "",
        key: str = "",
        max_tokens: int = 32,
        timeout: float = 300,
    ) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"{url!r} is no address of a server")
        https = parts.scheme == "https"
        self._kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        if not self._path.endswith("/v1"):
            self._path += "/v1"
        self.endpoint = endpoint
        self.model, self.key, self.max_tokens, self.timeout = model, key, max_tokens, timeout

    def ask(self, messages: Sequence[Message], *, cache: bool = True) -> Answer:
        """The answer to a conversation.  Raises ServerError."""
        body: Dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.model:
            body["model"] = self.model
        if not cache:
            body["cache_prompt"] = False
        if self.endpoint == "chat":
            body["messages"] = list(messages)
            path = f"{self._path}/chat/completions"
        else:
            body["prompt"] = plain_prompt(messages)
            path = f"{self._path}/completions"
        connection = self._kind(self._host, self._port, timeout=self.timeout)
        try:
            return self._ask(connection, path, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerError(f"{self._host}:{self._port or ''}: {error or type(error).__name__}") from error
        finally:
            connection.close()

    def wait(self, seconds: float = 60.0) -> None:
        """While it answers 503, as until its model is loaded; 3 s for it to be there at all."""
        start = time.monotonic()
        while True:
            limit = seconds
            connection = self._kind(self._host, self._port, timeout=10)
            try:
                connection.request("GET", self._path + "/models", headers=self._headers())
                if connection.getresponse().status != 503:
                    return
            except (OSError, http.client.HTTPException):
                limit = min(seconds, 3.0)  # then the first request says what is wrong
            finally:
                connection.close()
            if time.monotonic() - start > limit:
                return
            time.sleep(0.3)

    def _headers(self) -> Dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def _ask(self, connection: http.client.HTTPConnection, path: str, body: Dict[str, Any]) -> Answer:
        headers = {"Content-Type": "application/json", **self._headers()}
        started = time.monotonic()
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            text = response.read(2000).decode("utf-8", "replace").strip()
            raise ServerError(f"{path}: {response.status} {response.reason}: {text}")
        pieces: List[str] = []
        first: Optional[float] = None
        usage: Dict[str, Any] = {}
        for chunk in events(response):
            if chunk.get("error"):
                raise ServerError(f"{path}: {chunk['error']}")
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices") or ():
                piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                if piece and first is None:
                    first = time.monotonic() - started
                pieces.append(piece)
        seconds = time.monotonic() - started
        details = usage.get("prompt_tokens_details") or {}
        return Answer(
            text="".join(pieces),
            ttft=seconds if first is None else first,
            seconds=seconds,
            prompt_tokens=usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            completion_tokens=usage.get("completion_tokens"),
        )


def events(lines: Iterator[bytes]) -> Iterator[Dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, up to [DONE] or its end."""
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        if data:
            chunk = json.loads(data)
            if not isinstance(chunk, dict):
                raise ValueError(f"an event that is no object: {data[:60]!r}")
            yield chunk


def plain_prompt(messages: Sequence[Message]) -> str:
    """A conversation as one text, for /v1/completions: what was said before stays as it was."""
    return "".join(f"{message['role']}: {message['content']}\n\n" for message in messages) + "assistant:"


class Comparison:
    """Asks each request with the cache and, unless `alone`, without it; prints lines and a summary."""

    def __init__(self, server: Server, alone: bool = False) -> None:
        self.server = server
        self.alone = alone
        self.cached: List[Answer] = []
        self.computed: List[Answer] = []
        self.different = 0

    def header(self) -> None:
        text = f"{'request':<24}{'prompt':>8}{'cached':>8}{'TTFT ms':>10}"
        print(text if self.alone else text + f"{'without ms':>12}", flush=True)

    def ask(self, name: str, messages: Sequence[Message]) -> Answer:
        """One request; -> the answer that was given with the cache."""
        first_without = not self.alone and len(self.cached) % 2 == 1
        computed = self.server.ask(messages, cache=False) if first_without else None
        cached = self.server.ask(messages)
        if computed is None and not self.alone:
            computed = self.server.ask(messages, cache=False)
        self.cached.append(cached)
        line = f"{name[:23]:<24}{told(cached.prompt_tokens):>8}{told(cached.cached_tokens):>8}"
        line += f"{1000 * cached.ttft:>10.1f}"
        if computed is not None:
            self.computed.append(computed)
            line += f"{1000 * computed.ttft:>12.1f}"
            if computed.text != cached.text:
                self.different += 1
                line += "  another answer"
        print(line, flush=True)
        return cached

    def summary(self) -> None:
        """Hit ratio and time saved, over all requests."""
        print()
        prompt = sum(answer.prompt_tokens or 0 for answer in self.cached)
        if not prompt or any(answer.cached_tokens is None for answer in self.cached):
            print("hit ratio: this server does not say how many prompt tokens were cached")
        else:
            cached = sum(answer.cached_tokens or 0 for answer in self.cached)
            print(f"hit ratio: {cached / prompt:.1%} ({cached} of {prompt} prompt tokens were not computed)")
        if not self.computed:
            print("time saved: not measured (--no-compare)")
            return
        with_, without = (sum(a.ttft for a in answers) for answers in (self.cached, self.computed))
        saved = without - with_
        share = saved / without if without else 0.0
        requests = f"({len(self.cached)} requests)"
        print(f"time saved: {saved:.2f} s of {without:.2f} s until the first token, {share:.1%} {requests}")
        medians = [statistics.median(a.ttft for a in answers) for answers in (self.cached, self.computed)]
        print(f"median TTFT: {1000 * medians[0]:.1f} ms with the cache, {1000 * medians[1]:.1f} ms without")
        if self.different:
            print(f"{self.different} answers differ: rounding differs where the work is cut in other places")


def told(number: Optional[int]) -> str:
    return "-" if number is None else str(number)


def options(about: str) -> argparse.ArgumentParser:
    """The options that all examples have."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the server (default: %(default)s)")
    parser.add_argument(
        "--endpoint", choices=("chat", "completions"), default="chat", help="(default: %(default)s)"
    )
    parser.add_argument("--model", default="", help="name that the server wants, if it wants one")
    parser.add_argument("--key", default="", help="sent as bearer token, if the server wants one")
    parser.add_argument(
        "--max-tokens", type=positive, default=32, help="of one answer (default: %(default)s)"
    )
    parser.add_argument("--no-compare", action="store_true", help="ask with the cache only")
    return parser


def comparison(args: argparse.Namespace) -> Comparison:
    server = Server(
        args.url, endpoint=args.endpoint, model=args.model, key=args.key, max_tokens=args.max_tokens
    )
    server.wait()
    return Comparison(server, alone=args.no_compare)


def positive(text: str) -> int:
    """For argparse: a number that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few: 1 or more")
    return number


def fail(error: ServerError) -> int:
    print(f"{sys.argv[0]}: {error}", file=sys.stderr)
    return 1
