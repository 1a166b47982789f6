"""Prompts as the bytes of keys, and runs as arrays of slots, without a Python loop per token or block.

Everything that a caller may hand over wrongly is refused as ARGUMENT with the name of the argument.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from .errors import PrefixdError, Status
from .values import Slots

Tokens = Union[Sequence[int], npt.NDArray[Any]]
Digests = Union[Sequence[bytes], bytes, npt.NDArray[Any]]
Extra = Union[Sequence[bytes], bytes, npt.NDArray[Any]]
U32 = npt.NDArray[np.uint32]

NO_TOKENS: U32 = np.empty(0, "<u4")
NO_SLOTS: Slots = np.empty(0, np.int64)
EXTRA_LEN = 32


def argument(field: str, text: str) -> PrefixdError:
    return PrefixdError(Status.ARGUMENT, text, field)


def token_array(tokens: Tokens) -> U32:
    """Token ids as uint32, from any sequence or array of integers."""
    if isinstance(tokens, (bytes, bytearray, str)):
        raise argument("tokens", "token ids are integers")
    try:
        if isinstance(tokens, (list, tuple, range)):
            # Ten times as fast as numpy is over a list, and it looks at each id itself.
            return np.frombuffer(array("I", tokens), "<u4") if tokens else NO_TOKENS
        a: npt.NDArray[Any] = np.asarray(tokens)
    except OverflowError:
        raise argument("tokens", "a token id is less than 0 or more than 32 bits") from None
    except (ValueError, TypeError):
        raise argument("tokens", "token ids are one row of integers") from None
    if a.size == 0:
        return NO_TOKENS
    if a.ndim != 1:
        raise argument("tokens", f"{a.ndim} dimensions; a prompt has one")
    if a.dtype.kind not in "iu":
        raise argument("tokens", f"token ids are integers of 32 bits, not {a.dtype}")
    if a.dtype != np.dtype("<u4") and a.dtype.itemsize * 8 + (a.dtype.kind == "u") > 32:
        if a.min() < 0 or a.max() >= 1 << 32:
            raise argument("tokens", "a token id is less than 0 or more than 32 bits")
    elif a.dtype.kind == "i" and a.min() < 0:
        raise argument("tokens", "a token id is less than 0")
    return np.ascontiguousarray(a, "<u4")


def _rows(field: str, given: Union[Sequence[bytes], bytes, npt.NDArray[Any]], width: int) -> bytes:
    """n x width bytes from a list of bytes, one bytes, or an array of n rows of uint8."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        raw = bytes(given)
    elif isinstance(given, np.ndarray):
        if given.size and (given.dtype != np.uint8 or given.shape[-1] != width):
            raise argument(field, f"an array of them is n x {width} of uint8")
        raw = given.tobytes()
    else:
        try:
            raw = b"".join(given)
            wrong = any(len(one) != width for one in given)
        except TypeError:
            raise argument(field, "they are bytes") from None
        if wrong:
            raise argument(field, f"each has {width} bytes here")
    if len(raw) % width:
        raise argument(field, f"{len(raw)} bytes are no multiple of {width}")
    return raw


class Keys(NamedTuple):
    """A prompt, cut into blocks: `data` are n keys of key_len bytes, `tail` the tokens behind them."""

    data: memoryview
    n: int
    tail: U32
    n_tokens: int  # that keys and tail stand for


def of_tokens(
    tokens: Tokens, block_tokens: int, key_len: int, extra: Optional[Extra] = None, before: U32 = NO_TOKENS
) -> Keys:
    """Keys of a token namespace.  `before`: tokens that an earlier call gave and no key has taken."""
    ids = token_array(tokens)
    if before.size:
        ids = np.concatenate((before, ids))
    n = ids.size // block_tokens
    full = ids[: n * block_tokens]
    tail = ids[n * block_tokens :]
    if key_len == 4 * block_tokens:
        if extra is not None:
            raise argument("extra", "this namespace's keys have none")
        return Keys(_view(full), n, tail, ids.size)
    rows = np.zeros((n, key_len), np.uint8)
    rows[:, : 4 * block_tokens] = full.view(np.uint8).reshape(n, 4 * block_tokens)
    if extra is not None:
        raw = np.frombuffer(_rows("extra", extra, EXTRA_LEN), np.uint8).reshape(-1, EXTRA_LEN)
        if len(raw) != n:
            raise argument("extra", f"{len(raw)} of them for {n} full blocks")
        rows[:, 4 * block_tokens :] = raw
    return Keys(_view(rows), n, tail, ids.size)


def _view(a: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8).data if a.size else memoryview(b"")


def of_digests(digests: Digests, block_tokens: int, key_len: int) -> Keys:
    raw = _rows("digests", digests, key_len)
    n = len(raw) // key_len
    return Keys(memoryview(raw), n, NO_TOKENS, n * block_tokens)


def slots_of(runs: U32, n: int, n_slots: int) -> Slots:
    """The slots that runs name, in their order.  Raises PROTOCOL unless they are n slots of the pool."""
    if len(runs) == 0:
        if n:
            raise PrefixdError(Status.PROTOCOL, f"no slots for {n} blocks", "runs")
        return NO_SLOTS
    wide = runs.astype(np.int64)
    start: Slots = wide[:, 0]
    length: Slots = wide[:, 1]
    if length.min() < 1 or (start + length).max() > n_slots or int(length.sum()) != n:
        raise PrefixdError(Status.PROTOCOL, f"they are not {n} slots of a pool of {n_slots}", "runs")
    if len(runs) == 1:
        first = int(start[0])
        return np.arange(first, first + n, dtype=np.int64)
    # Block i of a run that begins at position p lies at start + (i - p).
    position: Slots = np.cumsum(length) - length
    offset: Slots = np.repeat(start - position, length)
    return offset + np.arange(n, dtype=np.int64)
