"""Frames as bytes: one table of all messages, and what reads and writes by it.

`MESSAGES` declares every body once, field by field in the order of the protocol's page; encoder, decoder
and self-test come from it.  A field says with which version it came: bodies only grow at their end, so
one table says what every version looks like.  What is guaranteed: a length is compared with its limit
before anything of that size is read or made, the first bad field is the one named, and whatever the bytes
are the only exception is :class:`PrefixdError`.  Nothing here knows a socket.

Values: integers are `int`, ids and byte fields `bytes`, texts `str` (bytes that are no UTF-8 survive as
surrogates, so that every frame comes back as it was), runs a uint32 array of n x 2 (start, length).
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np

from .errors import PrefixdError, Status

Buffer = Union[bytes, bytearray, memoryview]

MAGIC = b"PFXD"
VERSION = 3  # the newest one that is spoken here
VERSION_MIN = 1  # the oldest one
VERSION_HELLO = 1  # in the headers of HELLO and of its reply, whatever is agreed
HEADER_LEN = 40
MAX_HELLO = 4096  # longest frame before HELLO has been answered
MAX_FRAME = 1 << 20  # longest one afterwards, unless the daemon says otherwise
MAX_FRAME_LIMIT = 64 << 20
SALT_MAX = 255
DIGEST_MAX = 64
NO_ID = bytes(16)

_HEADER = struct.Struct("<4sHHIHHQ16s")
_MANY = 1 << 22
_M64 = (1 << 64) - 1


def bad(field: str, text: str, status: Status = Status.BAD_BODY) -> PrefixdError:
    """The refusal of a body: `field` is the first one that is wrong."""
    return PrefixdError(status, text, field)


# ---- the table ---------------------------------------------------------------------------------------


class Field(NamedTuple):
    """One field: `kind` is u8 u16 u32 u64 id str blob runs; `limit` of str, blob and runs is the longest.

    `bits` of a request's flags are those that are defined; 0: any.  `since`: the first version that has it.
    """

    name: str
    kind: str
    limit: int = 0
    bits: int = 0
    since: int = 1


def _u8(name: str, bits: int = 0) -> Field:
    return Field(name, "u8", 0, bits)


def _u16(name: str) -> Field:
    return Field(name, "u16")


def _u32(name: str, bits: int = 0) -> Field:
    return Field(name, "u32", 0, bits)


def _u64(name: str) -> Field:
    return Field(name, "u64")


def _id(name: str) -> Field:
    return Field(name, "id")


def _str(name: str, limit: int) -> Field:
    return Field(name, "str", limit)


def _blob(name: str, limit: int = MAX_FRAME_LIMIT) -> Field:
    return Field(name, "blob", limit)


def _runs(name: str) -> Field:
    return Field(name, "runs", _MANY)


def _since(version: int, *fields: Field) -> List[Field]:
    return [f._replace(since=version) for f in fields]


_ROOT = [_u8("has", 7), _u32("ns"), _u32("tenant"), _blob("salt", SALT_MAX)]
_AFTER = _since(3, _u32("word"), _u64("value"))
_WAIT = [_u64("lease"), _u8("state"), _u32("n"), _u32("leader_us")]

# In the order of the protocol's page, which the self-test counts by.
_TABLE: Dict[str, List[Field]] = {
    "error": [_str("field", 64), _str("text", 512), _u32("retry_after_us")],
    "hello_req": [
        _u16("version_min"), _u16("version_max"), _u32("flags", 1), _id("self_test"), _id("instance"),
        _str("name", 64),
    ],
    "hello_rep": [
        _u16("version"), _u32("session"), _u32("max_frame"), _u32("max_keys"), _u32("max_namespaces"),
        _u32("max_leases"), _u32("op_ids_kept"), _u32("op_ids_kept_ms"), _str("daemon", 64),
        _blob("tenants", 65536), *_since(2, _u32("n_orphans"), _id("orphans_boot")),
    ],
    "open_req": [
        _u8("key_mode"), _u32("flags", 3), _str("model", 255), _str("revision", 255), _str("dtype", 32),
        _str("scales", 255), _u32("layers"), _u32("kv_heads"), _u32("head_dim"), _u32("block_tokens"),
        _u64("block_bytes"), _str("layout", 64), _str("windows", 255), _str("adapter", 255),
        _u32("tp_size"), _u32("tp_rank"), _str("engine", 64), _u32("digest_len"),
        _blob("seed_probe", DIGEST_MAX), *_since(3, _str("cold_codec", 16), _str("exact_layers", 255)),
    ],
    "open_rep": [
        _u32("ns"), _u32("flags"), _blob("digest", 32), _u32("key_len"), _u32("block_tokens"),
        _u64("block_bytes"), _u32("group"), _u32("n_slots"), _u64("slot_stride"), _u64("pool_len"),
        _u8("n_pool_fds"), *_since(2, _id("pool")), *_since(
            3, _u8("device"), _id("device_id"), _u64("slab_len"), _u32("n_ranks"), _u32("window"),
            _u32("n_write"), _u64("write_len"), _u32("n_words"), _u64("cold_bytes"),
        ),
    ],
    "match_req": [
        *_ROOT, _id("op_id"), _id("decision_id"), _u32("flags", 15), _u32("deadline_us"),
        _u64("n_tokens"), _blob("parent", DIGEST_MAX), _blob("keys"), _blob("tail"),
    ],
    "match_rep": [
        _u64("lease"), _id("root"), _u32("n_device"), _u32("n_host"), _u32("n_redis"), _u32("n_pending"),
        _u32("tail_tokens"), _u32("tail_slot"), _u8("advice"), _u8("reason"), _u8("more"),
        _u32("load_us"), _u64("miss_token"), _u64("reuse"), _runs("runs"),
        *_since(3, _u32("n_lossy"), _u32("first_lossy")),
    ],
    "extend_req": [
        _id("op_id"), _u64("lease"), _u32("flags", 13), _u32("deadline_us"), _u64("n_tokens"),
        _blob("parent", DIGEST_MAX), _blob("keys"), _blob("tail"),
    ],
    "reserve_req": [_id("op_id"), _u64("lease"), _u32("n"), _u32("deadline_us")],
    "reserve_rep": [_u32("n"), _u32("first"), _u64("reuse"), _runs("runs")],
    "commit_req": [
        _id("op_id"), _u64("lease"), _u32("n"), _u32("tail_tokens"), _u8("checksum_kind"),
        _blob("checksums", _MANY), *_AFTER,
    ],
    "commit_rep": [_u32("n_stored"), _u32("n_duplicate"), _u64("reuse"), _runs("runs")],
    "release_req": [_id("op_id"), _u64("lease"), _u32("flags", 3), _u32("next_use_ms"), *_AFTER],
    "release_rep": [
        _u64("queried_tokens"), _u64("hit_device_tokens"), _u64("hit_host_tokens"),
        _u64("hit_redis_tokens"), _u64("hit_pending_tokens"), _u64("miss_tokens"),
    ],
    "probe_req": [*_ROOT, _u32("flags", 1), _u64("n_tokens"), _blob("keys")],
    "probe_rep": [_id("root"), _u32("n_device"), _u32("n_host"), _u32("n_redis"), _blob("bitmap", _MANY)],
    "explain_req": [*_ROOT, _u64("n_tokens"), _blob("keys"), _blob("tail")],
    "explain_rep": [
        _u64("matched_tokens"), _u64("position"), _u8("reason"), _u8("has_tokens"), _u32("own_token"),
        _u32("stored_token"), _u64("lost_tokens"), _str("text", 512),
    ],
    "report_req": [
        _u32("ns"), _u32("ttft_us"), _u32("tpot_us"), _u32("input_tokens"), _u32("running"),
        _u32("waiting"),
    ],
    "quiesced_req": [_id("instance"), _id("old_boot"), *_AFTER],
    "quiesced_rep": [_u32("n_leases"), _u32("n_slots")],
    "wait_req": [_u64("lease"), _u32("deadline_us")],
    "wait_rep": _WAIT,
    "event": [*_WAIT, _u8("reason")],
    "prefetch_req": [*_ROOT, _id("op_id"), _u32("deadline_us"), _u64("n_tokens"), _blob("keys")],
    "prefetch_rep": [_id("root"), _u32("n_device"), _u32("n_host"), _u32("n_redis")],
    "subscribe_req": [_u32("ns"), _u64("from"), _id("life")],
    "subscribe_rep": [_u64("last"), _u64("oldest")],
    "change": [
        _u8("kind"), _u8("tier"), _u8("from_tier"), _u8("reason"), _u64("number"), _u32("ns"),
        _u32("tenant"), _id("root"), _u32("position"), _u32("n_tokens"), _u32("slot"), _u64("revision"),
        _blob("block", DIGEST_MAX), _blob("parent", DIGEST_MAX),
    ],
    "changes": [_u32("n"), _blob("events")],
    "empty": [],
    "admin": [_blob("json")],
}


class Op(NamedTuple):
    """An operation: its number and the bodies of its request and its reply."""

    code: int
    request: str
    reply: str


OPS: Dict[str, Op] = {
    "HELLO": Op(1, "hello_req", "hello_rep"),
    "OPEN": Op(2, "open_req", "open_rep"),
    "MATCH": Op(3, "match_req", "match_rep"),
    "EXTEND": Op(4, "extend_req", "match_rep"),
    "RESERVE": Op(5, "reserve_req", "reserve_rep"),
    "COMMIT": Op(6, "commit_req", "commit_rep"),
    "RELEASE": Op(7, "release_req", "release_rep"),
    "WAIT": Op(8, "wait_req", "wait_rep"),
    "PREFETCH": Op(9, "prefetch_req", "prefetch_rep"),
    "PROBE": Op(10, "probe_req", "probe_rep"),
    "EXPLAIN": Op(11, "explain_req", "explain_rep"),
    "REPORT": Op(12, "report_req", "empty"),
    "SUBSCRIBE": Op(13, "subscribe_req", "subscribe_rep"),
    "QUIESCED": Op(14, "quiesced_req", "quiesced_rep"),
    "PING": Op(15, "empty", "empty"),
    "EVENT": Op(16, "event", "event"),
    "CHANGES": Op(17, "empty", "changes"),
    "LOST": Op(18, "empty", "error"),
    "ADMIN": Op(32, "admin", "admin"),
}
OP_NAMES: Dict[int, str] = {op.code: name for name, op in OPS.items()}

# Flags that version 3 has defined, over those of the table.
_FLAGS_3 = {"open_req": 31, "match_req": 31}

# ---- bodies ------------------------------------------------------------------------------------------

_INT = {"u8": ("B", 1), "u16": ("H", 2), "u32": ("I", 4), "u64": ("Q", 8), "id": ("16s", 16)}
_DEFAULTS: Dict[str, Any] = {"id": NO_ID, "str": "", "blob": b"", "runs": ()}
_LEN = {"str": (struct.Struct("<H"), 1), "blob": (struct.Struct("<I"), 1), "runs": (struct.Struct("<I"), 8)}


class _Fixed:
    """Neighbouring fields of fixed size, read and written at once."""

    def __init__(self, fields: List[Field]) -> None:
        self.fields = fields
        self.names = tuple(f.name for f in fields)
        self.ids = tuple(f.name for f in fields if f.kind == "id")
        self.layout = struct.Struct("<" + "".join(_INT[f.kind][0] for f in fields))

    def lacking(self, left: int) -> str:
        """Name of the first field that `left` bytes are too few for."""
        for f in self.fields:
            left -= _INT[f.kind][1]
            if left < 0:
                return f.name
        return ""

    def refused(self, values: Mapping[str, Any]) -> str:
        """Name of the first field whose value does not fit into it, for the encoder."""
        for f in self.fields:
            v = values.get(f.name)
            if f.kind == "id":
                if not isinstance(v, (bytes, bytearray)) or len(v) != 16:
                    return f.name
            elif not isinstance(v, int) or v < 0 or v >> (8 * _INT[f.kind][1]):
                return f.name
        return ""


class Message:
    """One body in one version: `decode` and `encode` between bytes and a dict of its fields.

    Fields that came with a later version than the first may be left out: they are 0 or empty then.
    """

    def __init__(self, name: str, fields: List[Field], version: int = VERSION) -> None:
        self.name = name
        self.version = version
        self.fields = fields
        self._bits = [(f.name, f.bits) for f in fields if f.bits]
        self._defaults = {f.name: _DEFAULTS.get(f.kind, 0) for f in fields if f.since > 1}
        self._parts: List[Union[_Fixed, Field]] = []
        run: List[Field] = []
        for f in fields:
            if f.kind in _INT:
                run.append(f)
                continue
            if run:
                self._parts.append(_Fixed(run))
                run = []
            self._parts.append(f)
        if run:
            self._parts.append(_Fixed(run))

    def decode(self, body: Buffer) -> Dict[str, Any]:
        """The fields of a body.  Raises BAD_BODY with the first field that is wrong."""
        out: Dict[str, Any] = {}
        at, end = 0, len(body)
        for part in self._parts:
            if isinstance(part, _Fixed):
                size = part.layout.size
                if size > end - at:
                    raise bad(part.lacking(end - at), f"{self.name} ends in the middle of it")
                out.update(zip(part.names, part.layout.unpack_from(body, at)))
                at += size
            else:
                at, out[part.name] = _take(part, body, at, end)
        for name, bits in self._bits:
            if out[name] & ~bits:
                raise bad(name, f"bits {out[name] & ~bits:#x} mean nothing in version {self.version}")
        if at != end:
            raise bad("trailing bytes", f"{end - at} bytes behind {self.name}")
        return out

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """The body of these fields.  Raises ARGUMENT: the field that is missing or does not fit."""
        parts: List[Buffer] = []
        if self._defaults:
            values = {**self._defaults, **values}
        for part in self._parts:
            if isinstance(part, _Fixed):
                try:
                    parts.append(part.layout.pack(*[values[name] for name in part.names]))
                    fits = all(len(values[name]) == 16 for name in part.ids)
                except (struct.error, KeyError, TypeError):
                    fits = False
                if not fits:
                    name = part.refused(values)
                    raise bad(name, f"{values.get(name)!r} does not fit", Status.ARGUMENT)
            else:
                _put(part, values, parts)
        return b"".join(parts)


def _take(f: Field, body: Buffer, at: int, end: int) -> Tuple[int, Any]:
    length, unit = _LEN[f.kind]
    if length.size > end - at:
        raise bad(f.name, "its length is missing")
    n: int = length.unpack_from(body, at)[0]
    at += length.size
    if n > f.limit:
        raise bad(f.name, f"{n} is more than {f.limit}")
    size = n * unit
    if size > end - at:
        raise bad(f.name, f"{size} bytes are announced and {end - at} are left")
    if f.kind == "runs":
        return at + size, np.frombuffer(body, "<u4", 2 * n, at).reshape(n, 2)
    raw = bytes(body[at : at + size])
    if f.kind == "blob":
        return at + size, raw
    if 0 in raw:
        raise bad(f.name, "a byte 0 within a text")
    return at + size, raw.decode("utf-8", "surrogateescape")


def _put(f: Field, values: Mapping[str, Any], parts: List[Buffer]) -> None:
    value = values.get(f.name)
    length, unit = _LEN[f.kind]
    raw: Buffer
    if f.kind == "str" and isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        if 0 in raw:
            raise bad(f.name, "a byte 0 within a text", Status.ARGUMENT)
    elif f.kind == "blob" and isinstance(value, (bytes, bytearray, memoryview)):
        raw = value
    elif f.kind == "runs" and value is not None:
        raw = np.ascontiguousarray(value, "<u4").reshape(-1, 2).tobytes()
    else:
        raise bad(f.name, f"{type(value).__name__} is no {f.kind}", Status.ARGUMENT)
    n = len(raw) // unit
    if n > f.limit:
        raise bad(f.name, f"{n} is more than {f.limit}", Status.ARGUMENT)
    parts.append(length.pack(n))
    parts.append(raw)


def _messages(version: int) -> Dict[str, Message]:
    out = {}
    for name, fields in _TABLE.items():
        known = [f for f in fields if f.since <= version]
        if version >= 3 and name in _FLAGS_3:
            known = [f._replace(bits=_FLAGS_3[name]) if f.name == "flags" else f for f in known]
        out[name] = Message(name, known, version)
    return out


MESSAGES_OF: Dict[int, Dict[str, Message]] = {n: _messages(n) for n in range(VERSION_MIN, VERSION + 1)}
MESSAGES: Dict[str, Message] = MESSAGES_OF[VERSION]

# ---- frames ------------------------------------------------------------------------------------------


class Header(NamedTuple):
    """What stands before every body; `len` is the body's length, `boot` names the daemon's life."""

    op: int
    len: int
    status: int
    seq: int
    boot: bytes
    version: int = VERSION


def header_encode(h: Header) -> bytes:
    return _HEADER.pack(MAGIC, h.version, h.op, h.len, h.status, 0, h.seq, h.boot)


def header_decode(data: Buffer, max_frame: int, at: int = 0) -> Header:
    """The header at `at`, of which all 40 bytes must be there.

    Raises BAD_FRAME, VERSION or TOO_LARGE: where the next frame would begin is then unknown.  Any version
    that is spoken here passes; whether it is the one agreed on, the caller knows.
    """
    magic, version, op, length, status, flags, seq, boot = _HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise bad("", "the frame does not begin with PFXD", Status.BAD_FRAME)
    if not VERSION_MIN <= version <= VERSION:
        text = f"version {version} is not spoken here, {VERSION_MIN} to {VERSION} are"
        raise bad("", text, Status.VERSION)
    if flags:
        raise bad("", f"flags of the header are {flags:#x}, not 0", Status.BAD_FRAME)
    if HEADER_LEN + length > max_frame:
        raise bad("", f"a frame of {HEADER_LEN + length} bytes; {max_frame} are taken", Status.TOO_LARGE)
    return Header(op, length, status, seq, boot, version)


def request_body(op: str, version: int = VERSION) -> Message:
    return MESSAGES_OF[version][OPS[op].request]


def reply_body(op: str, version: int = VERSION) -> Message:
    return MESSAGES_OF[version][OPS[op].reply]


def frame(
    op: str, seq: int, values: Mapping[str, Any], boot: bytes = NO_ID, version: int = VERSION
) -> bytes:
    """A request, whole."""
    body = request_body(op, version).encode(values)
    return header_encode(Header(OPS[op].code, len(body), 0, seq, boot, version)) + body


def body_version(h: Header, body: Buffer, reply: bool) -> int:
    """The version that this frame's body is laid out in: HELLO's reply says it by its first field.

    Raises BAD_BODY when that is none which is spoken here.
    """
    if not reply or h.status or h.op != OPS["HELLO"].code:
        return h.version
    agreed = int.from_bytes(body[:2], "little") if len(body) >= 2 else 0
    if not VERSION_MIN <= agreed <= VERSION:
        raise bad("version", f"version {agreed} is not spoken here")
    return agreed


def body_of(h: Header, reply: bool, version: Optional[int] = None) -> Optional[Message]:
    """The table of a frame's body: its operation's, `error` for a reply that is not OK; None: unknown.

    `version`: that of the body, where it is not the header's.
    """
    name = OP_NAMES.get(h.op)
    version = version or h.version
    if reply and h.status:
        return MESSAGES_OF[version]["error"]
    if name is None:
        return None
    return reply_body(name, version) if reply else request_body(name, version)


# ---- lists within fields -----------------------------------------------------------------------------

_CHANGE_LEN = struct.Struct("<H")
_TENANT = struct.Struct("<IH")


def changes(events: bytes) -> List[Dict[str, Any]]:
    """The events of a CHANGES frame."""
    out: List[Dict[str, Any]] = []
    at = 0
    while at < len(events):
        if len(events) - at < 2:
            raise bad("events", "ends in the middle of a length")
        n: int = _CHANGE_LEN.unpack_from(events, at)[0]
        at += 2
        if n > len(events) - at:
            raise bad("events", "ends in the middle of an event")
        out.append(MESSAGES["change"].decode(events[at : at + n]))
        at += n
    return out


def tenants(field: bytes) -> Dict[str, int]:
    """HELLO's list of tenants: id by name."""
    out: Dict[str, int] = {}
    at = 0
    while at < len(field):
        if len(field) - at < _TENANT.size:
            raise bad("tenants", "ends in the middle of an entry")
        number, n = _TENANT.unpack_from(field, at)
        at += _TENANT.size
        if n > len(field) - at:
            raise bad("tenants", "ends in the middle of a name")
        out[field[at : at + n].decode("utf-8", "surrogateescape")] = number
        at += n
    return out


