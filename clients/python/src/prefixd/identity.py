"""What must agree for K/V to be interchangeable, said in full or refused.

An :class:`Identity` becomes a namespace of the daemon: two workers share blocks exactly if every field
of their identities is the same.  A field that is forgotten would share too much, and the engine would
compute with K/V of another model without noticing.  So nothing that makes K/V different has a default:
what is missing, empty, ``None``, "auto" or out of range raises :class:`IdentityError`, which names the
field and says what would be right.  This module talks to nobody and needs no engine.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, fields
from typing import Any, Dict, Optional

from .errors import PrefixdError, Status
from .values import KEYS_DIGEST, KEYS_TOKENS, NS_EXTRA, NS_OPAQUE, NamespaceOptions

__all__ = ["DTYPE_BITS", "Identity", "IdentityError", "dtype_name"]

# Bits of one stored element, of those types whose sizes the daemon checks.
DTYPE_BITS: Dict[str, int] = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8": 8,
    "uint8": 8,
    "int4": 4,
}

# The wire's limits of texts, in bytes.  What is longer is named by its hash: cutting would make two
# names one.
_TEXT_MAX: Dict[str, int] = {
    "model": 255,
    "revision": 255,
    "dtype": 32,
    "scales": 255,
    "layout": 64,
    "windows": 255,
    "adapter": 255,
    "engine": 64,
}
_HASHED = "b2:"  # a text that begins so is hashed too, so that no name can pretend to be a hash
_U32_MAX = 0xFFFFFFFF
_BLOCK_BYTES_MAX = 1 << 40
_BLOCK_TOKENS_MAX = 16376

# What programs write where they know nothing: str(None), a setting's placeholder.
_NOTHING = frozenset(("", "auto", "none", "null", "unknown"))

_REQUIRED: Any = type("_Required", (), {"__repr__": lambda self: "<required>"})()

# What would be right, by field: the second half of every refusal.
_RIGHT: Dict[str, str] = {
    "model": "give the model's name, as the engine loads it",
    "revision": "give the commit or a digest of the weights; names alone move",
    "dtype": "give the type as stored (float16, bfloat16, fp8_e4m3, int8 ...)",
    "layout": "give the order of a block's bytes, without ';', e.g. block-major",
    "engine": "give the engine and the version of its K/V layout, e.g. 'my-engine 1'",
    "adapter": "give the LoRA's name and revision, or '' where there is none",
    "scales": "give a digest or name of the K/V scales, or '' where there are none",
    "windows": "give the attention windows by layer group, or '' for full attention",
    "tp_size": "give the ranks of tensor parallelism, 1 to 65535; 1: none",
    "tp_rank": "give this rank's number, from 0, below tp_size",
    "layers": "give the layers whose K/V is in a block, at least 1",
    "kv_heads": "give the K/V heads of this rank, at least 1",
    "head_dim": "give the elements of one head, at least 1",
    "block_tokens": f"give the tokens of one block, 1 to {_BLOCK_TOKENS_MAX}",
    "block_bytes": "give the bytes of one block: K and V of all layers, this rank",
    "cold_codec": "give 'none', 'int8' or 'fp8', or '' for what the daemon was told to do",
    "exact_layers": "give numbers and ranges of layers, counted from 0, such as '0-1,31', or ''",
    "opaque": "give True where the layout is the engine's own, else False",
}


class IdentityError(PrefixdError, ValueError):
    """A field of an identity is missing (MISSING_FIELD) or cannot be right (BAD_NAMESPACE).

    Raised when an identity is made, never later: a worker learns at its start that it would have
    shared too much.
    """


def dtype_name(dtype: object) -> str:
    """The name of an element type as identities spell it: "torch.bfloat16" and "bfloat16" are one.

    For connectors, which hold a dtype object of their engine.  Says nothing about whether the name is
    right; an :class:`Identity` does.
    """
    text = str(dtype)
    for before in ("torch.", "numpy."):
        if text.startswith(before):
            text = text[len(before) :]
    return {
        "half": "float16",
        "float": "float32",
        "double": "float64",
        "float8_e4m3fn": "fp8_e4m3",
        "float8_e5m2": "fp8_e5m2",
    }.get(text, text)


@dataclass(frozen=True, init=False, repr=False)
class Identity:
    """Everything that makes K/V of the same tokens different, each field with its reason.

    ==============  =========================================================================
    field           why it changes what may be shared
    ==============  =========================================================================
    `model`         other weights, other K/V
    `revision`      the weights behind a name change: a commit, a tag's digest, a file's hash
    `dtype`         as stored, not as configured: what "auto" means depends on the machine
    `layout`        order of the bytes in a block; with tensor parallelism the rank becomes
                    part of it ("block-major;tp=2/0"), so that two ranks are two namespaces
    `engine`        engine and the version of its K/V layout: nobody promises that two
                    engines, or two versions of one, lay a block out alike
    `adapter`       a LoRA changes K and V; "" says that there is none, and must be said
    `tp_size`       how many ranks share the heads: a block holds one rank's
    `tp_rank`       which of them
    `layers`        whose K/V is in a block: of the whole model, or of this pipeline stage
    `kv_heads`      of this rank
    `head_dim`      elements of one head
    `block_tokens`  tokens in one block: keys name blocks of just this length
    `windows`       attention windows: what lies outside a window may not be in the block
    `scales`        quantized K/V means something only with the same scales
    `block_bytes`   None: 2 x layers x kv_heads x head_dim x bits x block_tokens / 8, for the
                    types in DTYPE_BITS.  Other types and layouts give it, with `opaque`
    `opaque`        True: the layout is the engine's own (MLA, padding, packed scales), and
                    sizes are not checked against the model
    `cold_codec`    how blocks lie below the pool, where they take half as much and come back
                    changed: who codes and who does not never read each other's blocks
    `exact_layers`  the layers that stay exact all the same
    ==============  =========================================================================

    All fields are keywords.  Frozen and hashable; `with_` makes a changed copy.
    """

    model: str
    revision: str
    dtype: str
    layout: str
    engine: str
    adapter: str
    tp_size: int
    tp_rank: int
    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    windows: str
    scales: str
    block_bytes: int
    opaque: bool
    cold_codec: str
    exact_layers: str

    def __init__(
        self,
        *,
        model: str = _REQUIRED,
        revision: str = _REQUIRED,
        dtype: str = _REQUIRED,
        layout: str = _REQUIRED,
        engine: str = _REQUIRED,
        adapter: str = _REQUIRED,
        tp_size: int = _REQUIRED,
        tp_rank: int = _REQUIRED,
        layers: int = _REQUIRED,
        kv_heads: int = _REQUIRED,
        head_dim: int = _REQUIRED,
        block_tokens: int = _REQUIRED,
        windows: str = "",
        scales: str = "",
        block_bytes: Optional[int] = None,
        opaque: bool = False,
        cold_codec: str = "",
        exact_layers: str = "",
    ) -> None:
        # The sentinel only turns Python's TypeError into a refusal that names the field.
        given: Dict[str, Any] = {
            "model": _text("model", model),
            "revision": _text("revision", revision),
            "dtype": _text("dtype", dtype),
            "layout": _text("layout", layout),
            "engine": _text("engine", engine),
            "adapter": _text("adapter", adapter, may_be_empty=True),
            "tp_size": _number("tp_size", tp_size, 1, 65535),
            "tp_rank": _number("tp_rank", tp_rank, 0, 65534),
            "layers": _number("layers", layers, 1, _U32_MAX),
            "kv_heads": _number("kv_heads", kv_heads, 1, _U32_MAX),
            "head_dim": _number("head_dim", head_dim, 1, _U32_MAX),
            "block_tokens": _number("block_tokens", block_tokens, 1, _BLOCK_TOKENS_MAX),
            "windows": _text("windows", windows, may_be_empty=True),
            "scales": _text("scales", scales, may_be_empty=True),
            "exact_layers": _text("exact_layers", exact_layers, may_be_empty=True),
        }
        if cold_codec not in ("", "none", "int8", "fp8"):
            raise _wrong("cold_codec", f"it is {cold_codec!r}")
        given["cold_codec"] = cold_codec
        if len(given["dtype"].encode()) > _TEXT_MAX["dtype"]:
            raise _wrong("dtype", f"it is longer than {_TEXT_MAX['dtype']} bytes")
        if ";" in given["layout"]:
            raise _wrong("layout", "it has a ';', behind which the tensor-parallel rank is told")
        if given["tp_rank"] >= given["tp_size"]:
            raise _wrong("tp_rank", f"{given['tp_rank']} is not below tp_size {given['tp_size']}")
        if not isinstance(opaque, bool):
            raise _wrong("opaque", f"it is {opaque!r}")
        given["opaque"] = opaque
        given["block_bytes"] = _block_bytes(given, block_bytes)
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def with_(self, **changes: Any) -> Identity:
        """A copy with other values, checked like a new one.

        `block_bytes` is computed anew unless the layout is opaque or it is among the changes.
        """
        now = {field.name: getattr(self, field.name) for field in fields(self)}
        if not now["opaque"]:
            now["block_bytes"] = None
        now.update(changes)
        return Identity(**now)

    @property
    def wire_layout(self) -> str:
        """The layout as it goes to the daemon, with the tensor-parallel shape: "block-major;tp=2/0".

        The protocol has fields for the shape but its first version takes 1 rank only; in the text
        it separates namespaces just as well.
        """
        if self.tp_size == 1:
            return self.layout
        return f"{self.layout};tp={self.tp_size}/{self.tp_rank}"

    def tokens(self, extra: bool = False) -> NamespaceOptions:
        """Options of a namespace whose keys are token ids (token mode).

        `extra`: each key ends in 32 bytes for what ids do not say, such as an image's digest.
        """
        return self._options(KEYS_TOKENS, NS_EXTRA if extra else 0, digest_len=0, seed_probe=b"")

    def digests(self, digest_len: int, seed_probe: bytes) -> NamespaceOptions:
        """Options of a namespace whose keys are the engine's own digests (digest mode).

        `digest_len`: bytes of one key, 16 to 64.  `seed_probe`: the engine's digest of a block of the
        tokens 0, 1, 2 ... block_tokens - 1 without a parent, 1 to 64 bytes; it shows when two
        processes hash with different seeds and would never share.
        """
        right = "give the bytes of one of the engine's digests, 16 to 64"
        if isinstance(digest_len, bool) or not isinstance(digest_len, int) or not 16 <= digest_len <= 64:
            raise IdentityError(Status.BAD_NAMESPACE, f"it is {digest_len!r}; {right}", "digest_len")
        right = "give the engine's digest of a block of tokens 0, 1, 2 ... without a parent, 1 to 64 bytes"
        if not isinstance(seed_probe, (bytes, bytearray, memoryview)) or not 1 <= len(seed_probe) <= 64:
            raise IdentityError(Status.BAD_NAMESPACE, f"it is {_short(seed_probe)}; {right}", "seed_probe")
        return self._options(KEYS_DIGEST, 0, digest_len=digest_len, seed_probe=bytes(seed_probe))

    def _options(self, key_mode: int, flags: int, digest_len: int, seed_probe: bytes) -> NamespaceOptions:
        return NamespaceOptions(
            key_mode=key_mode,
            flags=flags | (NS_OPAQUE if self.opaque else 0),
            model=_on_wire("model", self.model),
            revision=_on_wire("revision", self.revision),
            dtype=self.dtype,
            scales=_on_wire("scales", self.scales),
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            block_tokens=self.block_tokens,
            block_bytes=self.block_bytes,
            layout=_on_wire("layout", self.wire_layout),
            windows=_on_wire("windows", self.windows),
            adapter=_on_wire("adapter", self.adapter),
            tp_size=1,
            tp_rank=0,
            engine=_on_wire("engine", self.engine),
            digest_len=digest_len,
            seed_probe=seed_probe,
            cold_codec=self.cold_codec,
            exact_layers=self.exact_layers,
        )

    def __repr__(self) -> str:
        parts = [
            f"{self.model}@{self.revision}",
            self.dtype,
            f"{self.layers}x{self.kv_heads}x{self.head_dim}",
            f"{self.block_tokens} tokens = {self.block_bytes} bytes",
            self.wire_layout + (" (opaque)" if self.opaque else ""),
            self.engine,
        ]
        parts += [
            f"{name} {getattr(self, name)}"
            for name in ("adapter", "windows", "scales", "cold_codec", "exact_layers")
            if getattr(self, name)
        ]
        return f"<Identity {', '.join(parts)}>"


def _wrong(field: str, what: str) -> IdentityError:
    return IdentityError(Status.BAD_NAMESPACE, f"{what}; {_RIGHT[field]}", field)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _present(field: str, value: Any) -> None:
    if value is _REQUIRED:
        raise IdentityError(Status.MISSING_FIELD, f"it was not given; {_RIGHT[field]}", field)
    if value is None:
        raise IdentityError(Status.MISSING_FIELD, f"it is None; {_RIGHT[field]}", field)


def _text(field: str, value: Any, may_be_empty: bool = False) -> str:
    _present(field, value)
    if not isinstance(value, str):
        raise _wrong(field, f"it is {_short(value)}, no text")
    if value == "" and may_be_empty:
        return value
    if value.strip() == "":
        raise IdentityError(Status.MISSING_FIELD, f"it is empty; {_RIGHT[field]}", field)
    if value.strip().lower() in _NOTHING:
        raise _wrong(field, f"it is {value!r}")
    try:
        if "\0" in value:
            raise _wrong(field, "it has a byte 0")
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(field, "it is no UTF-8") from None
    return value


def _number(field: str, value: Any, low: int, high: int) -> int:
    _present(field, value)
    # bool is an int to Python; numpy's integers are not, but mean one.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(field, f"it is {_short(value)}, no whole number")
    number: int = value.__index__()
    if not low <= number <= high:
        raise _wrong(field, f"it is {number}")
    return number


def _block_bytes(given: Dict[str, Any], block_bytes: Optional[int]) -> int:
    bits = DTYPE_BITS.get(given["dtype"])
    if given["opaque"]:
        if block_bytes is None:
            raise IdentityError(
                Status.MISSING_FIELD,
                f"an opaque layout's size is not computed; {_RIGHT['block_bytes']}",
                "block_bytes",
            )
        return _number("block_bytes", block_bytes, 1, _BLOCK_BYTES_MAX)
    if bits is None:
        raise _wrong(
            "dtype",
            f"the size of {given['dtype']!r} is not known, which block_bytes and opaque=True would tell",
        )
    elements = 2 * given["layers"] * given["kv_heads"] * given["head_dim"] * given["block_tokens"]
    if elements * bits % 8:
        raise _wrong("block_tokens", "a block of this type would end within a byte")
    computed = int(elements * bits // 8)
    if not computed <= _BLOCK_BYTES_MAX:
        raise _wrong("layers", f"a block of {computed} bytes is not believable")
    if block_bytes is not None and _number("block_bytes", block_bytes, 1, _BLOCK_BYTES_MAX) != computed:
        raise _wrong(
            "block_bytes",
            f"it is {block_bytes} but layers, kv_heads, head_dim, dtype and block_tokens make {computed} "
            "(opaque=True is for layouts with more or less in a block)",
        )
    return computed


def _on_wire(field: str, text: str) -> str:
    """The text, or the hash of one that the wire's field does not hold; never a part of it."""
    data = text.encode()
    if len(data) <= _TEXT_MAX[field] and not text.startswith(_HASHED):
        return text
    # 256 bits as 43 characters of base64, which the shortest field, 64 bytes, holds.
    digest = hashlib.blake2b(data, digest_size=32, person=b"prefixd-name").digest()
    return _HASHED + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
