"""The storage that an inference engine's cache interface wants, made from the client's calls.

A :class:`BlockStore` raises nothing and never waits past its deadline: what cannot be had is a miss, what
cannot be stored is not stored, and why is counted in :meth:`BlockStore.stats` and logged once per kind
and minute (logger "prefixd.blockstore").  Bytes are handed out only if they were right when they had been
read.  While no daemon answers, a call costs nothing but one attempt in `retry_every` seconds.

Threads: any number may call.  Each call borrows one of at most `connections` connections, made when they
are needed, so threads that ended leave nothing behind.  Fork: a child begins with no connections and
leaves those of its parent alone; hits of the parent are misses in it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Sequence, Tuple, TypeVar, Union

import numpy as np

from .client import Client, Lease, Namespace
from .errors import PrefixdError, Status
from .pool import Pool
from .values import KEYS_DIGEST, NamespaceOptions, Owner, WaitState

__all__ = ["BlockStore", "Hit", "digest_of"]

log = logging.getLogger("prefixd.blockstore")

Key = Union[bytes, bytearray, memoryview, str]
# A block to store: its bytes, an array of as many bytes, or what fills the slot that it is given.
Source = Union[bytes, bytearray, memoryview, np.ndarray, Callable[[np.ndarray], Any]]
# Where a block goes: writable bytes, an array of as many bytes, or what takes them from the slot.
Target = Union[bytearray, memoryview, np.ndarray, Callable[[np.ndarray], Any]]
_Later = Tuple[Lease, bool, Optional[float]]  # with release()'s hints
T = TypeVar("T")

_SAY_EVERY = 60.0  # seconds between two log lines of a kind
_STRIKES = 3  # deadlines in a row after which the daemon counts as not answering
_LOAD_SHARE = 0.75  # of the time left goes to loads, the rest to fetch and read what came
_BUSY_TRIES = 3  # RESERVEs of one insert that may find no slot free
_BUSY_SLEEP = 0.005  # seconds; longer waits are not worth an engine's time
_RELEASE_LEAST = 0.005  # seconds that giving leases back may take though the call's time is over
# What says that asking again soon is of no use.
_NOT_NOW = frozenset(
    (
        Status.GONE, Status.PROTOCOL, Status.VERSION, Status.SELF_TEST, Status.FORBIDDEN, Status.BAD_NAMESPACE,
        Status.NO_BUDGET, Status.UNSUPPORTED, Status.DRAINING,
    )
)  # fmt: skip


def digest_of(key: Key, digest_len: int = 32) -> bytes:
    """The digest that stands for a key of another length, or for text: BLAKE2b with a tag.

    Keys of exactly `digest_len` bytes are digests already, and a store takes them as they are.  Text is
    UTF-8, and is never the same as bytes of the same content.
    """
    if isinstance(key, str):
        return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=digest_len, person=b"prefixd-text").digest()
    return hashlib.blake2b(key, digest_size=digest_len, person=b"prefixd-bytes").digest()


class _Away(Exception):
    """No connection to use now: closed, the daemon is away, or all are busy until the deadline."""


class _Late(Exception):
    """The deadline of the whole call has passed between two of its steps."""


class _Refused(Exception):
    """The caller's buffer, keys or callable are wrong: nothing was stored or read."""


class _Connection:
    """One session.  Whoever holds the lock uses it; hits that are open keep it alive."""

    def __init__(self, client: Client) -> None:
        self.lock = threading.Lock()
        self.client = client
        self.ns: Optional[Namespace] = None
        self.later: Deque[_Later] = deque()  # leases to be released by whoever uses it next
        self.hits: weakref.WeakSet[Hit] = weakref.WeakSet()
        self.life = 0
        self.boot = b""


