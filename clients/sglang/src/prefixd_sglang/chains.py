"""Chains of pages: a prefixd.BlockStore for keys that follow each other, wherever their first one hangs.

SGLang names a page by a hash over it and all before it, and asks for and stores runs of such names; what
comes before a run it tells only if it is told to.  A run is therefore looked up by the digest of its first
page (an island, in the protocol's words) and kept as one path: one lease moves many pages, and the daemon
gives up a run from its end, so that no page stays that cannot be reached.  Both ways of storing are found by
this one way of reading, which never needs to know what came before.
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from prefixd import BlockStore, Lease, Namespace, PrefixdError, ReserveResult, Status
from prefixd.connections import left

__all__ = ["ChainStore"]

# Page i of the caller's from or to a slot: (i, slot as uint8).
Copier = Callable[[int, np.ndarray], None]

_COMMIT = 32  # pages copied before they are committed: others find them while the rest is on its way
_LOAD_SHARE = 0.75  # of the time left goes to loads from lower tiers, the rest to reading what came
_TRIES = 3  # RESERVEs that may find no slot free, and rounds that may meet another's chain
_PAUSE = 0.005  # seconds between those


class ChainStore(BlockStore):
    """What BlockStore promises holds here: no exception, no wait past the deadline, no wrong bytes."""

    def count_chain(self, keys: Sequence[bytes], *, deadline: Optional[float] = None) -> int:
        """How many leading keys were stored a moment ago, in whichever tier."""
        found = self.contains(keys, deadline=deadline)
        return found.index(False) if False in found else len(found)

    def read_chain(self, keys: Sequence[bytes], copy: Copier, *, deadline: Optional[float] = None) -> int:
        """Reads leading blocks by copy(i, slot), the slot read-only; -> how many were right.

        What copy() made of later ones may not be used.
        """
        done = [0]

        def do(conn: Any, ns: Namespace, until: float) -> None:
            while done[0] < len(keys):
                before = done[0]
                time_left = left(until)
                lease = ns.match(
                    self.owner,
                    digests=b"".join(keys[before:]),
                    island=True,
                    promote=True,
                    no_tail=True,
                    load_deadline=_LOAD_SHARE * time_left,
                    deadline=time_left,
                )
                try:
                    self._read(lease, copy, done, until)
                finally:
                    _release(lease, until)
                if done[0] == before:
                    return

        if keys:
            self._run("read_chain", deadline, do)
        return done[0]

    def _read(self, lease: Lease, copy: Copier, done: List[int], until: float) -> None:
        reuse = lease.result.reuse
        if lease.result.loading:
            try:
                lease.load_wait(deadline=left(until))
                reuse = lease.extend(no_tail=True, deadline=left(until)).reuse
            except PrefixdError as error:
                if error.status != Status.DEADLINE:
                    raise
        pool = lease.pool
        for slot in lease.slots.tolist():
            left(until)
            row = pool.array[slot]
            row.flags.writeable = False
            copy(done[0], row)
            # The lease holds the block; should the daemon have forgotten the lease, this tells.
            if pool.stale(slot, reuse):
                return
            done[0] += 1

    def write_chain(
        self, keys: Sequence[bytes], copy: Copier, *, parent: bytes = b"", deadline: Optional[float] = None
    ) -> List[bool]:
        """Stores blocks by copy(i, slot), slots writable; -> for each key whether it is stored now.

        `parent`: the key before the first one, if it is known: where it is stored, the chain is hung below
        it.  Stored keys are not copied again, wherever they hang.
        """
        stored = [False] * len(keys)

        def do(conn: Any, ns: Namespace, until: float) -> None:
            for _ in range(_TRIES):
                # By bitmap, since the keys may lie in several chains of others, with holes between.
                there = ns.probe(self.owner, digests=b"".join(keys), bitmap=True, deadline=left(until)).bitmap
                stored[:] = [False] * len(keys) if there is None else there.tolist()
                try:
                    for first, end in _holes(stored):
                        before = keys[first - 1] if first else parent
                        self._write(ns, keys, first, end, before, copy, stored, until)
                    return
                except PrefixdError as error:
                    # Another stored one of these meanwhile in another place: look again where.
                    if error.status != Status.CONFLICT:
                        raise

        if keys:
            self._run("write_chain", deadline, do)
        return stored

    def _write(
        self, ns: Namespace, keys: Sequence[bytes], first: int, end: int, parent: bytes, copy: Copier,
        stored: List[bool], until: float,
    ) -> None:  # fmt: skip
        """Stores keys[first:end], of which none was there a moment ago, below the key before them.

        The lease holds what is above, too: a chain that fills the pool ends there, as BUSY, and does not push
        its own beginning out.
        """
        lease = ns.match(
            self.owner,
            digests=b"".join(keys[first:end]),
            parent=parent,
            island=True,
            no_tail=True,
            deadline=left(until),
        )
        try:
            at = first + len(lease.slots)
            stored[first:at] = [True] * (at - first)
            while at < end:
                got = _reserved(lease, min(end - at, _COMMIT), until)
                at = first + got.first
                room = lease.room
                for i, slot in enumerate(got.slots.tolist()):
                    left(until)
                    copy(at + i, room[slot])
                lease.commit(got.n, deadline=left(until))
                stored[at : at + got.n] = [True] * got.n
                at += got.n
        finally:
            _release(lease, until)


def _release(lease: Lease, until: float) -> None:
    """Gives the lease back within what is left of the call.

    Not answered: the request is on its way, or the connection ends, and with it what it held.
    """
    try:
        if not lease.ended:
            lease.release(deadline=max(until - time.monotonic(), _PAUSE))
    except PrefixdError:
        pass


def _reserved(lease: Lease, n: int, until: float) -> ReserveResult:
    for last in range(_TRIES - 1, -1, -1):
        try:
            return lease.reserve(n, deadline=left(until))
        except PrefixdError as error:
            if error.status != Status.BUSY or not last:
                raise
            time.sleep(min(error.retry_after or _PAUSE, _PAUSE, left(until)))
    raise AssertionError("the last try returns or raises")


def _holes(stored: Sequence[bool]) -> List[Tuple[int, int]]:
    """(first, end) of each run of keys that are not stored."""
    out: List[Tuple[int, int]] = []
    for i, there in enumerate(stored):
        if there:
            continue
        if out and out[-1][1] == i:
            out[-1] = (out[-1][0], i + 1)
        else:
            out.append((i, i + 1))
    return out
