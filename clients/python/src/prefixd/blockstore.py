"""The storage that an inference engine's cache interface wants, made from the client's calls.

A :class:`BlockStore` raises nothing and never waits past its deadline: what cannot be had is a miss, what
cannot be stored is not stored, and why is counted in :meth:`BlockStore.stats` and logged once per kind
and minute (logger "prefixd.blockstore").  Bytes are handed out only if they were right when they had been
read.  While no daemon answers, a call costs nothing but one attempt in `retry_every` seconds.

Threads: any number may call; each call borrows a connection (connections.py).  Fork: a child begins
without connections and leaves those of its parent alone; hits of the parent are misses in it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, TypeVar, Union

from . import many
from .calls import ISLAND, NO_TAIL, PROMOTE, micros
from .client import Client, Lease, Namespace
from .connections import Away, Connection, Connections, Gate, Late, left
from .errors import PrefixdError, Status
from .hit import Hit, Refused, Source, Target, copy_in
from .tally import Tally
from .values import KEYS_DIGEST, NamespaceOptions, Owner, ReserveResult, WaitState

__all__ = ["BlockStore", "Hit", "digest_of"]

Key = Union[bytes, bytearray, memoryview, str]
T = TypeVar("T")
Step = Callable[[Connection, Namespace, float], T]  # what a call does, until when

_LOAD_SHARE = 0.75  # of the time left goes to loads, the rest to fetch and read what came
_BUSY_TRIES = 3  # RESERVEs in a row that may find no slot free
_BUSY_SLEEP = 0.005  # seconds; longer waits are not worth an engine's time
_COMMIT_SHARE = 0.1  # of the time left is kept for the COMMIT of what was copied
_WINDOW = 64  # flat keys under way at a time; their leases hold as many blocks,
_WINDOW_SHARE = 8  # which are at most this part of the pool
# What says that asking again soon is of no use.
_NOT_NOW = frozenset(
    (
        Status.GONE,
        Status.PROTOCOL,
        Status.SELF_TEST,
        Status.FORBIDDEN,
        Status.BAD_NAMESPACE,
        Status.NO_BUDGET,
        Status.UNSUPPORTED,
        Status.DRAINING,
    )
)
# What is no single key's failure among many.
_ENDS = _NOT_NOW | {Status.DEADLINE}


def digest_of(key: Key, digest_len: int = 32) -> bytes:
    """The digest that stands for a key of another length, or for text: BLAKE2b with a tag.

    Keys of exactly `digest_len` bytes are digests already, and a store takes them as they are.  Text is
    hashed as UTF-8 and under another tag, so that it never is the same as bytes of the same content.
    """
    if isinstance(key, str):
        text = key.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=digest_len, person=b"prefixd-text").digest()
    return hashlib.blake2b(key, digest_size=digest_len, person=b"prefixd-bytes").digest()


class BlockStore:
    """Blocks of one namespace and owner, for an engine's cache; see the module for what it promises.

    `socket`: the daemon's (None: as for Client).  `options`: an identity's digests(...).  `owner`: whose
    prompts these are.  `deadline`: seconds that one call may take in all.  `retry_every`: seconds between
    attempts while no daemon answers.  `connections`: as many calls can be under way at a time.  `name`: for
    operators.

    Nothing is connected before the first call, and a daemon that is not there yet is a miss.  The
    constructor alone raises, PrefixdError with status ARGUMENT, where the options are of token mode.
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
        if not isinstance(owner, Owner):
            raise PrefixdError(Status.ARGUMENT, "an Owner(tenant, salt) is needed", "owner")
        self.options = options
        self.owner = owner
        self.deadline = deadline
        self.block_bytes = options.block_bytes
        self.digest_len = options.digest_len
        self.tally = Tally()
        self._retry_every = retry_every
        self._most = connections
        self._closed = False
        self._make = lambda: Client(socket, name=name, deadline=deadline)
        self._begin()
        _stores.add(self)

    def _begin(self) -> None:
        """No connections and no locks held: at first, and again in a child of a fork."""
        self._gate = Gate(self._retry_every)
        self._connections = Connections(self._make, self._most)

    # ---- asking ----

    def _run(self, what: str, deadline: Optional[float], do: Step[T]) -> Optional[T]:
        """Everything that asks the daemon goes through here; None: it failed, and that is counted.

        `do` gets a connection that nobody else uses meanwhile, the namespace, and when the call is to end.
        Subclasses build calls of their own on it; leases that `do` leaves in conn.later are released.
        """
        started = time.monotonic()
        until = started + (self.deadline if deadline is None else deadline)
        try:
            self._enter()
            conn = self._connections.borrow(until)
            try:
                return self._with(conn, until, do)
            finally:
                conn.give_up()
        except Exception as error:
            self._failed(what, error)
            return None
        finally:
            self.tally.add(seconds=time.monotonic() - started)

    def _enter(self) -> None:
        if self._closed:
            raise Away("the store was closed")
        if not self._gate.enter():
            raise Away("the daemon did not answer a moment ago")

    def _with(self, conn: Connection, until: float, do: Step[T]) -> T:
        if conn.ns is None:
            conn.ns = conn.client.open(self.options, deadline=left(until))
        done = do(conn, conn.ns, until)
        self._gate.good()
        self._connections.revive(until)
        return done

    def _failed(self, what: str, error: BaseException) -> None:
        """Counts, logs once a minute per kind, and decides whether the next call asks at all."""
        if isinstance(error, Away):
            self.tally.add(gone=1)
            self.tally.error("AWAY", logging.WARNING, "%s: going on without the cache: %s", what, error)
        elif isinstance(error, Late):
            self.tally.add(deadline=1)
            self.tally.error("LATE", logging.WARNING, "%s: the deadline passed: %s", what, error)
        elif isinstance(error, Refused):
            self.tally.error("ARGUMENT", logging.ERROR, "%s: %s", what, error)
        elif isinstance(error, PrefixdError):
            status = error.status
            if status == Status.DEADLINE:
                self.tally.add(deadline=1)
                self._gate.late()
            elif status in _NOT_NOW:
                self.tally.add(gone=1)
                self._gate.gone()
            name = status.name if isinstance(status, Status) else str(status)
            self.tally.error(name, logging.WARNING, "%s: %s", what, error)
        else:
            self.tally.error(type(error).__name__, logging.ERROR, "%s failed: %r", what, error, trace=True)

    def connect(self, deadline: float = 5.0) -> bool:
        """Connects and opens the namespace now, for which a new pool may take seconds; -> whether it is open.

        For an engine's start: later calls, with their short deadlines, then find everything prepared.
        """
        return bool(self._run("connect", deadline, lambda conn, ns, until: True))

    def close(self) -> None:
        """Gives back what open hits hold and ends the connections.  Every later call is a miss."""
        self._closed = True
        self._connections.close(self.deadline)

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> Dict[str, Any]:
        """The counters of tally.py since the store was made, and "errors": how many of which kind."""
        return self.tally.snapshot()

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
        `promote`: what lies in lower tiers is brought up, as far as the deadline allows.

        `lead`: what is missing and nobody computes, this worker will (Hit.lead); others that ask with
        `lead` wait for it.  What another computes is waited for, `wait` seconds at most on top of the
        deadline; when they are over, or too many wait already, `pending` says so and the engine computes.
        """
        self.tally.add(lookups=1)

        def do(conn: Connection, ns: Namespace, until: float) -> Hit:
            digests = self._digests(keys)
            return self._lookup(conn, ns, until, digests, promote, lead) if digests else Hit(self)

        if lead and wait > 0:
            hit = self._waiting(do, deadline, wait, len(keys))
        else:
            hit = self._run("lookup", deadline, do)
        if hit is None:
            hit = Hit(self)
        self.tally.add(hit_blocks=hit.n, missed_blocks=len(keys) - hit.n)
        return hit

    def _lookup(
        self, conn: Connection, ns: Namespace, until: float, digests: bytes, promote: bool, lead: bool
    ) -> Hit:
        lease = ns.match(
            self.owner,
            digests=digests,
            promote=promote,
            lead=lead,
            no_tail=True,
            load_deadline=_LOAD_SHARE * left(until),
            deadline=left(until),
        )
        hit = Hit(self, conn, lease)
        try:
            hit._look(lease.result.reuse, lease.result.n_pending)
            self._loaded(hit, lease, until)
        except BaseException:
            hit.forget()
            raise
        hit.lead = lead and not hit.pending and hit.n < len(digests) // self.digest_len
        return hit

    def _loaded(self, hit: Hit, lease: Lease, until: float) -> None:
        """Waits for a load that match() began; one that is late leaves the hit as it was."""
        if not lease.result.loading:
            return
        try:
            lease.load_wait(deadline=left(until))
            more = lease.extend(no_tail=True, deadline=left(until))
            hit._look(more.reuse, more.n_pending)
        except Late:
            self.tally.add(late_loads=1)
        except PrefixdError as error:
            if error.status != Status.DEADLINE:
                raise
            self.tally.add(late_loads=1)

    def _waiting(
        self,
        do: Step[Hit],
        deadline: Optional[float],
        wait: float,
        n: int,
    ) -> Optional[Hit]:
        """A lookup that may wait for others, on a connection that none of their hits is on."""
        started = time.monotonic()
        until = started + (self.deadline if deadline is None else deadline)
        try:
            self._enter()
            conn = self._connections.borrow_to_wait()
            if conn is None:
                return self._run("lookup", deadline, do)
            try:
                hit = self._with(conn, until, do)
                self._led(hit, time.monotonic() + wait, n)
                return hit
            finally:
                self._connections.waited()
                conn.give_up()
        except Exception as error:
            self._failed("lookup", error)
            return None
        finally:
            self.tally.add(seconds=time.monotonic() - started)

    def _led(self, hit: Hit, until: float, n: int) -> None:
        """Waits for what others compute, until all is there or it is this worker's turn."""
        lease = hit._lease
        try:
            while lease is not None and hit.n < n and not hit.lead and time.monotonic() < until:
                if not hit.pending:
                    hit.lead = True
                    return
                state = lease.wait(deadline=left(until))
                if state.state == WaitState.FAILED:
                    return
                hit.lead = state.state == WaitState.LEAD
                if state.n:
                    more = lease.extend(lead=True, no_tail=True, deadline=self.deadline)
                    hit._look(more.reuse, more.n_pending)
        except (PrefixdError, Late) as error:
            # Not there in time, or too many wait already: what was found is a hit all the same.
            status = error.status if isinstance(error, PrefixdError) else Status.DEADLINE
            if status not in (Status.DEADLINE, Status.BUSY):
                self._failed("lookup", error)

    def insert(
        self, keys: Sequence[Key], first: int, blocks: Sequence[Source], *, deadline: Optional[float] = None
    ) -> int:
        """Stores the blocks of keys[first : first + len(blocks)]; -> how many of them are stored now.

        They are counted from `first` on.  `keys` begins with the path's first block.  Those before `first`
        must be stored already: a path has no holes.  Blocks that are stored already count, and are not copied
        again.
        """
        self.tally.add(inserts=1)
        done = [0]

        def do(conn: Connection, ns: Namespace, until: float) -> None:
            if first < 0 or first + len(blocks) > len(keys):
                raise Refused(f"{len(blocks)} blocks from {first} on for {len(keys)} keys")
            self._insert(conn, ns, until, self._digests(keys[: first + len(blocks)]), first, blocks, done)

        if len(blocks):
            self._run("insert", deadline, do)
            self.tally.add(not_stored=len(blocks) - done[0])
        return done[0]

    def _insert(
        self,
        conn: Connection,
        ns: Namespace,
        until: float,
        digests: bytes,
        first: int,
        blocks: Sequence[Source],
        done: List[int],
    ) -> None:
        lease = ns.match(self.owner, digests=digests, no_tail=True, deadline=left(until))
        try:
            have = lease.result.n_device
            if have < first <= have + lease.result.n_host + lease.result.n_redis:
                have += self._raise(lease, until)
            done[0] = min(max(have - first, 0), len(blocks))
            self.tally.add(duplicates=done[0])
            if have < first:
                text = "insert: %d blocks before the first are not stored"
                self.tally.error("HOLE", logging.INFO, text, first - have)
                return
            self._fill(lease, first, blocks, done, until)
        except PrefixdError as error:
            if error.status == Status.CONFLICT:  # the text alone would say how many were stored before it
                found = ns.probe(self.owner, digests=digests, deadline=left(until)).n_device
                done[0] = max(done[0], min(found - first, len(blocks)))
            raise
        finally:
            conn.later.append((lease, False, None))

    def _raise(self, lease: Lease, until: float) -> int:
        """Brings up what lies lower: a path goes on only behind blocks of the pool; -> blocks that came."""
        share = _LOAD_SHARE * left(until)
        more = lease.extend(promote=True, no_tail=True, load_deadline=share, deadline=left(until))
        if not more.loading:
            return more.n_device
        lease.load_wait(deadline=left(until))
        return more.n_device + lease.extend(no_tail=True, deadline=left(until)).n_device

    def _insert_on(
        self, hit: Hit, conn: Connection, lease: Lease, blocks: Iterable[Source], deadline: Optional[float]
    ) -> int:
        """Hit.insert()."""
        self.tally.add(inserts=1)
        started = time.monotonic()
        until = started + (self.deadline if deadline is None else deadline)
        done, given = [0], list(blocks)
        try:
            if not conn.lock.acquire(timeout=max(until - time.monotonic(), 0)):
                raise Late("the hit's connection was in use")
            seen: List[int] = []
            try:
                self._fill(lease, hit.n, given, done, until, seen)
            finally:
                if seen:
                    hit._look(seen[-1])
                conn.give_up()
        except Exception as error:
            self._failed("insert", error)
        finally:
            self.tally.add(seconds=time.monotonic() - started, not_stored=len(given) - done[0])
        return done[0]

    def _fill(
        self,
        lease: Lease,
        first: int,
        blocks: Sequence[Source],
        done: List[int],
        until: float,
        seen: Optional[List[int]] = None,
    ) -> None:
        """Reserves, copies and commits blocks[done[0]:] as places first + ...; `seen` gets reuse counters.

        done[0] counts what is stored, also when this raises; the release gives back what was reserved.
        """
        tries = 0
        while done[0] < len(blocks):
            try:
                got = lease.reserve(len(blocks) - done[0], deadline=left(until))
            except PrefixdError as error:
                tries += 1
                if error.status != Status.BUSY or tries >= _BUSY_TRIES:
                    raise
                time.sleep(min(error.retry_after or _BUSY_SLEEP, _BUSY_SLEEP, left(until)))
                continue
            at = got.first - first
            if at < done[0]:
                raise Refused(f"place {got.first} of the path is free, before block {first + done[0]}")
            n, failure = self._copy(lease, got, blocks[at : at + got.n], until)
            try:
                if n:
                    said = lease.commit(n, deadline=left(until))
                    tries, done[0] = 0, at + n
                    self._stored(said.n_stored, said.n_duplicate)
                    if seen is not None:
                        seen.append(said.reuse)
            finally:
                if n < got.n or done[0] < at + n:
                    # Slots are reserved that nobody filled, or filled and not published.  COMMIT counts from
                    # the first reserved one on, so any later one could publish them for what they are not.
                    lease._doubt()
            if failure is not None:
                raise failure
            if not n:
                raise Refused(f"place {got.first} of the path is free, behind all {len(blocks)} blocks")

    def _copy(
        self, lease: Lease, got: ReserveResult, blocks: Sequence[Source], until: float
    ) -> tuple[int, Optional[Exception]]:
        """Fills slots in order; -> how many, and what stopped it.  Those may be committed, and no more."""
        stop = until - _COMMIT_SHARE * left(until)
        n = 0
        for slot, block in zip(got.slots.tolist(), blocks):
            try:
                if n and time.monotonic() > stop:
                    raise Late("copying took all the time")
                copy_in(lease.room[slot], block)
            except Exception as error:
                return n, error
            n += 1
        return n, None

    def _stored(self, n_stored: int, n_duplicate: int) -> None:
        n = n_stored + n_duplicate
        self.tally.add(stored=n_stored, duplicates=n_duplicate, bytes_written=n * self.block_bytes)

    # ---- flat keys ----

    def contains(self, keys: Sequence[Key], *, deadline: Optional[float] = None) -> List[bool]:
        """Whether each key was stored a moment ago, in whichever tier; it may be gone when asked for."""
        self.tally.add(contains=len(keys))
        if not len(keys):
            return []

        def do(conn: Connection, ns: Namespace, until: float) -> List[bool]:
            found = ns.probe(self.owner, digests=self._digests(keys), bitmap=True, deadline=left(until))
            return [] if found.bitmap is None else [bool(bit) for bit in found.bitmap]

        return self._run("contains", deadline, do) or [False] * len(keys)

    def get(
        self, keys: Sequence[Key], outs: Sequence[Target], *, deadline: Optional[float] = None
    ) -> List[bool]:
        """Reads the block of each key into the `outs` of the same place; -> for each whether it was there.

        Keys stand for themselves: whether others are there changes nothing.  False: the out holds nothing
        that may be used.
        """
        self.tally.add(gets=len(keys))
        done = [False] * len(keys)

        def do(conn: Connection, ns: Namespace, until: float) -> None:
            if len(outs) != len(keys):
                raise Refused(f"{len(outs)} outs for {len(keys)} keys")
            digests = [self._digest(key) for key in keys]
            n = _window(ns)
            for at in range(0, len(digests), n):
                self._get(conn, ns, until, digests[at : at + n], outs[at : at + n], done, at)

        if len(keys):
            self._run("get", deadline, do)
        n = sum(done)
        self.tally.add(hit_blocks=n, missed_blocks=len(keys) - n)
        return done

    def _get(
        self,
        conn: Connection,
        ns: Namespace,
        until: float,
        digests: Sequence[bytes],
        outs: Sequence[Target],
        done: List[bool],
        at: int,
    ) -> None:
        hits = self._each(conn, ns, until, digests, PROMOTE)
        try:
            for i, hit in enumerate(hits):
                if hit is None or hit._lease is None:
                    continue
                self._loaded(hit, hit._lease, until)
                if hit.n:
                    done[at + i] = hit.read(0, outs[i])
                    left(until)
        finally:
            for hit in hits:
                if hit is not None:
                    hit.forget()
            conn.release_later()

    def _each(
        self, conn: Connection, ns: Namespace, until: float, digests: Sequence[bytes], flags: int
    ) -> List[Optional[Hit]]:
        """A lease of each key, wherever its block hangs, in one round trip; None: refused, and counted."""
        leases = [Lease(ns) for _ in digests]
        call = conn.client._begin(left(until))
        share = micros(_LOAD_SHARE * left(until)) if flags & PROMOTE else 0
        steps = many.match_each(ns, call, self.owner, digests, flags | ISLAND | NO_TAIL, share, leases)
        errors = conn.client._run(call, steps)
        hits: List[Optional[Hit]] = []
        for lease, error in zip(leases, errors):
            hit = Hit(self, conn, lease) if error is None else None
            if hit is not None:
                hit._look(lease.result.reuse)
            hits.append(hit)
        try:
            self._refusals("match", errors)
        except PrefixdError:
            for hit in hits:
                if hit is not None:
                    hit.forget()
            raise
        return hits

    def _refusals(self, what: str, answers: Iterable[object]) -> None:
        """Counts what single keys were refused.  Raises what is no key's own failure: there was no answer."""
        for answer in answers:
            if isinstance(answer, PrefixdError):
                if answer.status in _ENDS:
                    raise answer
                self._failed(what, answer)

    def put(
        self, keys: Sequence[Key], blocks: Sequence[Source], *, deadline: Optional[float] = None
    ) -> List[bool]:
        """Stores a block for each key; -> for each whether it is stored now.

        Each key is an island of its own: nothing hangs below it, so that no other order of the same keys,
        and no path that has it, can contradict it.  A key that is stored already is not copied again; of
        one that comes twice the first block counts.
        """
        self.tally.add(puts=len(keys))
        done = [False] * len(keys)
        first: Dict[bytes, int] = {}  # digest -> its first place
        places: List[int] = []

        def do(conn: Connection, ns: Namespace, until: float) -> None:
            if len(blocks) != len(keys):
                raise Refused(f"{len(blocks)} blocks for {len(keys)} keys")
            for i, key in enumerate(keys):
                places.append(first.setdefault(self._digest(key), i))
            todo = list(first.items())
            n, tries = _window(ns), 0
            while todo:
                busy = self._put(conn, ns, until, todo[:n], blocks, done)
                tries = tries + 1 if len(busy) == len(todo[:n]) else 0
                if tries >= _BUSY_TRIES:
                    raise PrefixdError(Status.BUSY, f"no room for {len(todo)} blocks")
                todo = todo[n:] + busy

        if len(keys):
            self._run("put", deadline, do)
            done = [done[i] for i in places] if len(places) == len(keys) else done
        self.tally.add(not_stored=len(keys) - sum(done))
        return done

    def _put(
        self,
        conn: Connection,
        ns: Namespace,
        until: float,
        todo: Sequence[tuple[bytes, int]],
        blocks: Sequence[Source],
        done: List[bool],
    ) -> List[tuple[bytes, int]]:
        """Stores one window; -> those for which there was no room just now."""
        hits = self._each(conn, ns, until, [digest for digest, _ in todo], 0)
        busy: List[tuple[bytes, int]] = []
        try:
            fresh: List[tuple[Lease, tuple[bytes, int]]] = []
            for hit, one in zip(hits, todo):
                if hit is None or hit._lease is None:
                    continue
                found = hit._lease.result
                if found.n_device + found.n_host + found.n_redis:
                    done[one[1]] = True
                    self.tally.add(duplicates=1)
                else:
                    fresh.append((hit._lease, one))
            ready = self._filled(conn, until, fresh, blocks, busy)
            call = conn.client._begin(left(until))
            said = conn.client._run(call, many.commit_each(call, [lease for lease, _ in ready]))
            for (_, i), result in zip(ready, said):
                if not isinstance(result, PrefixdError):
                    done[i] = True
                    self._stored(result.n_stored, result.n_duplicate)
            self._refusals("put", said)
        finally:
            for hit in hits:
                if hit is not None:
                    hit.forget()
            conn.release_later()
        return busy

    def _filled(
        self,
        conn: Connection,
        until: float,
        fresh: Sequence[tuple[Lease, tuple[bytes, int]]],
        blocks: Sequence[Source],
        busy: List[tuple[bytes, int]],
    ) -> List[tuple[Lease, int]]:
        """Fills slots for keys that are not stored; -> leases and places.  `busy` gets those without one."""
        ready: List[tuple[Lease, int]] = []
        call = conn.client._begin(left(until))
        slots = conn.client._run(call, many.reserve_each(call, [lease for lease, _ in fresh]))
        for (lease, one), got in zip(fresh, slots):
            if isinstance(got, PrefixdError):
                if got.status == Status.BUSY:
                    busy.append(one)
                continue
            n, failure = self._copy(lease, got, [blocks[one[1]]], until)
            if n:
                ready.append((lease, one[1]))
            if failure is not None:
                self._failed("put", failure)
        self._refusals("put", (got for got in slots if not _is_busy(got)))
        return ready

    def _digest(self, key: Key) -> bytes:
        if isinstance(key, str) or len(key) != self.digest_len:
            return digest_of(key, self.digest_len)
        return bytes(key)

    def _digests(self, keys: Sequence[Key]) -> bytes:
        return b"".join([self._digest(key) for key in keys])


def _is_busy(answer: object) -> bool:
    return isinstance(answer, PrefixdError) and answer.status == Status.BUSY


def _window(ns: Namespace) -> int:
    return max(1, min(_WINDOW, ns.n_slots // _WINDOW_SHARE))


_stores: "weakref.WeakSet[BlockStore]" = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.tally.forked()
        store._begin()


os.register_at_fork(after_in_child=_after_fork)