class _Gate:
    """Whether it is worth asking: after a failure one attempt per `every` seconds goes through."""

    def __init__(self, every: float) -> None:
        self.every = every
        self.lock = threading.Lock()
        self.down_until: Optional[float] = None
        self.strikes = 0

    def enter(self) -> bool:
        if self.down_until is None:
            return True
        with self.lock:
            now = time.monotonic()
            if self.down_until is None:
                return True
            if now < self.down_until:
                return False
            self.down_until = now + self.every  # this caller is the attempt; the others go on without
            return True

    def closed(self) -> bool:
        until = self.down_until
        return until is not None and time.monotonic() < until

    def good(self) -> None:
        if self.strikes or self.down_until is not None:
            with self.lock:
                self.strikes, self.down_until = 0, None

    def gone(self) -> None:
        with self.lock:
            self.down_until = time.monotonic() + self.every

    def late(self) -> None:
        with self.lock:
            self.strikes += 1
            if self.strikes >= _STRIKES:
                self.down_until = time.monotonic() + self.every


class _Counters:
    """Numbers for operators, and a log line for the first failure of a kind in a minute."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: Dict[str, float] = dict.fromkeys(
            (
                "lookups", "hit_blocks", "missed_blocks", "inserts", "gets", "puts", "contains", "stored", "duplicates",
                "not_stored", "late_loads", "refused_reads", "deadline", "gone", "bytes_read", "bytes_written", "seconds",
            ),
            0,
        )  # fmt: skip
        self.errors: Dict[str, int] = {}
        self.said: Dict[str, float] = {}

    def add(self, **changes: float) -> None:
        with self.lock:
            for name, change in changes.items():
                self.values[name] += change

    def error(self, kind: str, level: int, text: str, *args: Any, trace: bool = False) -> None:
        now = time.monotonic()
        with self.lock:
            self.errors[kind] = self.errors.get(kind, 0) + 1
            if now - self.said.get(kind, -_SAY_EVERY) < _SAY_EVERY:
                return
            self.said[kind] = now
        log.log(level, text, *args, exc_info=trace)

    def snapshot(self) -> Dict[str, Any]:
        with self.lock:
            return {**self.values, "errors": dict(self.errors)}


class Hit:
    """Blocks of one lookup, held by a lease until close(); a context manager.

    `n`: blocks from the path's first one on that can be read.  `slots`: where they lie in the pool.
    `pending`: blocks behind those that another worker is computing.  `lead`: with ``lookup(lead=True)``,
    this worker is the one that computes what is missing; others wait until it has stored it or closes the
    hit.  Any thread may read and close; reading raises nothing.
    """

    def __init__(
        self, store: BlockStore, conn: Optional[_Connection] = None, lease: Optional[Lease] = None
    ) -> None:
        self._store = store
        self._conn = conn
        self._lease = lease
        self._pool: Optional[Pool] = lease.pool if lease is not None else None
        self._pid = os.getpid()
        self.lead = False
        self.pending = 0
        self.n = 0
        self.slots: np.ndarray = np.empty(0, np.int64)
        self._reuse = 0
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

        False: `out` holds nothing that may be used.
        """
        return self.read_many((i,), (out,))[0]

    def read_many(self, indices: Iterable[int], outs: Iterable[Target]) -> List[bool]:
        """read() of several blocks, in the order given."""
        return [self._read(i, out) for i, out in zip(indices, outs)]

    def _read(self, i: int, out: Target) -> bool:
        store = self._store
        try:
            pool = self._pool
            if pool is None or not self._readable(i):
                return False
            slot = int(self.slots[i])
            _copy_out(pool.array[slot], out)
            if not self._right(slot):
                store._counters.add(refused_reads=1)
                return False
            store._counters.add(bytes_read=pool.block_bytes)
            return True
        except Exception as error:
            store._failed("read", error)
            return False

    def view(self, i: int) -> Optional[np.ndarray]:
        """Block i where it lies, read-only bytes; right as long as the hit is open.  None: there is none.

        Whoever computes in it asks `still_right(i)` when done, if the daemon may have restarted meanwhile.
        """
        try:
            if self._pool is None or not self._readable(i):
                return None
            view = self._pool.array[int(self.slots[i])]
            view.flags.writeable = False
            return view
        except Exception as error:
            self._store._failed("view", error)
            return None

    def still_right(self, i: int) -> bool:
        """Whether what was read of block i up to now may be used."""
        try:
            return self._readable(i) and self._right(int(self.slots[i]))
        except Exception as error:
            self._store._failed("view", error)
            return False

    def _readable(self, i: int) -> bool:
        return 0 <= i < self.n and self._lease is not None and self._pid == os.getpid()

    def _right(self, slot: int) -> bool:
        """Asked after reading: the lease is still the daemon's, and the slot was not given to others."""
        conn, pool = self._conn, self._pool
        if conn is None or conn.ns is None or pool is None or self._lease is None:
            return False
        # Another life of the daemon, once this connection knows of it, makes every answer of the old one void.
        return conn.ns.life == pool.life and not pool.stale(slot, self._reuse)

    def insert(self, blocks: Iterable[Source], deadline: Optional[float] = None) -> int:
        """Stores the blocks that follow the first `n`, on this lease; -> how many of them are stored now.

        What a leader does with what it computed.  The hit's `n` and `slots` then name them too.
        """
        if self._lease is None or self._pid != os.getpid():
            return 0
        return self._store._insert_on(self, list(blocks), deadline)

    def close(self, over: bool = False, next_use: Optional[float] = None) -> None:
        """Gives the blocks back.  `over`: the conversation is over; `next_use`: it goes on in so many seconds.

        Does not wait for a connection that another thread is using: that one releases the lease then.
        """
        lease, self._lease = self._lease, None
        self.n = 0
        if lease is not None and self._conn is not None and self._pid == os.getpid():
            self._store._give_back(self._conn, lease, over, next_use)

    def __enter__(self) -> Hit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.n

    def __del__(self) -> None:
        # Collected without close(): any thread may run this, in the middle of anything, so nothing is
        # sent; whoever uses the connection next releases the lease.
        if getattr(self, "_lease", None) is not None and self._conn is not None and self._pid == os.getpid():
            self._conn.later.append((self._lease, False, None))


