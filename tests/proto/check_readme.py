#!/usr/bin/env python3
"""A second implementation of the protocol, made from README.md alone.

It reads the field tables of proto/README.md, and with nothing else computes the self-test, decodes and
encodes every golden frame and refuses every bad one.  So the page is enough to write a client from, and
cannot drift from the code.  The tables of numbers are compared with messages.h.

    check_readme.py PROTO_DIRECTORY
"""
import re
import struct
import sys

INTS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q"}
HEADER = "<4sHHIHHQ16s"
S = 0x9E3779B97F4A7C15
M = (1 << 64) - 1
VERSIONS = {1: "frames-1.txt", 2: "frames-2.txt", 3: "frames.txt"}


class Bad(Exception):
    """Refused; the first argument is the status, the second the field."""


def read_tables(readme, version):
    """{body: [(field, kind, max)]} in the order of the page; without what came with a later version."""
    bodies = {}
    for section in re.findall(r"^### `\w+`.*?(?=^#|\Z)", readme, re.M | re.S):
        name = re.match(r"### `(\w+)`", section).group(1)
        rows = re.findall(r"^\| `(\w+)` \| (\w+)(?:\((\d+)\))? \| (?:version (\d+):)?", section, re.M)
        since = [int(row[3] or 1) for row in rows]
        assert since == sorted(since), f"{name} has a newer field before an older one"
        bodies[name] = [(f, kind, int(limit or 0)) for f, kind, limit, came in rows if int(came or 1) <= version]
    return bodies


def encode(fields, values):
    out = b""
    for name, kind, limit in fields:
        v = values[name]
        if kind in INTS:
            out += struct.pack(INTS[kind], v)
        elif kind == "id":
            out += v
        elif kind == "runs":
            out += struct.pack("<I", len(v)) + b"".join(struct.pack("<II", *run) for run in v)
        else:
            out += struct.pack("<H" if kind == "text" else "<I", len(v)) + v
    return out


def decode(fields, body):
    at = 0

    def take(n, field):
        nonlocal at
        if n > len(body) - at:
            raise Bad("BAD_BODY", field)
        at += n
        return body[at - n : at]

    values = {}
    for name, kind, limit in fields:
        if kind in INTS:
            (v,) = struct.unpack(INTS[kind], take(struct.calcsize(INTS[kind]), name))
        elif kind == "id":
            v = take(16, name)
        else:
            width = "<H" if kind == "text" else "<I"
            (n,) = struct.unpack(width, take(struct.calcsize(width), name))
            if n > limit:
                raise Bad("BAD_BODY", name)
            v = take(8 * n if kind == "runs" else n, name)
            if kind == "text" and 0 in v:
                raise Bad("BAD_BODY", name)
            if kind == "runs":
                v = list(struct.iter_unpack("<II", v))
        values[name] = v
    if at != len(body):
        raise Bad("BAD_BODY", "trailing bytes")
    return values


def self_test(bodies, version):
    lanes = [0xCBF29CE484222325, 0x84222325CBF29CE4]
    k = 0
    for b, fields in enumerate(bodies.values(), 1):
        values = {}
        for name, kind, _ in fields:
            k += 1
            n = 1 + k % 7
            if kind in INTS:
                values[name] = ((k * S) & M) >> (64 - 8 * struct.calcsize(INTS[kind]))
            elif kind == "id":
                values[name] = bytes((16 * k + i) % 256 for i in range(16))
            elif kind == "text":
                values[name] = bytes(97 + (k + i) % 26 for i in range(n))
            elif kind == "bytes":
                values[name] = bytes((k + 3 * i) % 256 for i in range(n))
            else:
                values[name] = [(1000 * k + i, k + i) for i in range(1 + k % 3)]
        body = encode(fields, values)
        boot = bytes((16 * b + i) % 256 for i in range(16))
        frame = struct.pack(HEADER, b"PFXD", version, b, len(body), b + 1, 0, b * S & M, boot) + body
        for byte in frame:
            lanes = [((lane ^ byte) * 0x100000001B3) & M for lane in lanes]
    return struct.pack("<QQ", *lanes)


def paragraphs(path):
    for text in open(path, encoding="utf-8").read().split("\n\n"):
        lines = [line for line in text.split("\n") if line and not line.startswith("#")]
        if lines:
            yield dict(line.split("=", 1) for line in lines)


def from_text(kind, text):
    if kind in INTS:
        return int(text)
    if kind in ("id", "bytes"):
        return bytes.fromhex(text)
    if kind == "text":
        return text.encode()
    return [tuple(map(int, run.split("+"))) for run in text.split(",") if run]


def check_events(changes, fields):
    """The field `events` is {u16 length, one `change`}, repeated."""
    rest, n = changes["events"], 0
    while rest:
        (length,) = struct.unpack("<H", rest[:2])
        one = rest[2 : 2 + length]
        assert encode(fields, decode(fields, one)) == one
        rest, n = rest[2 + length :], n + 1
    assert n == changes["n"]


