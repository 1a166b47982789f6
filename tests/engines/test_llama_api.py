"""The API of prefixd-llama: what it answers and what it refuses."""

import json
import re
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from llama_http import OneWorker, ids, metric, request, set_up_module, text_of  # noqa: E402
from llama_worker import Worker  # noqa: E402


def setUpModule():
    set_up_module()


class Pages(OneWorker):
    def test_models(self):
        status, _, data = request(self.link, "/v1/models", None, "GET")
        reply = json.loads(data)
        self.assertEqual((status, reply["object"]), (200, "list"))
        self.assertEqual(
            [(m["id"], m["object"], m["max_model_len"]) for m in reply["data"]], [("tiny", "model", 2048)]
        )

    def test_health(self):
        self.assertEqual(request(self.link, "/health", None, "GET")[::2], (200, b'{"status":"ok"}'))

    def test_metrics(self):
        before = {
            name: metric(self.worker, name) for name in ("prompt_tokens_total", "completion_tokens_total")
        }
        self.ask({"prompt": [1, 2, 3, 4], "max_tokens": 5, "ignore_eos": True})
        self.assertEqual(metric(self.worker, "prompt_tokens_total") - before["prompt_tokens_total"], 4)
        self.assertEqual(
            metric(self.worker, "completion_tokens_total") - before["completion_tokens_total"], 5
        )
        text = self.worker.get("/metrics")[1].decode()
        seen = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.assertNotIn(name, seen)
                seen[name] = kind
            elif not line.startswith("# HELP "):
                name, value = re.fullmatch(r'([a-z_]+)(?:\{[a-z]+="[a-z]+"\})? (\d+)', line).groups()
                self.assertIn(name, seen)
                self.assertEqual(seen[name] == "counter", name.endswith("_total"), name)
        self.assertEqual(metric(self.worker, "cache_enabled"), 0)

    def test_tokenize_and_back(self):
        for text in (
            "",
            "plain",
            "h\u00e9llo \u4e16\u754c \U0001f600",
            "<|im_start|>user\nx<|im_end|>",
            "a\r\n\tb",
        ):
            with self.subTest(text=text):
                reply = self.ask({"content": text}, "/tokenize")
                self.assertEqual(reply, {"tokens": ids(text), "count": len(ids(text))})
                self.assertEqual(self.ask({"tokens": reply["tokens"]}, "/detokenize"), {"content": text})
        plain = self.ask({"content": "<s>", "parse_special": False}, "/tokenize")["tokens"]
        self.assertEqual(plain, list(b"<s>"))
        self.assertEqual(
            self.ask({"tokens": list("\u00e9".encode())[:1]}, "/detokenize"), {"content": "\ufffd"}
        )

    def test_tokenize_refuses(self):
        self.refused({}, "content", "string", path="/tokenize")
        self.refused({"content": 1}, "content", "an integer", path="/tokenize")
        self.refused({"content": "x", "add_special": "yes"}, "add_special", "a string", path="/tokenize")
        self.refused({"content": "x", "parse_special": 1}, "parse_special", path="/tokenize")
        self.refused({"content": "x" * 200000}, "content", "200000", path="/tokenize")
        self.refused({"tokens": "x"}, "tokens", "array", path="/detokenize")
        self.refused({"tokens": [1, 260]}, "tokens[1]", "260", "0 to 259", path="/detokenize")

    def test_unknown_and_wrong_method(self):
        for path in ("/", "/v1", "/v1/completions/", "/v2/completions", "/v1/embeddings"):
            error = json.loads(request(self.link, path, {"prompt": "x"})[2])["error"]
            self.assertEqual(error["code"], "not_found")
        for method, path, right in (
            ("GET", "/v1/completions", "POST"),
            ("DELETE", "/tokenize", "POST"),
            ("POST", "/health", "GET"),
            ("PUT", "/metrics", "GET"),
            ("OPTIONS", "/v1/models", "GET"),
        ):
            status, headers, data = request(self.link, path, None, method)
            self.assertEqual((status, headers["Allow"]), (405, right), (method, path))
            self.assertIn(right, json.loads(data)["error"]["message"])
        status, _, data = request(self.link, "/health?probe=1", None, "GET")
        self.assertEqual((status, data), (200, b'{"status":"ok"}'))
        self.link.request("HEAD", "/health")
        self.assertEqual(self.link.getresponse().read(), b"")


