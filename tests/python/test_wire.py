"""The wire: golden frames both ways, refusals named as the protocol's page says, and no other exception."""

import random
import unittest

import kit
import numpy as np
from prefixd import PrefixdError, Status, wire

VECTORS = kit.TREE / "proto/vectors"


def paragraphs(name):
    for text in (VECTORS / name).read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        if lines:
            yield dict(line.split("=", 1) for line in lines)


FILES = {1: "frames-1.txt", 2: "frames-2.txt", 3: "frames.txt"}  # golden frames, by the version that HELLO agreed on


def frames(version=wire.VERSION):
    return [p for p in paragraphs(FILES[version]) if "frame" in p]


def all_frames():
    return [(version, p) for version in FILES for p in frames(version)]


def value_of(field, text):
    """A field of frames.txt as encode() takes it."""
    if field.kind in ("id", "blob"):
        return bytes.fromhex(text)
    if field.kind == "str":
        return text
    if field.kind == "runs":
        return [tuple(int(n) for n in run.split("+")) for run in text.split(",")] if text else []
    return int(text)


def same(a, b):
    return np.array_equal(np.reshape(a, (-1, 2)), np.reshape(b, (-1, 2))) if isinstance(a, np.ndarray) else a == b


class Golden(unittest.TestCase):
    def test_there_are_frames_of_every_operation(self):
        for version in FILES:
            names = {wire.OP_NAMES[int(p["op"])] for p in frames(version)}
            since_3 = {"LOST"} if version < 3 else set()
            self.assertEqual(names, set(wire.OPS) - since_3)
        self.assertEqual(set(FILES), set(wire.MESSAGES_OF))

    def test_decoding_gives_the_fields(self):
        for version, p in all_frames():
            with self.subTest(frame=p["frame"], version=version):
                data = bytes.fromhex(p["hex"])
                h = wire.header_decode(data, wire.MAX_FRAME)
                self.assertEqual(h.version, 1 if int(p["op"]) == 1 else version)
                self.assertEqual(
                    (h.op, h.status, h.seq, h.boot),
                    (int(p["op"]), int(p["status"]), int(p["seq"]), bytes.fromhex(p["boot"])),
                )
                reply = p["direction"] == "reply"
                message = wire.body_of(h, reply, wire.body_version(h, data[wire.HEADER_LEN :], reply))
                self.assertEqual(message.name, p["body"])
                got = message.decode(data[wire.HEADER_LEN :])
                self.assertEqual(["f." + name for name in got], [key for key in p if key.startswith("f.")])
                for field in message.fields:
                    want = value_of(field, p["f." + field.name])
                    self.assertTrue(same(got[field.name], want), f"{field.name}: {got[field.name]} is not {want}")

    def test_encoding_the_fields_gives_the_bytes(self):
        for version, p in all_frames():
            with self.subTest(frame=p["frame"], version=version):
                message = wire.MESSAGES_OF[version][p["body"]]
                body = message.encode({f.name: value_of(f, p["f." + f.name]) for f in message.fields})
                boot = bytes.fromhex(p["boot"])
                head = 1 if int(p["op"]) == 1 else version
                h = wire.Header(int(p["op"]), len(body), int(p["status"]), int(p["seq"]), boot, head)
                self.assertEqual((wire.header_encode(h) + body).hex(), p["hex"])

    def test_what_was_decoded_encodes_to_the_same_bytes(self):
        for version, p in all_frames():
            with self.subTest(frame=p["frame"], version=version):
                body = bytes.fromhex(p["hex"])[wire.HEADER_LEN :]
                message = wire.MESSAGES_OF[version][p["body"]]
                self.assertEqual(message.encode(message.decode(body)), body)

    def test_self_test(self):
        values = set()
        for version, name in FILES.items():
            want = next(p["self_test"] for p in paragraphs(name) if "self_test" in p)
            self.assertEqual(wire.self_test(version).hex(), want)
            values.add(want)
        self.assertEqual(len(values), len(FILES), "the version is part of it")

    def test_the_table_is_that_of_the_page(self):
        """Every field, type and limit of proto/README.md, and nothing else."""
        fields, name = {}, None
        for line in (kit.TREE / "proto/README.md").read_text(encoding="utf-8").splitlines():
            if line.startswith("### `"):
                name = line.split("`")[1]
                fields[name] = []
            elif line.startswith(("#", "Request and reply")):
                name = None
            elif name and line.startswith("| `"):
                _, field, kind, *_ = [cell.strip() for cell in line.split("|")]
                fields[name].append((field.strip("`"), kind))
        words = {"str": "text", "blob": "bytes"}
        ours = {
            name: [
                (f.name, f"{words.get(f.kind, f.kind)}({f.limit})" if f.limit else f.kind) for f in message.fields
            ]
            for name, message in wire.MESSAGES.items()
        }
        self.assertEqual(ours, fields)