# ---- self-test ---------------------------------------------------------------------------------------

_S = 0x9E3779B97F4A7C15
_WIDTH = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}


def _canonical(f: Field, k: int) -> Any:
    if f.kind in _WIDTH:
        return (k * _S & _M64) >> (64 - 8 * _WIDTH[f.kind])
    if f.kind == "id":
        return bytes((16 * k + i) % 256 for i in range(16))
    if f.kind == "str":
        return "".join(chr(97 + (k + i) % 26) for i in range(1 + k % 7))
    if f.kind == "blob":
        return bytes((k + 3 * i) % 256 for i in range(1 + k % 7))
    return [(1000 * k + i, k + i) for i in range(1 + k % 3)]


def self_test(version: int = VERSION) -> bytes:
    """The 16 bytes by which HELLO proves that this encoder lays out bytes as the page says."""
    a, b = 0xCBF29CE484222325, 0x84222325CBF29CE4
    k = 0
    for number, message in enumerate(MESSAGES_OF[version].values(), 1):
        values = {}
        for f in message.fields:
            k += 1
            values[f.name] = _canonical(f, k)
        body = message.encode(values)
        boot = bytes((16 * number + i) % 256 for i in range(16))
        h = Header(number, len(body), number + 1, number * _S & _M64, boot, version)
        for byte in header_encode(h) + body:
            a = ((a ^ byte) * 0x100000001B3) & _M64
            b = ((b ^ byte) * 0x100000001B3) & _M64
    return struct.pack("<QQ", a, b)