class BlockStore:
    """Blocks of one namespace and owner, for an engine's cache; see the module for what it promises.

    `socket`: the daemon's (None: as for Client).  `options`: an identity's digests(...).  `owner`: whose
    prompts these are.  `deadline`: seconds that one call may take in all.  `retry_every`: seconds between
    attempts while no daemon answers.  `connections`: as many calls can be under way at a time.

    Nothing is connected before the first call, and a daemon that is not there yet is a miss.
    """

    def __init__(
        self,
        socket: Optional[str],
        options: NamespaceOptions,
        owner: Owner,
        *,
        deadline: float = 0.05,
        retry_every: float = 1.0,
        connections: int = 16,
        name: str = "",
    ) -> None:
        if options.key_mode != KEYS_DIGEST:
            raise PrefixdError(Status.ARGUMENT, "keys are digests here: identity.digests(...)", "options")
        self.options = options
        self.owner = owner
        self.deadline = deadline
        self.block_bytes = options.block_bytes
        self.digest_len = options.digest_len
        self._socket = socket
        self._name = name
        self._max = max(1, connections)
        self._counters = _Counters()
        self._gate = _Gate(retry_every)
        self._closed = False
        self._begin()
        _stores.add(self)

    def _begin(self) -> None:
        """No connections, no locks held: at first, and again in a child of a fork."""
        self._lock = threading.Lock()
        self._connections: List[_Connection] = []
        self._turn = 0
        self._gate = _Gate(self._gate.every)
        self._counters.lock = threading.Lock()

    # ---- connections ----

    def _borrow(self, until: float) -> _Connection:
        """A connection whose lock is held.  Raises _Away, _Late."""
        if self._closed:
            raise _Away("the store was closed")
        if not self._gate.enter():
            raise _Away("the daemon did not answer a moment ago")
        for conn in self._connections:
            if conn.lock.acquire(blocking=False):
                return conn
        with self._lock:
            if len(self._connections) < self._max:
                conn = _Connection(Client(self._socket, name=self._name, deadline=self.deadline))
                conn.lock.acquire()
                self._connections = [*self._connections, conn]  # a new list: others walk through the old one
                return conn
            self._turn += 1
            conn = self._connections[self._turn % len(self._connections)]
        if not conn.lock.acquire(timeout=max(until - time.monotonic(), 0)):
            raise _Late("all connections were in use")
        return conn

    def _give_up(self, conn: _Connection, until: float) -> None:
        """The end of a call: releases what others left to be released, then the connection."""
        until = max(until, time.monotonic() + _RELEASE_LEAST)
        while True:
            self._release_later(conn, until)
            conn.lock.release()
            # Somebody may have left a lease after the last look, seeing the lock held.
            if not conn.later or time.monotonic() >= until or not conn.lock.acquire(blocking=False):
                return

    def _release_later(self, conn: _Connection, until: float) -> None:
        while conn.later and time.monotonic() < until:
            lease, over, next_use = conn.later.popleft()
            try:
                if not lease.ended:
                    lease.release(over=over, next_use=next_use, deadline=_left(until))
            except (PrefixdError, _Late) as error:
                self._failed("release", error)
                if not lease.ended:  # not a byte of the request has gone
                    conn.later.appendleft((lease, over, next_use))
                    return

    def _give_back(self, conn: _Connection, lease: Lease, over: bool = False, next_use: Optional[float] = None) -> None:
        """Releases a lease now, or leaves it to the thread that has the connection."""
        conn.later.append((lease, over, next_use))
        if self._gate.closed():
            return  # a daemon that does not answer gets it with the next call that goes through
        if conn.lock.acquire(blocking=False):
            self._give_up(conn, time.monotonic() + self.deadline)

    def _run(self, what: str, deadline: Optional[float], do: Callable[[_Connection, Namespace, float], T]) -> Optional[T]:
        """Everything that asks the daemon goes through here; None: it failed, and that is counted.

        `do` gets a connection that nobody else uses meanwhile, the namespace, and when the call is to end.
        """
        started = time.monotonic()
        until = started + (self.deadline if deadline is None else deadline)
        try:
            conn = self._borrow(until)
            try:
                if conn.ns is None:
                    conn.ns = conn.client.open(self.options, deadline=_left(until))
                done = do(conn, conn.ns, until)
                self._gate.good()
                self._after_loss(conn, until)
                return done
            finally:
                self._give_up(conn, until)
        except Exception as error:
            self._failed(what, error)
            return None
        finally:
            self._counters.add(seconds=time.monotonic() - started)

    def _after_loss(self, conn: _Connection, until: float) -> None:
        """Leases of a connection that broke while the daemon lived would hold their blocks until this process ends."""
        ns, client = conn.ns, conn.client
        if ns is None or conn.life == ns.life:
            return
        same = conn.life and conn.boot == client.boot
        conn.life, conn.boot = ns.life, client.boot
        if same:
            client.quiesced(deadline=_left(until))

    def _failed(self, what: str, error: BaseException) -> None:
        """Counts, logs once a minute per kind, and decides whether the next call asks at all."""
        if isinstance(error, _Away):
            self._counters.add(gone=1)
            self._counters.error("AWAY", logging.WARNING, "%s: going on without the cache: %s", what, error)
        elif isinstance(error, _Late):
            self._counters.add(deadline=1)
            self._counters.error("LATE", logging.WARNING, "%s: the deadline passed: %s", what, error)
        elif isinstance(error, _Refused):
            self._counters.error("ARGUMENT", logging.ERROR, "%s: %s", what, error)
        elif isinstance(error, PrefixdError):
            status = error.status
            if status == Status.DEADLINE:
                self._counters.add(deadline=1)
                self._gate.late()
            elif status in _NOT_NOW:
                self._counters.add(gone=1)
                self._gate.gone()
            name = status.name if isinstance(status, Status) else str(status)
            self._counters.error(name, logging.WARNING, "%s: %s", what, error)
        else:
            self._counters.error(type(error).__name__, logging.ERROR, "%s failed: %r", what, error, trace=True)

    def connect(self, deadline: float = 5.0) -> bool:
        """Connects and opens the namespace now, for which a new pool may take seconds; -> whether it is open.

        For an engine's start: later calls, with their short deadlines, then find all prepared.
        """
        return bool(self._run("connect", deadline, lambda conn, ns, until: True))

    def close(self) -> None:
        """Releases what open hits hold and ends the connections.  Every later call is a miss."""
        self._closed = True
        for conn in self._connections:
            if conn.lock.acquire(timeout=self.deadline):
                try:
                    for hit in list(conn.hits):
                        lease, hit._lease = hit._lease, None
                        if lease is not None:
                            conn.later.append((lease, False, None))
                    if not self._gate.closed():
                        self._release_later(conn, time.monotonic() + self.deadline)
                    conn.client.close()
                finally:
                    conn.lock.release()
        self._connections = []

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> Dict[str, Any]:
        """Counters since the store was made; "errors" by status, "seconds" spent in calls."""
        return self._counters.snapshot()

    # ---- paths ----

    def lookup(
        self,
        keys: Sequence[Key],
        *,
        lead: bool = False,
        wait: float = 0.0,
        promote: bool = True,
        deadline: Optional[float] = None,
    ) -> Hit:
        """What there is of a path, from its first block on, held until the hit is closed.

        `keys`: the digests of a prompt's blocks from its first one on, each naming all before it.
        `promote`: what lies in lower tiers is brought up, as far as the deadline allows.  `lead`: what nobody
        computes yet, this worker will (Hit.lead); what another computes is waited for, `wait` seconds at
        most, on top of the deadline.
        """
        self._counters.add(lookups=1)
        hit = self._run(
            "lookup",
            deadline,
            lambda conn, ns, until: self._lookup(conn, ns, until, self._digests(keys), lead, wait, promote),
        )
        if hit is None:
            hit = Hit(self)
        self._counters.add(hit_blocks=hit.n, missed_blocks=len(keys) - hit.n)
        return hit

    def _lookup(
        self, conn: _Connection, ns: Namespace, until: float, digests: bytes, lead: bool, wait: float, promote: bool
    ) -> Hit:
        if not digests:
            return Hit(self)
        n_keys = len(digests) // self.digest_len
        lease = ns.match(
            self.owner,
            digests=digests,
            promote=promote,
            lead=lead,
            no_tail=True,
            load_deadline=_LOAD_SHARE * _left(until),
            deadline=_left(until),
        )
        try:
            hit = Hit(self, conn, lease)
            hit._look(lease.result.reuse, lease.result.n_pending)
            self._loaded(hit, lease, lease.result.loading, until)
            if lead:
                self._led(hit, lease, n_keys, until, wait)
        except BaseException:
            hit._lease = None
            conn.later.append((lease, False, None))  # _give_up releases it
            raise
        return hit

    def _loaded(self, hit: Hit, lease: Lease, loading: bool, until: float) -> None:
        """Waits for a load and takes what it brought; a load that is late leaves the hit as it was."""
        if not loading:
            return
        try:
            lease.load_wait(deadline=_left(until))
            more = lease.extend(no_tail=True, deadline=_left(until))
            hit._look(more.reuse, more.n_pending)
        except _Late:
            self._counters.add(late_loads=1)
        except PrefixdError as error:
            if error.status != Status.DEADLINE:
                raise
            self._counters.add(late_loads=1)

    def _led(self, hit: Hit, lease: Lease, n_keys: int, until: float, wait: float) -> None:
        """Waits for what others compute, until it is there or this worker's turn."""
        wait_until = time.monotonic() + wait
        while hit.n < n_keys:
            if not hit.pending:
                hit.lead = True
                return
            left = wait_until - time.monotonic()
            if left <= 0:
                return
            try:
                state = lease.wait(deadline=left)
            except PrefixdError as error:
                # Not there in time, or too many wait already: what is missing is computed, not stored twice.
                if error.status in (Status.DEADLINE, Status.BUSY):
                    return
                raise
            if state.state == WaitState.FAILED:
                return
            if state.n or state.state == WaitState.READY:
                more = lease.extend(lead=True, no_tail=True, deadline=max(until - time.monotonic(), self.deadline))
                hit._look(more.reuse, more.n_pending)
            if state.state == WaitState.LEAD:
                hit.lead = True
                return

    def insert(
        self, keys: Sequence[Key], first: int, blocks: Sequence[Source], *, deadline: Optional[float] = None
    ) -> int:
        """Stores the blocks of keys[first : first + len(blocks)]; -> how many of them, from `first` on, are stored now.

        `keys` begins with the path's first block.  Those before `first` must be stored already: a path has
        no holes.  Blocks that are stored already are not copied again, and count.
        """
        self._counters.add(inserts=1)
        done = [0]

        def do(conn: _Connection, ns: Namespace, until: float) -> None:
            if first < 0 or first + len(blocks) > len(keys):
                raise _Refused(f"{len(blocks)} blocks from {first} on for {len(keys)} keys")
            self._insert(conn, ns, until, self._digests(keys[: first + len(blocks)]), first, blocks, done)

        if len(blocks):
            self._run("insert", deadline, do)
            self._counters.add(not_stored=len(blocks) - done[0])
        return done[0]

    def _insert(
        self, conn: _Connection, ns: Namespace, until: float, digests: bytes, first: int, blocks: Sequence[Source],
        done: List[int],
    ) -> None:  # fmt: skip
        lease = ns.match(self.owner, digests=digests, no_tail=True, deadline=_left(until))
        try:
            have = lease.result.n_device
            # Of the blocks before `first` some may lie lower: they count for the path only in the pool.
            if have < first <= have + lease.result.n_host + lease.result.n_redis:
                more = lease.extend(
                    promote=True, no_tail=True, load_deadline=_LOAD_SHARE * _left(until), deadline=_left(until)
                )
                have += more.n_device
                if more.loading:
                    lease.load_wait(deadline=_left(until))
                    have += lease.extend(no_tail=True, deadline=_left(until)).n_device
            done[0] = min(max(have - first, 0), len(blocks))
            self._counters.add(duplicates=done[0])
            if have < first:
                self._counters.error("HOLE", logging.INFO, "insert: %d blocks before the first are not stored", first - have)
                return
            self._fill(lease, first, blocks, done, until)
        except PrefixdError as error:
            if error.status == Status.CONFLICT:  # the text alone says how many were stored before it
                found = ns.probe(self.owner, digests=digests, deadline=_left(until)).n_device
                done[0] = max(done[0], min(found - first, len(blocks)))
            raise
        finally:
            conn.later.append((lease, False, None))

    def _insert_on(self, hit: Hit, blocks: Sequence[Source], deadline: Optional[float]) -> int:
        """Hit.insert()."""
        conn, lease = hit._conn, hit._lease
        if conn is None or lease is None or not blocks:
            return 0
        self._counters.add(inserts=1)
        started = time.monotonic()
        until = started + (self.deadline if deadline is None else deadline)
        done = [0]
        try:
            if not conn.lock.acquire(timeout=max(until - time.monotonic(), 0)):
                raise _Late("the connection of the hit was in use")
            try:
                reuse = self._fill(lease, hit.n, blocks, done, until)
                if reuse is not None:
                    hit._look(reuse)
            finally:
                self._give_up(conn, until)
        except Exception as error:
            self._failed("insert", error)
        finally:
            self._counters.add(seconds=time.monotonic() - started, not_stored=len(blocks) - done[0])
        return done[0]

    def _fill(
        self, lease: Lease, first: int, blocks: Sequence[Source], done: List[int], until: float
    ) -> Optional[int]:
        """Reserves, copies and commits blocks[done[0]:] of path places first + ...; -> the last reuse counter.

        Counts in done[0] what is stored.  On any failure what was reserved is given back by the release.
        """
        pool, reuse, tries = lease.pool, None, 0
        # What is copied must be committed too, for which there is to be time.
        copy_until = until - min(0.1 * self.deadline, 0.01)
        while done[0] < len(blocks):
            try:
                got = lease.reserve(len(blocks) - done[0], deadline=_left(until))
            except PrefixdError as error:
                tries += 1
                if error.status != Status.BUSY or tries >= _BUSY_TRIES:
                    raise
                time.sleep(min(error.retry_after or _BUSY_SLEEP, _BUSY_SLEEP, _left(until)))
                continue
            at = got.first - first
            if at < done[0]:
                raise _Refused(f"place {got.first} of the path is free, which is before block {first + done[0]}")
            n, failed = 0, None
            for slot, block in zip(got.slots.tolist(), blocks[at : at + got.n]):
                try:
                    if time.monotonic() > copy_until and n:
                        raise _Late("copying took all the time")
                    _copy_in(pool.array[slot], block)
                except Exception as error:
                    failed = error
                    break
                n += 1
            if n:
                said = lease.commit(n, deadline=_left(until))
                reuse = said.reuse
                done[0] = at + n
                self._counters.add(
                    stored=said.n_stored, duplicates=said.n_duplicate, bytes_written=n * self.block_bytes
                )
            if failed is not None:
                raise failed
        return reuse

    # ---- flat keys ----

    def contains(self, keys: Sequence[Key], *, deadline: Optional[float] = None) -> List[bool]:
        """Whether each key was stored a moment ago, in whichever tier; it may be gone when it is asked for."""
        self._counters.add(contains=len(keys))
        if not len(keys):
            return []
        found = self._run(
            "contains",
            deadline,
            lambda conn, ns, until: ns.probe(
                self.owner, digests=self._digests(keys), bitmap=True, deadline=_left(until)
            ).bitmap,
        )
        return [False] * len(keys) if found is None else found.tolist()

    def get(self, keys: Sequence[Key], outs: Sequence[Target], *, deadline: Optional[float] = None) -> List[bool]:
        """Reads the block of each key into the `outs` of the same place; -> for each whether it was there.

        Keys stand for themselves: whether others are there changes nothing.  False: the out holds nothing
        that may be used.
        """
        self._counters.add(gets=len(keys))
        done = [False] * len(keys)

        def do(conn: _Connection, ns: Namespace, until: float) -> None:
            if len(outs) != len(keys):
                raise _Refused(f"{len(outs)} outs for {len(keys)} keys")
            digests = [self._digest(key) for key in keys]
            for i, digest in enumerate(digests):
                self._get(conn, ns, until, digest, outs[i], done, i)

        if len(keys):
            self._run("get", deadline, do)
        n = sum(done)
        self._counters.add(hit_blocks=n, missed_blocks=len(keys) - n)
        return done

    def _get(
        self, conn: _Connection, ns: Namespace, until: float, digest: bytes, out: Target, done: List[bool], i: int
    ) -> None:
        hit = self._one(conn, ns, until, digest, True)
        try:
            done[i] = hit.read(0, out)
        finally:
            lease, hit._lease = hit._lease, None
            conn.later.append((lease, False, None))

    def _one(self, conn: _Connection, ns: Namespace, until: float, digest: bytes, promote: bool) -> Hit:
        """A lease of one key, wherever its block hangs."""
        lease = ns.match(
            self.owner,
            digests=digest,
            island=True,
            promote=promote,
            no_tail=True,
            load_deadline=_LOAD_SHARE * _left(until),
            deadline=_left(until),
        )
        hit = Hit(self, conn, lease)
        try:
            hit._look(lease.result.reuse)
            self._loaded(hit, lease, lease.result.loading, until)
        except BaseException:
            hit._lease = None
            conn.later.append((lease, False, None))
            raise
        return hit

    def put(self, keys: Sequence[Key], blocks: Sequence[Source], *, deadline: Optional[float] = None) -> List[bool]:
        """Stores a block for each key; -> for each whether it is stored now.

        Each key is an island of its own: nothing hangs below it, so that no other order of the same keys,
        and no path that has it, can contradict.  A key that is stored already is not copied again.
        """
        self._counters.add(puts=len(keys))
        done = [False] * len(keys)

        def do(conn: _Connection, ns: Namespace, until: float) -> None:
            if len(blocks) != len(keys):
                raise _Refused(f"{len(blocks)} blocks for {len(keys)} keys")
            first: Dict[bytes, int] = {}
            for i, key in enumerate(keys):
                digest = self._digest(key)
                j = first.setdefault(digest, i)
                if j < i:
                    done[i] = done[j]
                else:
                    self._put(conn, ns, until, digest, blocks[i], done, i)

        if len(keys):
            self._run("put", deadline, do)
        self._counters.add(not_stored=len(keys) - sum(done))
        return done

    def _put(
        self, conn: _Connection, ns: Namespace, until: float, digest: bytes, block: Source, done: List[bool], i: int
    ) -> None:
        hit = self._one(conn, ns, until, digest, False)
        lease = hit._lease
        assert lease is not None
        try:
            found = lease.result
            if found.n_device + found.n_host + found.n_redis:
                done[i] = True
                self._counters.add(duplicates=1)
                return
            stored = [0]
            self._fill(lease, 0, [block], stored, until)
            done[i] = stored[0] == 1
        except PrefixdError as error:
            if error.status != Status.BUSY:
                raise
            self._failed("put", error)
        finally:
            hit._lease = None
            conn.later.append((lease, False, None))

    def _digest(self, key: Key) -> bytes:
        if isinstance(key, str) or len(key) != self.digest_len:
            return digest_of(key, self.digest_len)
        return bytes(key)

    def _digests(self, keys: Sequence[Key]) -> bytes:
        return b"".join([self._digest(key) for key in keys])


