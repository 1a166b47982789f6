"""The pool: the memory in which all blocks lie, as numpy arrays without a copy.

A mapping lives as long as anything that looks into it: a view never dangles, whatever the daemon and
the client do.  Sizes are checked against each other and against the descriptor's real length before
anything is mapped.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any, Dict, Sequence, Tuple, Union, overload

import numpy as np
import numpy.typing as npt

from .errors import PrefixdError, Status
from .wire import NO_ID

_REUSE_BITS = 48  # of a reuse counter: below them the daemon's, above them which memory it is of
_MASK = (1 << _REUSE_BITS) - 1


def _file_of(fd: int) -> Tuple[int, int]:
    """Which file a descriptor is of: no other has the same pair while somebody maps it."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _map(fd: int, length: int, writable: bool) -> mmap.mmap:
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if os.fstat(fd).st_size < length:
        raise PrefixdError(Status.PROTOCOL, f"a descriptor has less than {length} bytes", "pool_len")
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=prot, trackfd=False)
    return mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=prot)


def desk_of(reply: Dict[str, Any], fd: int) -> npt.NDArray[np.uint8]:
    """Memory to write in, where the daemon copies from at COMMIT: n_write x block_bytes."""
    length, stride = reply["write_len"], reply["slot_stride"]
    try:
        memory = _map(fd, length, True)
    except (OSError, ValueError, OverflowError) as error:
        text = f"mapping {length} bytes to write in: {error}"
        raise PrefixdError(Status.NO_MEMORY, text, "write_len") from None
    return np.ndarray((reply["n_write"], reply["block_bytes"]), np.uint8, memory, 0, (stride, 1))


class Pool:
    """One mapped pool; the same object over all lives of the daemon that keep its memory.

    `array`: n_slots x block_bytes, uint8.  `pool[slot]`: one row of it.  Both are views: what is written
    there is what others read after commit().  Slots that no reservation of yours names are not yours to
    write; those are rows of the lease's `room`, which is another array where pools are read-only for
    workers.  The same pool may serve namespaces of one block size only.
    """

    def __init__(self, reply: Dict[str, Any], fds: Sequence[int], tag: int, writable: bool) -> None:
        self.tag = tag  # within its client: which memory it is
        self.id: bytes = reply.get("pool", NO_ID)  # its name over lives; zeroes from daemons that give none
        self.files = _file_of(fds[0]), _file_of(fds[-1])
        self.group: int = reply["group"]
        self.n_slots: int = reply["n_slots"]
        self.block_bytes: int = reply["block_bytes"]
        self.slot_stride: int = reply["slot_stride"]
        self.writable = writable
        self.length: int = reply["pool_len"]
        try:
            memory = _map(fds[0], self.length, writable)
            generations = _map(fds[-1], 8 * self.n_slots, False)
        except (OSError, ValueError, OverflowError) as error:
            text = f"mapping {self.length} bytes: {error}"
            raise PrefixdError(Status.NO_MEMORY, text, "pool_len") from None
        self.array: npt.NDArray[np.uint8] = np.ndarray(
            (self.n_slots, self.block_bytes), np.uint8, memory, 0, (self.slot_stride, 1)
        )
        self._generations: npt.NDArray[np.uint64] = np.frombuffer(generations, "<u8", self.n_slots)

    def is_of(self, reply: Dict[str, Any], fds: Sequence[int]) -> bool:
        """Whether an OPEN's reply brought that memory: neither name nor file is believed alone."""
        files = _file_of(fds[0]), _file_of(fds[-1])
        return self.id == reply.get("pool", NO_ID) and self.files == files

    def reuse(self, counter: int) -> int:
        """A reuse counter of the daemon's as callers see it: with the memory that it belongs to."""
        return self.tag << _REUSE_BITS | (counter & _MASK)

    def __getitem__(self, slot: int) -> npt.NDArray[np.uint8]:
        if not 0 <= slot < self.n_slots:
            raise IndexError(f"slot {slot} of a pool of {self.n_slots}")
        row: npt.NDArray[np.uint8] = self.array[slot]
        return row

    def __len__(self) -> int:
        return self.n_slots

    def view(self, dtype: npt.DTypeLike, shape: Union[int, Tuple[int, ...]] = ()) -> npt.NDArray[Any]:
        """All slots as n_slots x shape of dtype, without a copy; shape is one block's, () for one row."""
        kind = np.dtype(dtype)
        if self.block_bytes % kind.itemsize:
            raise PrefixdError(Status.ARGUMENT, f"{self.block_bytes} bytes are no whole {kind}", "dtype")
        rows = self.array.view(kind)
        if shape == ():
            return rows
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        if int(np.prod(dims)) != rows.shape[1]:
            raise PrefixdError(Status.ARGUMENT, f"{dims} is not the {rows.shape[1]} of a block", "shape")
        # The rows lie apart by the stride, so this is written out: reshape() would copy.
        strides = [kind.itemsize]
        for d in reversed(dims[1:]):
            strides.insert(0, strides[0] * d)
        view: npt.NDArray[Any] = np.lib.stride_tricks.as_strided(
            rows, (self.n_slots, *dims), (self.slot_stride, *strides), writeable=self.writable
        )
        return view

    @overload
    def stale(self, slot: int, reuse: int) -> bool: ...

    @overload
    def stale(self, slot: npt.NDArray[Any], reuse: int) -> npt.NDArray[np.bool_]: ...

    def stale(self, slot: Union[int, npt.NDArray[Any]], reuse: int) -> Union[bool, npt.NDArray[np.bool_]]:
        """Whether slots were reused after the answer that carried `reuse`, or that cannot be told.

        Ask after reading: what was read from a stale slot is not to be used.  Blocks that a lease holds
        are never reused.  A restart of the daemon changes nothing about it where it kept the memory; of
        another memory's slots it cannot be told.
        """
        lost = reuse >> _REUSE_BITS != self.tag
        if isinstance(slot, np.ndarray):
            outside = (slot < 0) | (slot >= self.n_slots)
            newer = self._generations[np.where(outside, 0, slot)] > (reuse & _MASK)
            gone: npt.NDArray[np.bool_] = outside | newer | lost
            return gone
        if lost or not 0 <= slot < self.n_slots:
            return True
        return bool(self._generations[slot] > (reuse & _MASK))