class Completions(OneWorker):
    PROMPT = "Once upon a time"

    def both(self, **body):
        """The reply in one piece and the streamed one, which say the same."""
        body = {"prompt": self.PROMPT, "return_token_ids": True, **body}
        whole = self.ask(body)
        events = self.stream({**body, "stream_options": {"include_usage": True}})
        choice = whole["choices"][0]
        self.assertTrue(events.done)
        self.assertEqual(events.text, choice["text"])
        self.assertEqual(events.tokens, choice["token_ids"])
        self.assertEqual(events.finish, [choice["finish_reason"]])
        self.assertEqual(events.objects[-1]["usage"], whole["usage"])
        return whole, events

    def test_whole_and_streamed_agree(self):
        whole, events = self.both(max_tokens=64, ignore_eos=True)
        choice = whole["choices"][0]
        self.assertEqual(whole["object"], "text_completion")
        self.assertEqual(whole["model"], "tiny")
        self.assertRegex(whole["id"], "^cmpl-[0-9a-f]+$")
        self.assertLess(abs(whole["created"] - time.time()), 60)
        self.assertEqual((choice["index"], choice["logprobs"], choice["finish_reason"]), (0, None, "length"))
        self.assertEqual(len(choice["token_ids"]), 64)
        self.assertEqual(choice["text"], text_of(choice["token_ids"]))
        self.assertEqual(
            whole["usage"],
            {
                "prompt_tokens": len(self.PROMPT),
                "completion_tokens": 64,
                "total_tokens": len(self.PROMPT) + 64,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        )
        self.assertEqual(len({event["id"] for event in events.objects}), 1)
        for event in events.objects[:-1]:
            self.assertEqual(
                (event["object"], event["model"], event["usage"]), ("text_completion", "tiny", None)
            )
            self.assertEqual(len(event["choices"]), 1)
        self.assertEqual(events.objects[-1]["choices"], [])
        self.assertNotEqual(whole["id"], events.objects[0]["id"])

    def test_timings(self):
        whole, events = self.both(max_tokens=8, ignore_eos=True)
        for t in (whole["timings"], events.objects[-2]["timings"]):
            self.assertEqual(
                sorted(t),
                [
                    "cache_ms",
                    "prefill_ms",
                    "prefill_tokens",
                    "prefill_tokens_per_second",
                    "queued_ms",
                    "total_ms",
                    "ttft_ms",
                ],
            )
            self.assertEqual(t["prefill_tokens"], len(self.PROMPT))
            self.assertTrue(0 <= t["queued_ms"] < t["ttft_ms"] <= t["total_ms"], t)
            self.assertGreater(t["prefill_ms"], 0)
            self.assertAlmostEqual(
                t["prefill_tokens_per_second"], t["prefill_tokens"] / t["prefill_ms"] * 1000, delta=10
            )

    def test_tokens_as_prompt(self):
        whole, _ = self.both(max_tokens=16)
        again, _ = self.both(max_tokens=16, prompt=ids(self.PROMPT))
        self.assertEqual(whole["choices"], again["choices"])
        other, _ = self.both(max_tokens=16, prompt=ids("Twice" + self.PROMPT[4:]))
        self.assertNotEqual(whole["choices"], other["choices"])

    def test_defaults(self):
        reply = self.ask({"prompt": self.PROMPT, "ignore_eos": True})
        self.assertEqual(reply["usage"]["completion_tokens"], 16)
        self.assertNotIn("token_ids", reply["choices"][0])
        events = self.stream({"prompt": self.PROMPT, "max_tokens": 4})
        self.assertTrue(all("usage" not in event for event in events.objects))
        self.assertTrue(all("token_ids" not in choice for choice in events.choices))
        named = self.ask(
            {
                "prompt": self.PROMPT,
                "ignore_eos": True,
                "model": "tiny",
                "user": "u",
                "store": False,
                "unknown_to_all": {"x": [1]},
                "temperature": 0,
                "top_p": 0.5,
                "seed": 7,
                "n": 1,
                "best_of": None,
                "stop": None,
                "logit_bias": {},
                "presence_penalty": 0.0,
                "echo": False,
                "suffix": "",
            }
        )
        self.assertEqual(named["choices"], reply["choices"])

    def test_end_of_generation(self):
        """Without ignore_eos an answer ends with the model's own end, which is a token and no text."""
        for first in range(256):
            body = {"prompt": [first], "max_tokens": 400, "return_token_ids": True}
            free = self.ask({**body, "ignore_eos": True})["choices"][0]["token_ids"]
            if 259 in free:
                break
        else:
            self.fail("no prompt makes this model end")
        at = free.index(259)
        whole, _ = self.both(prompt=[first], max_tokens=400)
        choice = whole["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(choice["token_ids"], free[: at + 1])
        self.assertEqual(choice["text"], text_of(free[:at]))
        self.assertEqual(whole["usage"]["completion_tokens"], at + 1)

    def test_splits(self):
        """Prefill is cut where it is told to, and at multiples of the chunk; cut alike, it says the same."""
        prompt = [token % 256 for token in range(0, 3000, 7)]
        self.assertTrue(256 < len(prompt) < 512)  # 256: the worker's chunk
        for splits, pieces in (
            (None, 2),
            ([], 2),
            ([1, 2, 3], 5),
            ([256], 2),
            ([100, 101, 102, 103, 250, 300], 8),
            ([len(prompt), 2000], 2),
            (list(range(1, len(prompt))), len(prompt)),
        ):
            body = {"prompt": prompt, "max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
            before = metric(self.worker, "prefill_steps_total")
            one, two = (
                self.ask({**body, "prefill_splits": splits})["choices"][0]["token_ids"] for _ in range(2)
            )
            self.assertEqual(metric(self.worker, "prefill_steps_total") - before, 2 * pieces, splits)
            self.assertEqual((len(one), one), (40, two))

    def test_temperature_and_seed(self):
        def say(**more):
            return self.ask(
                {
                    "prompt": self.PROMPT,
                    "max_tokens": 24,
                    "ignore_eos": True,
                    "return_token_ids": True,
                    **more,
                }
            )["choices"][0]["token_ids"]

        greedy = say()
        one = say(temperature=1.5, seed=1)
        self.assertEqual(one, say(temperature=1.5, seed=1))
        self.assertNotEqual(one, say(temperature=1.5, seed=2))
        self.assertNotEqual(one, greedy)
        self.assertEqual(greedy, say(temperature=1.5, seed=3, top_k=1))
        self.assertEqual(greedy, say(temperature=0, seed=3))

    def test_context_is_full(self):
        """A prompt of the whole context still has a first token; one more is refused with both numbers."""
        for n, room in ((2046, 3), (2047, 2), (2048, 1)):
            reply = self.ask({"prompt": [65] * n, "max_tokens": 50, "ignore_eos": True})
            self.assertEqual(reply["usage"]["completion_tokens"], room)
            self.assertEqual(reply["choices"][0]["finish_reason"], "length")
        error = self.refused({"prompt": [65] * 2049, "max_tokens": 1}, "prompt", "2049", "2048")
        self.assertEqual(error["code"], "context_length_exceeded")
        self.refused({"prompt": "x" * 3000}, "prompt", "3000", "2048")
        self.refused({"prompt": "x" * 1000000}, "prompt", "at least", "2048")

    def test_sizes_of_prompts(self):
        for n in (1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513):
            reply = self.ask({"prompt": [97] * n, "max_tokens": 2, "ignore_eos": True})
            self.assertEqual((reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]), (n, 2))


class Text(OneWorker):
    """Characters and stop words across tokens: here each token is a byte."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokens = cls.worker.complete(list(b"Tell me"), max_tokens=600).tokens

    def run_with(self, stop, max_tokens=600):
        body = {
            "prompt": "Tell me",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            "stop": stop,
        }
        whole = self.ask(body)["choices"][0]
        events = self.stream(body)
        self.assertEqual(
            (events.text, events.tokens, events.finish),
            (whole["text"], whole["token_ids"], [whole["finish_reason"]]),
        )
        # A stop word never shows, not even its beginning in a piece of the stream.
        self.assertEqual(whole["token_ids"], self.tokens[: len(whole["token_ids"])])
        return whole

    def plain_run(self, length, after=100):
        """Where in the answer `length` bytes in a row are printable ASCII, first seen there."""
        data = bytes(token if token < 256 else 0 for token in self.tokens)
        for at in range(after, len(data) - length):
            piece = data[at : at + length]
            if (
                all(32 < byte < 127 for byte in piece)
                and data.index(piece) == at
                and 256 not in self.tokens[at : at + length]
            ):
                return at, piece.decode()
        self.fail("the answer has no such place")

    def test_every_character_is_whole(self):
        events = self.stream(
            {"prompt": "Tell me", "max_tokens": 600, "ignore_eos": True, "return_token_ids": True}
        )
        self.assertEqual(events.text, text_of(self.tokens))
        self.assertIn("\ufffd", events.text)
        self.assertTrue(any(ord(char) > 127 and char != "\ufffd" for char in events.text))

    def test_stop_word_across_tokens(self):
        for length in (1, 2, 3):
            at, word = self.plain_run(length)
            with self.subTest(word=word):
                whole = self.run_with(word)
                self.assertEqual(whole["finish_reason"], "stop")
                self.assertEqual(len(whole["token_ids"]), at + length)
                self.assertEqual(whole["text"], text_of(self.tokens[:at]))

    def test_first_of_several(self):
        at, word = self.plain_run(2)
        later, other = self.plain_run(2, after=at + 2)
        whole = self.run_with([other, "never said at all", word])
        self.assertEqual((len(whole["token_ids"]), whole["text"]), (at + 2, text_of(self.tokens[:at])))
        self.assertGreater(later, at)

    def test_no_stop_word_shows_all(self):
        """What could have begun a stop word and did not is shown in the end."""
        at, word = self.plain_run(2)
        whole = self.run_with([word + "\u4e16\u4e16", "\u00e9" * 300], max_tokens=at + 2)
        self.assertEqual((whole["finish_reason"], whole["text"]), ("length", text_of(self.tokens[: at + 2])))

    def test_stop_word_with_characters_of_several_bytes(self):
        text = text_of(self.tokens)
        word = next(char for char in text if ord(char) > 127 and char != "\ufffd")
        whole = self.run_with([word])
        self.assertEqual((whole["finish_reason"], whole["text"]), ("stop", text[: text.index(word)]))


class Refusals(OneWorker):
    def test_not_json(self):
        for body, words in (
            (b"", "no JSON"),
            (b"{", "no JSON"),
            (b'{"prompt": "x"', "no JSON"),
            (b"nonsense", "no JSON"),
            (b'{"prompt": "\xff\xfe"}', "no JSON"),
            (b'{"a": 1, "a": 2}', "no JSON"),
            (b'{"a": 1} x', "no JSON"),
            (b'{"prompt": "a\\u0000b"}', "no JSON"),
            (b'{"max_tokens": 99999999999999999999}', "no JSON"),
            (b"[1]", "an array"),
            (b'"x"', "no JSON"),
            (b"[" * 100000, "no JSON"),
        ):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
                status, _, data = request(self.link, path, body)
                error = json.loads(data)["error"]
                self.assertEqual(
                    (status, error["param"], error["type"]), (400, None, "invalid_request_error"), body[:40]
                )
                self.assertIn(words, error["message"])

    def test_wrong_types(self):
        """Each field, with a value of each type that it does not take."""
        values = {
            "a string": "x",
            "an integer": 5,
            "a number that is not an integer": 1.5,
            "a boolean": True,
            "an array": ["x"],
            "an object": {"x": 1},
        }
        right = {
            "model": ["a string"],
            "stream": ["a boolean"],
            "stream_options": ["an object"],
            "return_token_ids": ["a boolean"],
            "max_tokens": ["an integer"],
            "temperature": ["an integer", "a number that is not an integer"],
            "top_p": ["an integer", "a number that is not an integer"],
            "min_p": ["an integer", "a number that is not an integer"],
            "top_k": ["an integer"],
            "seed": ["an integer"],
            "ignore_eos": ["a boolean"],
            "cache_prompt": ["a boolean"],
            "prefill_splits": ["an array"],
            "cache_salt": ["a string"],
            "salt": ["a string"],
            "stop": ["a string", "an array"],
            "prompt": ["a string", "an array"],
        }
        for field, types in right.items():
            for kind, value in values.items():
                if kind not in types:
                    with self.subTest(field=field, kind=kind):
                        self.refused({"prompt": "x", field: value}, field, f"`{field}`", kind)
        for kind, value in values.items():
            if kind != "an array":
                self.refused({"messages": value}, "messages", "`messages`", kind, path="/v1/chat/completions")
            if kind != "an integer":
                self.refused(
                    {"messages": [], "max_completion_tokens": value},
                    "max_completion_tokens",
                    kind,
                    path="/v1/chat/completions",
                )

    def test_wrong_values(self):
        for body, param, *words in (
            ({}, "prompt", "missing"),
            ({"prompt": None}, "prompt", "missing"),
            ({"prompt": ""}, "prompt", "empty"),
            ({"prompt": []}, "prompt", "empty"),
            ({"prompt": ["a", "b"]}, "prompt", "one a request"),
            ({"prompt": [[1], [2]]}, "prompt", "one a request"),
            ({"prompt": [1, "x"]}, "prompt[1]", "a string"),
            ({"prompt": [1, 2.0]}, "prompt[1]"),
            ({"prompt": [1, -1]}, "prompt[1]", "-1"),
            ({"prompt": [260]}, "prompt[0]", "260", "259"),
            ({"prompt": [2**40]}, "prompt[0]"),
            ({"prompt": "x", "max_tokens": 0}, "max_tokens", "from 1"),
            ({"prompt": "x", "max_tokens": -5}, "max_tokens", "-5"),
            ({"prompt": "x", "max_tokens": 2**31}, "max_tokens"),
            ({"prompt": "x", "temperature": -0.1}, "temperature", "0 to 2"),
            ({"prompt": "x", "temperature": 2.1}, "temperature", "2.1"),
            ({"prompt": "x", "top_p": 1.01}, "top_p"),
            ({"prompt": "x", "min_p": -1}, "min_p"),
            ({"prompt": "x", "top_k": -2}, "top_k"),
            ({"prompt": "x", "stop": ""}, "stop", "1 to"),
            ({"prompt": "x", "stop": ["a", ""]}, "stop[1]"),
            ({"prompt": "x", "stop": ["a", 3]}, "stop[1]", "an integer"),
            ({"prompt": "x", "stop": ["a"] * 17}, "stop", "17"),
            ({"prompt": "x", "stop": "y" * 1025}, "stop", "1025"),
            ({"prompt": "x", "cache_salt": ""}, "cache_salt"),
            ({"prompt": "x", "cache_salt": "s" * 129}, "cache_salt", "129"),
            ({"prompt": "x", "prefill_splits": [0]}, "prefill_splits[0]", "from 1"),
            ({"prompt": "x", "prefill_splits": [3, 3]}, "prefill_splits[1]", "from 4"),
            ({"prompt": "x", "prefill_splits": [5, 4]}, "prefill_splits[1]"),
            ({"prompt": "x", "prefill_splits": [1, "2"]}, "prefill_splits[1]"),
            ({"prompt": "x", "prefill_splits": [2049]}, "prefill_splits[0]", "2048"),
            (
                {"prompt": "x", "stream_options": {"include_usage": "yes"}},
                "stream_options.include_usage",
                "a string",
            ),
        ):
            with self.subTest(body=body):
                self.refused(body, param, *words)
        error = self.refused({"prompt": "x", "model": "gpt"}, "model", "tiny", status=404)
        self.assertEqual(error["code"], "model_not_found")

    def test_what_would_change_the_answer(self):
        for field, value in (
            ("n", 2),
            ("best_of", 3),
            ("echo", True),
            ("suffix", "end"),
            ("logprobs", 1),
            ("logprobs", 0),
            ("presence_penalty", 0.5),
            ("frequency_penalty", -1),
            ("repetition_penalty", 1.1),
            ("repeat_penalty", 0),
            ("logit_bias", {"5": 1}),
            ("min_tokens", 3),
            ("stop_token_ids", [7]),
            ("response_format", {"type": "json_object"}),
            ("grammar", "root ::= x"),
            ("guided_json", {}),
            ("use_beam_search", True),
            ("truncate_prompt_tokens", 5),
            ("prompt_logprobs", 1),
            ("bad_words", ["x"]),
            ("typical_p", 0.5),
            ("mirostat", 2),
        ):
            with self.subTest(field=field):
                self.refused({"prompt": "x", field: value}, field, f"`{field}` has to be")
        for field, value in (
            ("tools", [{"type": "function"}]),
            ("tool_choice", "required"),
            ("functions", [{}]),
            ("logprobs", True),
            ("top_logprobs", 2),
            ("modalities", ["audio"]),
            ("n", 2),
        ):
            with self.subTest(field=field):
                self.refused(
                    {"messages": [{"role": "user", "content": "x"}], field: value},
                    field,
                    path="/v1/chat/completions",
                )
        # The same fields with the value that changes nothing are taken.
        self.ask(
            {
                "prompt": "x",
                "n": 1,
                "echo": False,
                "suffix": None,
                "logprobs": None,
                "presence_penalty": 0,
                "repetition_penalty": 1.0,
                "logit_bias": {},
                "min_tokens": 0,
                "stop_token_ids": [],
                "response_format": {"type": "text"},
                "max_tokens": 1,
            }
        )
        self.ask(
            {
                "messages": [{"role": "user", "content": "x"}],
                "tools": [],
                "tool_choice": "auto",
                "logprobs": False,
                "top_logprobs": 0,
                "max_tokens": 1,
            },
            "/v1/chat/completions",
        )

    def test_messages(self):
        chat = "/v1/chat/completions"
        user = {"role": "user", "content": "x"}
        for messages, param in (
            ([], "messages"),
            (["x"], "messages[0]"),
            ([user, 5], "messages[1]"),
            ([{"content": "x"}], "messages[0].role"),
            ([{"role": "robot", "content": "x"}], "messages[0].role"),
            ([{"role": 1, "content": "x"}], "messages[0].role"),
            ([{"role": "user"}], "messages[0].content"),
            ([{"role": "user", "content": None}], "messages[0].content"),
            ([{"role": "user", "content": 5}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
            (
                [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}],
                "messages[0].content[1]",
            ),
            ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
            ([user, {"role": "assistant", "content": "y", "tool_calls": [{}]}], "messages[1].tool_calls"),
        ):
            with self.subTest(messages=messages):
                self.refused({"messages": messages}, param, path=chat)
        self.refused({"prompt": "x"}, "messages", "missing", path=chat)
        self.refused(
            {"messages": [user], "max_tokens": 3, "max_completion_tokens": 4},
            "max_completion_tokens",
            path=chat,
        )
        error = self.refused(
            {"messages": [{"role": "user", "content": "x" * 3000}]}, "messages", "2048", path=chat
        )
        self.assertEqual(error["code"], "context_length_exceeded")


class Chat(OneWorker):
    TALK = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi \u4e16"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]
    TEXT = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi \u4e16<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )

    def test_template(self):
        """A chat is a completion of the text that the model's template makes of it."""
        body = {"max_tokens": 48, "ignore_eos": True, "return_token_ids": True}
        reply = self.ask({"messages": self.TALK, **body}, "/v1/chat/completions")
        plain = self.ask({"prompt": self.ask({"content": self.TEXT}, "/tokenize")["tokens"], **body})
        self.assertEqual(reply["usage"], plain["usage"])
        choice = reply["choices"][0]
        self.assertEqual(choice["token_ids"], plain["choices"][0]["token_ids"])
        self.assertEqual(choice["message"], {"role": "assistant", "content": plain["choices"][0]["text"]})
        self.assertEqual((reply["object"], choice["finish_reason"]), ("chat.completion", "length"))
        self.assertRegex(reply["id"], "^chatcmpl-")

    def test_parts(self):
        talk = json.loads(json.dumps(self.TALK))
        talk[1]["content"] = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "\u4e16"}]
        body = {"max_tokens": 8, "return_token_ids": True}
        replies = [
            self.ask({"messages": messages, **body}, "/v1/chat/completions") for messages in (self.TALK, talk)
        ]
        self.assertEqual(replies[0]["choices"], replies[1]["choices"])
        self.assertEqual(replies[0]["usage"]["prompt_tokens"], len(ids(self.TEXT)))

    def test_stream(self):
        body = {
            "messages": self.TALK,
            "max_completion_tokens": 48,
            "return_token_ids": True,
            "ignore_eos": True,
        }
        whole = self.ask(body, "/v1/chat/completions")
        events = self.stream({**body, "stream_options": {"include_usage": True}}, "/v1/chat/completions")
        self.assertTrue(events.done)
        self.assertEqual(events.choices[0]["delta"]["role"], "assistant")
        self.assertTrue(all("role" not in choice["delta"] for choice in events.choices[1:]))
        self.assertTrue(all(event["object"] == "chat.completion.chunk" for event in events.objects))
        self.assertEqual(events.content, whole["choices"][0]["message"]["content"])
        self.assertEqual(events.tokens, whole["choices"][0]["token_ids"])
        self.assertEqual(events.finish, ["length"])
        self.assertEqual(events.objects[-1]["usage"], whole["usage"])

    def test_goes_on_to_the_end(self):
        """Without max_tokens a chat ends with the model, or with the context."""
        reply = self.ask(
            {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True}, "/v1/chat/completions"
        )
        usage = reply["usage"]
        self.assertEqual(usage["total_tokens"], 2048 + 1)