def _left(until: float) -> float:
    """Seconds until then.  Raises _Late when there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise _Late("no time was left for the next step")
    return left


def _copy_in(row: np.ndarray, block: Source) -> None:
    """A block's bytes into its slot."""
    if callable(block) and not isinstance(block, np.ndarray):
        block(row)
        return
    if isinstance(block, np.ndarray):
        if block.nbytes != row.nbytes:
            raise _Refused(f"a block of {block.nbytes} bytes where blocks have {row.nbytes}")
        # Straight from where it lies, in order or not.
        np.copyto(row.view(block.dtype).reshape(block.shape), block)
        return
    data = np.frombuffer(block, np.uint8)
    if data.nbytes != row.nbytes:
        raise _Refused(f"a block of {data.nbytes} bytes where blocks have {row.nbytes}")
    np.copyto(row, data)


def _copy_out(row: np.ndarray, out: Target) -> None:
    """A slot's bytes to where they are wanted."""
    row = row[:]
    row.flags.writeable = False
    if callable(out) and not isinstance(out, np.ndarray):
        out(row)
        return
    if isinstance(out, np.ndarray):
        if out.nbytes != row.nbytes:
            raise _Refused(f"room for {out.nbytes} bytes where blocks have {row.nbytes}")
        np.copyto(out, row.view(out.dtype).reshape(out.shape))
        return
    data = np.frombuffer(out, np.uint8)
    if data.nbytes != row.nbytes:
        raise _Refused(f"room for {data.nbytes} bytes where blocks have {row.nbytes}")
    np.copyto(data, row)


_stores: weakref.WeakSet[BlockStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._begin()


os.register_at_fork(after_in_child=_after_fork)
