"""Blocks that a lookup found, and how bytes come in and out of the pool.

A block's bytes are handed out only if they were right when they had been read: the lease holds the block,
beyond the end of its connection and of the daemon too, and who reads looks afterwards whether its slot was
given to others.  A daemon that comes back with another pool makes everything read from the old one void.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, Optional, Union

import numpy as np
import numpy.typing as npt

from .client import Lease
from .connections import Connection
from .keys import NO_SLOTS
from .pool import Pool
from .values import Slots

if TYPE_CHECKING:
    from .blockstore import BlockStore

Bytes = npt.NDArray[np.uint8]
# A block to store: its bytes, an array of as many bytes, or what fills the slot that it is given.
Source = Union[bytes, bytearray, memoryview, npt.NDArray[Any], Callable[[Bytes], Any]]
# Where a block goes: writable bytes, an array of as many bytes, or what takes them from the slot.
Target = Union[bytearray, memoryview, npt.NDArray[Any], Callable[[Bytes], Any]]


class Refused(Exception):
    """What the caller gave is wrong: a buffer's size, a number of blocks."""


def copy_in(row: Bytes, block: Source) -> None:
    """A block's bytes into its slot."""
    if isinstance(block, np.ndarray):
        # Straight from where the elements lie, in one piece or not.
        _fits(block.nbytes, row)
        np.copyto(row.view(block.dtype).reshape(block.shape), block)
    elif callable(block):
        block(row)
    else:
        data = np.frombuffer(block, np.uint8)
        _fits(data.nbytes, row)
        np.copyto(row, data)


def copy_out(row: Bytes, out: Target) -> None:
    """A slot's bytes to where they are wanted."""
    row = row[:]
    row.flags.writeable = False
    if isinstance(out, np.ndarray):
        _fits(out.nbytes, row)
        np.copyto(out, row.view(out.dtype).reshape(out.shape))
    elif callable(out):
        out(row)
    else:
        data = np.frombuffer(out, np.uint8)
        _fits(data.nbytes, row)
        np.copyto(data, row)


def _fits(n: int, row: Bytes) -> None:
    if n != row.nbytes:
        raise Refused(f"a buffer of {n} bytes where a block has {row.nbytes}")


class Hit:
    """Blocks of one lookup, held by a lease until close(); a context manager.

    `n`: blocks from the path's first one on that can be read.  `slots`: where they lie in the pool.
    `pending`: blocks behind those that another worker is computing.  `lead`: with ``lookup(lead=True)``,
    this worker is the one that computes what is missing; others wait until it has stored that, or closes
    the hit.  Any thread may read and close.  Nothing here raises.
    """

    def __init__(
        self, store: BlockStore, conn: Optional[Connection] = None, lease: Optional[Lease] = None
    ) -> None:
        self._store = store
        self._conn = conn
        self._lease = lease
        self._pool: Optional[Pool] = lease.pool if lease is not None else None
        self._pid = os.getpid()
        self._reuse = 0
        self.lead = False
        self.pending = 0
        self.n = 0
        self.slots: Slots = NO_SLOTS
        if conn is not None:
            conn.hits.add(self)

    def _look(self, reuse: int, pending: int = 0) -> None:
        """Takes what the lease holds now, as of the reply that carried `reuse`."""
        lease = self._lease
        if lease is not None:
            self.slots = lease.slots
            self.n = len(self.slots)
            self.pending = pending
            self._reuse = reuse

    def read(self, i: int, out: Target) -> bool:
        """Copies block i into `out`, or calls out(view) with a read-only view of it.

        `out`: writable bytes or an array, of block_bytes in all.  False: it holds nothing that may be used.
        """
        store = self._store
        try:
            slot = self._slot(i)
            if slot < 0 or self._pool is None:
                return False
            copy_out(self._pool.array[slot], out)
            if not self._right(slot):
                store.tally.add(refused_reads=1)
                return False
            store.tally.add(bytes_read=self._pool.block_bytes)
            return True
        except Exception as error:
            store._failed("read", error)
            return False

    def read_many(self, indices: Iterable[int], outs: Iterable[Target]) -> List[bool]:
        """read() of several blocks, in the order given."""
        return [self.read(i, out) for i, out in zip(indices, outs)]

    def view(self, i: int) -> Optional[Bytes]:
        """Block i where it lies, as read-only bytes; right while the hit is open.  None: there is none.

        Who computes from a view asks `still_right(i)` afterwards: the daemon may have come back without its
        memory meanwhile.
        """
        try:
            slot = self._slot(i)
            if slot < 0 or self._pool is None or not self._right(slot):
                return None
            view: Bytes = self._pool.array[slot]
            view.flags.writeable = False
            return view
        except Exception as error:
            self._store._failed("view", error)
            return None

    def still_right(self, i: int) -> bool:
        """Whether what was read of block i up to now may be used."""
        try:
            slot = self._slot(i)
            return slot >= 0 and self._right(slot)
        except Exception as error:
            self._store._failed("view", error)
            return False

    def _slot(self, i: int) -> int:
        """Where block i lies; -1: it cannot be read."""
        if self._lease is None or not 0 <= i < self.n or self._pid != os.getpid():
            return -1
        return int(self.slots[i])

    def _right(self, slot: int) -> bool:
        """Asked after reading: the pool is the daemon's, and the slot was not given to others."""
        conn, pool = self._conn, self._pool
        if conn is None or conn.ns is None or pool is None or self._lease is None:
            return False
        return conn.ns._opened.pool is pool and not pool.stale(slot, self._reuse)

    def insert(self, blocks: Iterable[Source], *, deadline: Optional[float] = None) -> int:
        """Stores the blocks that follow the first `n`, on this lease; -> how many of them are stored now.

        What a leader does with what it computed.  `n` and `slots` then name them too.  After a block that
        could not be copied or published in time this hit stores nothing more; BlockStore.insert() does.
        """
        if self._lease is None or self._conn is None or self._pid != os.getpid():
            return 0
        return self._store._insert_on(self, self._conn, self._lease, blocks, deadline)

    def close(self, *, over: bool = False, next_use: Optional[float] = None) -> None:
        """Gives the blocks back.  `over`: the conversation is over; `next_use`: seconds until it goes on."""
        conn, lease = self._conn, self._lease
        self._lease = None
        self.n = 0
        if lease is not None and conn is not None and self._pid == os.getpid():
            conn.hits.discard(self)
            conn.leave(lease, over, next_use)

    def forget(self) -> None:
        """Has the lease released by whoever gives the connection up; for those who hold its lock."""
        conn, lease = self._conn, self._lease
        self._lease = None
        self.n = 0
        if lease is not None and conn is not None:
            conn.hits.discard(self)
            conn.later.append((lease, False, None))

    def __enter__(self) -> Hit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"<Hit of {self.n} blocks{', leading' if self.lead else ''}>"

    def __del__(self) -> None:
        # Collected without close(): any thread may run this, in the middle of anything, so nothing is sent
        # and no lock is taken; who uses the connection next releases the lease.
        lease = getattr(self, "_lease", None)
        if lease is not None and self._conn is not None and self._pid == os.getpid():
            self._conn.later.append((lease, False, None))