def check_frame(p, version, bodies, ops):
    raw = bytes.fromhex(p["hex"])
    magic, head, op, length, status, flags, seq, boot = struct.unpack(HEADER, raw[:40])
    assert (magic, flags, length) == (b"PFXD", 0, len(raw) - 40), p["frame"]
    assert head == (1 if ops[op][0] == "HELLO" else version), p["frame"]
    assert (op, status, seq) == (int(p["op"]), int(p["status"]), int(p["seq"])), p["frame"]
    assert boot.hex() == p["boot"], p["frame"]
    reply = p["direction"] == "reply"
    assert p["body"] == ("error" if status else ops[op][2 if reply else 1]), p["frame"]
    fields = bodies[p["body"]]
    want = {name: from_text(kind, p["f." + name]) for name, kind, _ in fields}
    assert decode(fields, raw[40:]) == want, p["frame"]
    assert encode(fields, want) == raw[40:], p["frame"]
    if p["body"] == "hello_rep":
        assert want["version"] == version, p["frame"]
    if p["body"] == "changes":
        check_events(want, bodies["change"])


def refuse(raw, bodies, ops, bits):
    """Rules 8 and 14 to 16, 32: what a daemon answers to this frame."""
    magic, version, op, length, _, flags, _, _ = struct.unpack(HEADER, raw[:40])
    if magic != b"PFXD":
        raise Bad("BAD_FRAME", "")
    if version not in VERSIONS:
        raise Bad("VERSION", "")
    if flags:
        raise Bad("BAD_FRAME", "")
    if 40 + length > 1048576:
        raise Bad("TOO_LARGE", "")
    values = decode(bodies[ops[op][1]], raw[40:])
    for name in ("has", "flags"):
        defined = bits.get((ops[op][1], name))
        if defined is not None and values[name] & ~defined:
            raise Bad("BAD_BODY", name)
    for bit, name in ((1, "ns"), (2, "tenant"), (4, "salt")):
        if "has" in values and not values["has"] & bit:
            raise Bad("MISSING_FIELD", name)


def defined_bits(readme):
    """Which bits the tables give a meaning to: "1 COPIES: ...", "2 EXTRA: ..."."""
    bits = {}
    for section in re.findall(r"^### `\w+_req`.*?(?=^#|\Z)", readme, re.M | re.S):
        name = re.match(r"### `(\w+)`", section).group(1)
        for field, text in re.findall(r"^\| `(flags|has)` \| \w+ \| (.*) \|$", section, re.M):
            if text == "as in MATCH":
                bits[name, field] = bits["match_req", field]
            numbers = [int(n) for n in re.findall(r"\b(\d+) [A-Z_]+\b", text)]
            if numbers:
                bits[name, field] = sum(numbers)
    return bits


def table(readme, heading):
    section = re.search(rf"^## {heading}\n.*?(?=^## |^### |\Z)", readme, re.M | re.S).group(0)
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section, re.M)
    return {int(n): [c.strip() for c in rest.split("|")] for n, rest in rows}


def x_macro(header, name):
    text = re.search(rf"#define {name}\(X\)(?:.*\\\n)*.*", header).group(0)
    return {int(n): rest.strip() for n, rest in re.findall(r"X\((\d+), ([^()]*)\)", text)}


def main(directory):
    readme = open(directory + "/README.md", encoding="utf-8").read()
    headers = ("messages.h", "open.h")
    header = "".join(open(directory + "/" + name, encoding="utf-8").read() for name in headers)
    bodies = read_tables(readme, max(VERSIONS))
    ops = table(readme, "Operations")
    statuses = table(readme, "Status codes")
    changes = open(directory + "/changes.h", encoding="utf-8").read()
    n_frames = n_bad = 0

    assert {n: row[0] for n, row in ops.items()} == {
        n: rest.split(",")[0] for n, rest in x_macro(header, "PROTO_OPS").items()
    }
    assert {n: row[0] for n, row in statuses.items()} == {
        n: rest.split(",")[0] for n, rest in x_macro(header, "PROTO_STATUSES").items()
    }
    assert {n: row[0] for n, row in table(readme, "Reasons").items()} == {
        n: rest.split('"')[1] for n, rest in x_macro(header, "PROTO_REASONS").items()
    }
    for heading, macro in (("Kinds of events", "PROTO_CHANGES"), ("Removals", "PROTO_REMOVALS")):
        assert {n: row[0] for n, row in table(readme, heading).items()} == {
            n: rest.split('"')[1] for n, rest in x_macro(changes, macro).items()
        }
    rules = [int(n) for n in re.findall(r"^(\d+)\. ", readme, re.M)]
    assert rules == list(range(1, len(rules) + 1)), "rules are numbered without gaps"

    for version, name in VERSIONS.items():
        of_version = read_tables(readme, version)
        for p in paragraphs(directory + "/vectors/" + name):
            if "self_test" in p:
                assert self_test(of_version, version).hex() == p["self_test"]
                assert f"version {version}\n      `{p['self_test']}`" in readme or (
                    f"version {version} `{p['self_test']}`" in readme
                )
                continue
            check_frame(p, version, of_version, ops)
            n_frames += 1
    bits = defined_bits(readme)
    assert len(bits) == 10
    for (body, field), defined in bits.items():
        name = "HAS" if field == "has" else body.removesuffix("_req").upper()
        assert int(re.search(rf"PROTO_{name}_ALL = (\d+)", header).group(1)) == defined, (body, field)
    for p in paragraphs(directory + "/vectors/bad.txt"):
        try:
            refuse(bytes.fromhex(p["hex"]), bodies, ops, bits)
        except Bad as bad:
            assert bad.args[0] == statuses[int(p["status"])][0], (p["frame"], bad.args)
            assert bad.args[1] == p["field"], (p["frame"], bad.args)
        else:
            raise AssertionError(p["frame"] + " was not refused")
        n_bad += 1
    assert n_frames > 90 and n_bad > 12
    print(f"{len(bodies)} bodies, {n_frames} frames, {n_bad} bad ones", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