class Bad(unittest.TestCase):
    def refusal(self, data):
        """(status, field) as the codec refuses a request; None: it does not."""
        try:
            h = wire.header_decode(data, wire.MAX_FRAME)
            wire.body_of(h, False).decode(data[wire.HEADER_LEN :])
        except PrefixdError as error:
            return int(error.status), error.field
        return None

    def test_bad_frames_are_refused_by_name(self):
        seen = 0
        for p in paragraphs("bad.txt"):
            with self.subTest(frame=p["frame"]):
                data = bytes.fromhex(p["hex"])
                if int(p["status"]) == Status.MISSING_FIELD:
                    # It decodes; what it lacks is the daemon's to say, and test_client asks it.
                    self.assertIsNone(self.refusal(data))
                    has = wire.request_body("MATCH").decode(data[wire.HEADER_LEN :])["has"]
                    self.assertEqual((has, p["field"]), (3, "salt"))
                else:
                    self.assertEqual(self.refusal(data), (int(p["status"]), p["field"]))
                seen += 1
        self.assertGreaterEqual(seen, 13)

    def test_every_cut_of_every_body_names_the_field_that_it_cuts(self):
        for p in frames():
            message, body = wire.MESSAGES[p["body"]], bytes.fromhex(p["hex"])[wire.HEADER_LEN :]
            ends, at = [], 0
            for f in message.fields:
                one = wire.Message("one", [f._replace(bits=0)])
                at += len(one.encode({f.name: value_of(f, p["f." + f.name])}))
                ends.append((at, f.name))
            for cut in range(len(body)):
                want = next(name for end, name in ends if cut < end)
                with self.assertRaises(PrefixdError) as caught:
                    message.decode(body[:cut])
                self.assertEqual((caught.exception.status, caught.exception.field), (Status.BAD_BODY, want))
            with self.assertRaises(PrefixdError) as caught:
                message.decode(body + b"\0")
            self.assertEqual(caught.exception.field, "trailing bytes")

    def test_a_length_over_its_limit_is_refused_before_anything_is_taken(self):
        for message in wire.MESSAGES.values():
            for f in message.fields:
                if not f.limit or f.kind == "str" and f.limit >= 65535:
                    continue
                one = wire.Message("one", [f])
                length = (f.limit + 1).to_bytes(2 if f.kind == "str" else 4, "little")
                with self.subTest(body=message.name, field=f.name), self.assertRaises(PrefixdError) as caught:
                    one.decode(length)
                self.assertEqual(caught.exception.field, f.name)
                self.assertIn("more than", caught.exception.text)

    def test_undefined_bits_of_requests_only(self):
        for name, field, undefined in (
            ("hello_req", "flags", 2), ("open_req", "flags", 32), ("match_req", "has", 8), ("match_req", "flags", 32),
            ("extend_req", "flags", 2), ("release_req", "flags", 4), ("probe_req", "has", 8),
            ("probe_req", "flags", 2), ("explain_req", "has", 8), ("prefetch_req", "has", 8),
        ):  # fmt: skip
            message = wire.MESSAGES[name]
            values = {f.name: wire._canonical(f, 1) for f in message.fields}
            values.update({f.name: f.bits for f in message.fields if f.bits})
            self.assertEqual(message.decode(message.encode(values))[field], values[field])
            values[field] |= undefined
            with self.subTest(body=name, field=field), self.assertRaises(PrefixdError) as caught:
                message.decode(message.encode(values))
            self.assertEqual(caught.exception.field, field)
        reply = wire.MESSAGES["open_rep"]
        values = {f.name: wire._canonical(f, 1) for f in reply.fields}
        values["flags"] = 0xFFFFFFFF
        self.assertEqual(reply.decode(reply.encode(values))["flags"], 0xFFFFFFFF)

    def test_the_encoder_refuses_what_does_not_fit(self):
        good = {f.name: wire._canonical(f, 1) for f in wire.MESSAGES["match_req"].fields}
        for field, value in (
            ("ns", -1), ("ns", 1 << 32), ("ns", "1"), ("ns", None), ("op_id", b"short"), ("op_id", bytes(17)),
            ("salt", b"x" * 256), ("salt", "text"), ("salt", None), ("keys", None), ("n_tokens", 1.5),
        ):  # fmt: skip
            with self.subTest(field=field, value=value), self.assertRaises(PrefixdError) as caught:
                wire.MESSAGES["match_req"].encode({**good, field: value})
            self.assertEqual((caught.exception.status, caught.exception.field), (Status.ARGUMENT, field))
        for text in ("x" * 65, "a\0b", "\u00e9" * 33):
            with self.subTest(text=text), self.assertRaises(PrefixdError) as caught:
                wire.Message("one", [wire._str("name", 64)]).encode({"name": text})
            self.assertEqual(caught.exception.field, "name")

    def test_text_that_is_no_utf8_comes_back_as_it_was(self):
        one = wire.Message("one", [wire._str("name", 64)])
        self.assertEqual(one.encode(one.decode(b"\x03\x00\xff\xfe\x80")), b"\x03\x00\xff\xfe\x80")


class Random(unittest.TestCase):
    def test_mutated_frames_decode_or_raise_the_one_error(self):
        rng = random.Random(20260)
        golden = [(p["direction"] == "reply", bytes.fromhex(p["hex"])) for p in frames()]
        refused = decoded = 0
        for _ in range(5000):
            reply, data = rng.choice(golden)
            data = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                kind = rng.randrange(4)
                at = rng.randrange(len(data)) if data else 0
                if kind == 0 and data:
                    data[at] = rng.randrange(256)
                elif kind == 1:
                    del data[at : at + rng.randint(1, 9)]
                elif kind == 2:
                    data[at:at] = rng.randbytes(rng.randint(1, 9))
                elif data:
                    data[at] ^= 1 << rng.randrange(8)
            try:
                if len(data) < wire.HEADER_LEN:
                    continue
                h = wire.header_decode(data, wire.MAX_FRAME)
                message = wire.body_of(h, reply)
                if message is None:
                    continue
                body = bytes(data[wire.HEADER_LEN : wire.HEADER_LEN + h.len])
                values = message.decode(body)
                if message.name == "changes":
                    wire.changes(values["events"])
                if message.name == "hello_rep":
                    wire.tenants(values["tenants"])
                self.assertEqual(message.encode(values), body, "there is one encoding of each message")
                decoded += 1
            except PrefixdError as error:
                self.assertIn(error.status, (1, 2, 3, 4))
                refused += 1
        self.assertGreater(refused, 500)
        self.assertGreater(decoded, 500)