class RealModel(unittest.TestCase):
    """The model of $PREFIXD_LLAMA_MODEL, whose tokens are pieces of words."""

    def test_chat_and_text(self):
        talk = [
            {"role": "system", "content": "You answer in one word."},
            {"role": "user", "content": "Which city is the capital of France?"},
        ]
        text = (
            "<|im_start|>system\nYou answer in one word.<|im_end|>\n"
            "<|im_start|>user\nWhich city is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        )
        with Worker(threads=2, ctx=1024, slots=2) as worker:
            tokens = worker.tokenize(text)
            body = {"max_tokens": 40, "return_token_ids": True}
            status, chat = worker.post("/v1/chat/completions", {"messages": talk, **body})
            self.assertEqual(status, 200, chat)
            _, plain = worker.post("/v1/completions", {"prompt": tokens, **body})
            choice = chat["choices"][0]
            self.assertEqual(chat["usage"], plain["usage"])
            self.assertEqual(choice["token_ids"], plain["choices"][0]["token_ids"])
            self.assertEqual(choice["message"]["content"], plain["choices"][0]["text"])
            said = list(choice["token_ids"])
            if choice["finish_reason"] == "stop":  # the end is a token without text
                _, end = worker.post("/detokenize", {"tokens": said[-1:]})
                self.assertEqual(end["content"], "<|im_end|>")
                said.pop()
            _, back = worker.post("/detokenize", {"tokens": said})
            self.assertEqual(back["content"], choice["message"]["content"])
            # A stop word that ends within a token stops there, and its beginning is never shown.
            whole = choice["message"]["content"]
            word = whole[2:4]
            _, cut = worker.post("/v1/completions", {"prompt": tokens, "stop": [word], **body})
            self.assertEqual(cut["choices"][0]["text"], whole[: whole.index(word)])
            self.assertEqual(cut["choices"][0]["finish_reason"], "stop")


if __name__ == "__main__":
    unittest.main()
