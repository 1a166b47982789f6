"""The calls on namespaces and leases, once for both shells.

`NamespaceCore` and `LeaseCore` hold the state and give each call as steps (core.py); client.py and aio.py
add the methods that run them.

What is guaranteed.  A prompt longer than the daemon's limits goes as one MATCH and as many EXTENDs as it
takes, and a reply that was cut is fetched the same way: the caller sees one result, or none, and then the
lease of the first part is given back.  A lease whose extend, reserve or commit lost its answer may have
changed without its holder's knowledge: a later commit could publish slots that nobody filled.  It answers
WRONG_STATE to all but release.  A lease of another life is UNKNOWN_LEASE here, no daemon is asked, which
could have given the same number to somebody else.
"""

from __future__ import annotations

import os
import time
import warnings
from typing import Any, Dict, List, Optional

import numpy as np
import numpy.typing as npt

from . import keys as keys_of
from . import values as v
from .core import READ, Call, Load, Lost, Opened, Session, Steps
from .errors import PrefixdError, Status
from .keys import NO_SLOTS, NO_TOKENS, Digests, Extra, Keys, Tokens, argument
from .pool import Pool
from .wire import DIGEST_MAX, HEADER_LEN, NO_ID, OPS

PROMOTE, ISLAND, NO_TAIL, LEAD, EXACT = 1, 2, 4, 8, 16
_HAS_ALL = 7
_U32_MAX = 0xFFFFFFFF
_WAITING, _AT_DEADLINE = 1, 4
CHECKSUM_XXH3 = 1


def micros(seconds: float) -> int:
    """Seconds as the wire's microseconds: at least 1, for 0 means no limit there."""
    return min(max(int(seconds * 1e6), 1), _U32_MAX)


def whole(field: str, value: int, top: int = _U32_MAX) -> int:
    """An integer of the caller's that fits into its field."""
    try:
        number = int(value.__index__())
    except AttributeError:
        raise argument(field, f"{value!r} is no integer") from None
    if not 0 <= number <= top:
        raise argument(field, f"{number} is not within 0 and {top}")
    return number


class Asked:
    """What a call asks about: keys with their place in the prompt, and what goes with each part."""

    def __init__(self, keys: Keys, n_tokens: int, flags: int, parent: bytes, load_us: int, decision: bytes):
        self.keys = keys
        self.n_tokens = n_tokens
        self.flags = flags
        self.parent = parent
        self.load_us = load_us
        self.decision = decision


class Walk:
    """MATCH and EXTENDs in progress: what was sent, and what the replies so far add up to."""

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.done = 0
        self.more = False
        self.n_device = 0
        self.slots: List[v.Slots] = []
        self.reply: Dict[str, Any] = {}
        self.load: Optional[Load] = None
        self.n_lossy = 0
        self.first_lossy = 0
        self._lossy_device = 0

    def lossy(self, rep: Dict[str, Any]) -> None:
        """Adds what a reply says of blocks that a codec has changed.

        Of lower tiers each reply speaks anew, of device copies once.
        """
        told = rep.get("n_lossy", 0)
        device = min(max(told - rep["n_host"] - rep["n_redis"], 0), rep["n_device"])
        if told and (not self.n_lossy or rep["first_lossy"] < self.first_lossy):
            self.first_lossy = rep["first_lossy"]
        self._lossy_device += device
        self.n_lossy = self._lossy_device + told - device


class NamespaceCore:
    """An open namespace; see client.Namespace and aio.Namespace."""

    def __init__(self, session: Session, opened: Opened) -> None:
        self._session = session
        self._opened = opened

    # ---- what OPEN said ----

    @property
    def options(self) -> v.NamespaceOptions:
        return self._opened.options

    @property
    def id(self) -> int:
        """Its number in this life of the daemon."""
        return int(self._opened.info["ns"])

    @property
    def group(self) -> int:
        """Namespaces of one group share one pool."""
        return int(self._opened.info["group"])

    @property
    def key_len(self) -> int:
        """Bytes of one key."""
        return int(self._opened.info["key_len"])

    @property
    def block_tokens(self) -> int:
        return int(self._opened.info["block_tokens"])

    @property
    def block_bytes(self) -> int:
        return int(self._opened.info["block_bytes"])

    @property
    def n_slots(self) -> int:
        return int(self._opened.info["n_slots"])

    @property
    def n_write(self) -> int:
        """Blocks that may be reserved at a time, where workers do not write into the pool; else 0."""
        return int(self._opened.info.get("n_write", 0))

    @property
    def digest(self) -> bytes:
        """32 bytes that differ whenever any field of the options does."""
        return bytes(self._opened.info["digest"])

    @property
    def seed_mismatch(self) -> bool:
        """The same namespace is open with another seed probe: blocks of the two are not shared."""
        return bool(self._opened.info["flags"] & 1)

    @property
    def life(self) -> int:
        """Counts the client's connections: leases of another one mean nothing in this."""
        return self._opened.life

    @property
    def pool(self) -> Pool:
        """The pool, another one after a restart of a daemon that did not keep it.

        For the slots of a lease take the lease's, which cannot change under it.
        """
        if self._opened.pool is None:
            raise PrefixdError(Status.WRONG_STATE, 'the namespace was opened with map="no"', "map")
        return self._opened.pool

    # ---- prompts ----

    def _keys(
        self,
        tokens: Optional[Tokens],
        digests: Optional[Digests],
        extra: Optional[Extra],
        before: keys_of.U32 = NO_TOKENS,
    ) -> Keys:
        if self.options.key_mode == v.KEYS_DIGEST:
            if tokens is not None or extra is not None:
                raise argument("tokens", "this namespace's keys are digests")
            if digests is None:
                raise argument("digests", "a prompt is needed, empty if there are none")
            return keys_of.of_digests(digests, self.block_tokens, self.key_len)
        if digests is not None:
            raise argument("digests", "this namespace's keys are tokens")
        if tokens is None:
            raise argument("tokens", "a prompt is needed, empty if there are none")
        return keys_of.of_tokens(tokens, self.block_tokens, self.key_len, extra, before)

    def _root(self, owner: v.Owner) -> Dict[str, Any]:
        """Namespace, tenant and salt: what every prompt begins below.  The session is connected."""
        tenant = owner.tenant
        if isinstance(tenant, str):
            number = self._session.tenants.get(tenant)
            if number is None:
                known = ", ".join(sorted(self._session.tenants))
                raise PrefixdError(
                    Status.FORBIDDEN, f"{tenant!r} is none that this process may use: {known}", "tenant"
                )
            tenant = number
        return {"has": _HAS_ALL, "ns": self.id, "tenant": tenant, "salt": owner.salt}

    def _per_frame(self, other: int) -> int:
        """Keys that fit into one frame beside `other` bytes."""
        room = self._session.max_frame - HEADER_LEN - 128 - other
        return max(min(room // self.key_len, self._session.max_keys), 0)

    def _count(self, keys: Keys, n_tokens: Optional[int]) -> int:
        return keys.n_tokens if n_tokens is None else whole("n_tokens", n_tokens, 1 << 48)

    # ---- MATCH and EXTEND ----

    def _walk(self, call: Call, root: Optional[Dict[str, Any]], walk: Walk, asked: Asked) -> Steps[None]:
        """All parts from `done` on.  Raises Lost too."""
        keys = asked.keys
        per_frame = self._per_frame(len(asked.parent) + 4 * keys.tail.size + _salt_len(root))
        if not per_frame and keys.n:
            raise PrefixdError(
                Status.LIMIT, f"no key fits into the daemon's frames of {self._session.max_frame} bytes"
            )
        tail = keys.tail.tobytes()
        while True:
            n = 0 if walk.more else min(keys.n - walk.done, per_frame)
            last = walk.done + n == keys.n
            # A load is of all keys or of none: the last part asks for it.
            flags = asked.flags if last else asked.flags & ~PROMOTE
            if self._session.version < 3:
                flags &= ~EXACT  # a daemon that does not know it codes nothing
            values = {
                "op_id": self._session.op_id(),
                "flags": flags,
                "deadline_us": asked.load_us if asked.load_us and flags & PROMOTE else call.left_us(),
                "n_tokens": asked.n_tokens,
                "parent": asked.parent if walk.done == 0 else b"",
                "keys": keys.data[walk.done * self.key_len : (walk.done + n) * self.key_len],
                "tail": tail if last else b"",
            }
            if root is not None and not walk.lease:
                op = "MATCH"
                values.update(root, decision_id=asked.decision)
            else:
                op = "EXTEND"
                values.update(lease=walk.lease, flags=flags & ~(ISLAND | EXACT))
            slot, rep = yield from self._session.exchange(call, op, values)
            self._part(walk, op, rep)
            walk.done += n
            whole_path = last and not walk.more
            if flags & PROMOTE and whole_path and rep["n_host"] + rep["n_redis"] and not rep["advice"]:
                walk.load = self._session.loading(slot, walk.lease)
            if whole_path:
                return

    def _part(self, walk: Walk, op: str, rep: Dict[str, Any]) -> None:
        if op == "MATCH":
            walk.lease = rep["lease"]
            if not walk.lease:
                raise self._session.bad_reply(op, "lease")
        try:
            slots = keys_of.slots_of(rep["runs"], rep["n_device"], self.n_slots)
        except PrefixdError:
            raise self._session.bad_reply(op, "runs") from None
        if rep["tail_tokens"] and (
            rep["tail_tokens"] >= self.block_tokens or rep["tail_slot"] >= self.n_slots
        ):
            raise self._session.bad_reply(op, "tail_tokens")
        if slots.size:
            walk.slots.append(slots)
        walk.lossy(rep)
        walk.n_device += rep["n_device"]
        walk.more = bool(rep["more"])
        # Each reply speaks of the whole path so far, so the last one is right about its end.
        walk.reply = rep

    def _reuse(self, counter: int) -> int:
        # Without a mapping nobody can look whether a slot is stale, so then it does not matter.
        pool = self._opened.pool
        return counter if pool is None else pool.reuse(counter)

    def _result(self, walk: Walk, loading: bool) -> v.MatchResult:
        rep = walk.reply
        return v.MatchResult(
            walk.n_device, rep["n_host"], rep["n_redis"], rep["n_pending"], rep["tail_tokens"],
            rep["tail_slot"], rep["advice"], v.code(v.Reason, rep["reason"]), rep["load_us"],
            rep["miss_token"], self._reuse(rep["reuse"]), rep["root"],
            joined(walk.slots), loading, walk.n_lossy, walk.first_lossy,
        )

    def _match(self, call: Call, owner: v.Owner, asked: Asked, lease: "LeaseCore") -> Steps[None]:
        """Fills the lease."""
        check_owner(owner)

        def once() -> Steps[None]:
            walk = Walk(0)
            try:
                yield from self._walk(call, self._root(owner), walk, asked)
            except BaseException:
                if walk.lease:
                    self._session.orphan(walk.lease, self._session.life)
                raise
            lease._begun(walk, asked)

        yield from self._session.retried(call, self._opened, once)

    def _asked(
        self,
        keys: Keys,
        n_tokens: int,
        parent: bytes,
        flags: int,
        load_deadline: Optional[float],
        decision: bytes = NO_ID,
    ) -> Asked:
        if len(parent) > DIGEST_MAX:
            raise argument("parent", f"a digest has at most {DIGEST_MAX} bytes")
        if len(decision) not in (0, 16):
            raise argument("decision_id", "it has 16 bytes")
        load = 0 if load_deadline is None else micros(load_deadline)
        return Asked(keys, n_tokens, flags, bytes(parent), load, bytes(decision) or NO_ID)

    # ---- PROBE, EXPLAIN, PREFETCH, REPORT ----

    def _probe(
        self, call: Call, owner: v.Owner, keys: Keys, n_tokens: int, bitmap: bool
    ) -> Steps[v.ProbeResult]:
        check_owner(owner)

        def once() -> Steps[v.ProbeResult]:
            root = self._root(owner)
            per_frame = self._per_frame(_salt_len(root))
            if not per_frame and keys.n:
                raise PrefixdError(Status.LIMIT, "no key fits into the daemon's frames")
            found = np.zeros(keys.n, np.bool_)
            # A token key is known by its path only, which PROBE cannot go on with; digests by themselves.
            parts = bitmap and self.options.key_mode == v.KEYS_DIGEST
            done = 0
            first: Dict[str, Any] = {}
            while True:
                n = min(keys.n - done, per_frame)
                values = {
                    **root,
                    "flags": int(bitmap),
                    "n_tokens": n_tokens,
                    "keys": keys.data[done * self.key_len : (done + n) * self.key_len],
                }
                rep = yield from self._session.request(call, "PROBE", values)
                raw = np.frombuffer(rep["bitmap"], np.uint8)
                if bitmap and 8 * raw.size < n:
                    raise self._session.bad_reply("PROBE", "bitmap")
                if bitmap:
                    found[done : done + n] = np.unpackbits(raw, bitorder="little")[:n]
                first = first or rep
                done += n
                if not parts or done == keys.n:
                    break
            return v.ProbeResult(
                first["n_device"], first["n_host"], first["n_redis"], first["root"], found if bitmap else None
            )

        return (yield from self._session.retried(call, self._opened, once))

    def _explain(self, call: Call, owner: v.Owner, keys: Keys, n_tokens: int) -> Steps[v.ExplainResult]:
        check_owner(owner)

        def once() -> Steps[v.ExplainResult]:
            root = self._root(owner)
            most = self._per_frame(_salt_len(root) + 4 * keys.tail.size)
            if keys.n > most:
                raise PrefixdError(Status.LIMIT, f"EXPLAIN takes {most} keys here, not {keys.n}")
            values = {**root, "n_tokens": n_tokens, "keys": keys.data, "tail": keys.tail.tobytes()}
            rep = yield from self._session.request(call, "EXPLAIN", values)
            return v.ExplainResult(
                rep["matched_tokens"], rep["position"], v.code(v.Reason, rep["reason"]),
                rep["own_token"] if rep["has_tokens"] & 1 else None,
                rep["stored_token"] if rep["has_tokens"] & 2 else None,
                rep["lost_tokens"], rep["text"],
            )

        return (yield from self._session.retried(call, self._opened, once))

    def _prefetch(
        self, call: Call, owner: v.Owner, keys: Keys, n_tokens: int, load_deadline: Optional[float]
    ) -> Steps[v.PrefetchResult]:
        check_owner(owner)

        def once() -> Steps[v.PrefetchResult]:
            root = self._root(owner)
            n = min(keys.n, self._per_frame(_salt_len(root)))
            values = {
                **root,
                "op_id": self._session.op_id(),
                "deadline_us": 0 if load_deadline is None else micros(load_deadline),
                "n_tokens": n_tokens,
                "keys": keys.data[: n * self.key_len],
            }
            rep = yield from self._session.request(call, "PREFETCH", values)
            return v.PrefetchResult(rep["n_device"], rep["n_host"], rep["n_redis"])

        return (yield from self._session.retried(call, self._opened, once))

    def _report(
        self, call: Call, ttft: float, tpot: float, input_tokens: int, running: int, waiting: int
    ) -> Steps[None]:
        def once() -> Steps[None]:
            values = {
                "ns": self.id,
                "ttft_us": min(max(int(ttft * 1e6), 0), _U32_MAX),
                "tpot_us": min(max(int(tpot * 1e6), 0), _U32_MAX),
                "input_tokens": whole("input_tokens", input_tokens),
                "running": whole("running", running),
                "waiting": whole("waiting", waiting),
            }
            yield from self._session.request(call, "REPORT", values)

        yield from self._session.retried(call, self._opened, once)


def flags(promote: bool, island: bool, no_tail: bool, lead: bool, exact: bool = False) -> int:
    """MATCH's flags."""
    some = PROMOTE * bool(promote) | ISLAND * bool(island) | NO_TAIL * bool(no_tail)
    return some | LEAD * bool(lead) | EXACT * bool(exact)


def _salt_len(root: Optional[Dict[str, Any]]) -> int:
    return len(root["salt"]) if root else 0


def joined(slots: List[v.Slots]) -> v.Slots:
    if not slots:
        return NO_SLOTS
    return slots[0] if len(slots) == 1 else np.concatenate(slots)


def check_owner(owner: v.Owner) -> None:
    if owner is None:
        raise PrefixdError(Status.MISSING_FIELD, "say whose prompt it is: there is no default", "tenant")
    if not isinstance(owner, v.Owner):
        raise argument("owner", "an Owner(tenant, salt) is needed")


class LeaseCore:
    """A hold on a path of blocks; see client.Lease and aio.Lease."""

    _ended = True  # until MATCH has filled it

    def __init__(self, ns: NamespaceCore) -> None:
        self._ns = ns
        self._session = ns._session

    def _begun(self, walk: Walk, asked: Asked) -> None:
        self._wire = walk.lease
        self._life = self._session.life
        self._session.held(self._wire)
        self._pool = self._ns._opened.pool
        self._room = self._ns._opened.room
        self._ended = False
        self._doubtful = False
        self._n_tokens = asked.n_tokens
        self._n_keys = asked.keys.n
        self._tail = asked.keys.tail
        self._parts = walk.slots
        self._n_path = walk.n_device
        self._reserved = 0
        self._load = walk.load
        self._result = self._ns._result(walk, walk.load is not None)

    # ---- looking ----

    @property
    def result(self) -> v.MatchResult:
        """What MATCH found."""
        return self._result

    @property
    def slots(self) -> v.Slots:
        """Device slots of the path from its first block on, as far as they are known; a row of int64."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else NO_SLOTS

    @property
    def pool(self) -> Pool:
        """The pool that the slots of this lease lie in, also after a restart of the daemon."""
        if self._pool is None:
            raise PrefixdError(Status.WRONG_STATE, 'the namespace was opened with map="no"', "map")
        return self._pool

    @property
    def room(self) -> npt.NDArray[np.uint8]:
        """Where reserved slots are written, a row each: the pool, or this client's own memory.

        The second where the daemon lets nobody write into pools (its option pool-write=staged): there a row
        is free for another block once commit() has returned.
        """
        return self.pool.array if self._room is None else self._room

    @property
    def n_reserved(self) -> int:
        """Blocks that are reserved and not committed."""
        return self._reserved

    @property
    def ended(self) -> bool:
        """Released, or its connection has ended.

        In the second case its blocks stay until release(): what reads or writes them may go on.
        """
        return self._ended or not self._alive()

    def _alive(self) -> bool:
        return self._session.connected and self._session.life == self._life

    def __del__(self) -> None:
        # Nothing may be asked here, whatever is going on: the next request takes it along.
        if not hasattr(self, "_wire") or os.getpid() != self._session.pid:
            return
        ended = self._ended or not self._alive()
        self._done()
        if ended:
            return
        self._session.orphan(self._wire, self._life)
        warnings.warn(f"{self!r} was not released", ResourceWarning, source=self)

    def __repr__(self) -> str:
        if not hasattr(self, "_wire"):
            return f"<{type(self).__name__}>"
        return f"<{type(self).__name__} {self._wire:#x}: {self._n_path} blocks>"

    # ---- calls ----

    def _done(self) -> None:
        """Nothing of it is read or written any more: released, or as good as that."""
        self._ended = True
        if hasattr(self, "_wire"):
            self._session.let_go(self._wire, self._life)

    def _use(self, release: bool = False) -> None:
        if self._ended:
            raise PrefixdError(Status.UNKNOWN_LEASE, "the lease was released", "lease")
        if not self._alive():
            self._ended = True
            raise PrefixdError(Status.UNKNOWN_LEASE, "the connection of the lease has ended", "lease")
        if self._doubtful and not release:
            raise PrefixdError(
                Status.WRONG_STATE, "an earlier call on the lease lost its answer: release it", "lease"
            )

    def _failed(self, call: Call, error: BaseException, changed: bool) -> None:
        if isinstance(error, PrefixdError) and error.status == Status.UNKNOWN_LEASE:
            self._done()
        elif isinstance(error, PrefixdError) and error.status in (Status.REVOKED, Status.DEVICE_LOST):
            self._session.unsettled(self._wire)
        elif changed or call.doubt:
            self._doubt()

    def _doubt(self) -> None:
        """It may have changed without its holder's knowledge."""
        self._doubtful = True
        if self._alive():
            self._session.unsettled(self._wire)

    def _gone(self, call: Call) -> Steps[PrefixdError]:
        """After Lost: what the caller is told once it is known whether a daemon is there again."""
        self._ended = True
        yield from self._session.ready(call)
        text = "the daemon was restarted or closed the connection: the lease ended with it"
        return PrefixdError(Status.UNKNOWN_LEASE, text, "lease")

    def _extend(self, call: Call, asked: Asked) -> Steps[v.MatchResult]:
        self._use()
        walk = Walk(self._wire)
        try:
            yield from self._ns._walk(call, None, walk, asked)
        except Lost:
            raise (yield from self._gone(call)) from None
        except BaseException as error:
            self._failed(call, error, walk.done > 0)
            raise
        self._parts = self._parts + walk.slots
        self._n_path += walk.n_device
        self._n_keys += asked.keys.n
        self._tail = asked.keys.tail
        self._n_tokens = asked.n_tokens
        # A lease has one load at a time: one that has not ended runs still, and no other was begun.
        if walk.load is not None and (self._load is None or self._load.end is not None):
            self._load = walk.load
        return self._ns._result(walk, self._load is not None)

    def _more(
        self,
        tokens: Optional[Tokens],
        digests: Optional[Digests],
        extra: Optional[Extra],
        n_tokens: Optional[int],
        parent: bytes,
        flags: int,
        load_deadline: Optional[float],
    ) -> Asked:
        """What an extend asks: its tokens go on where the prompt that is known ended, its tail included."""
        self._use()
        ns = self._ns
        if ns.options.key_mode == v.KEYS_DIGEST:
            keys = ns._keys(tokens, b"" if digests is None else digests, extra)
        else:
            keys = ns._keys(NO_TOKENS if tokens is None else tokens, digests, extra, self._tail)
        counted = max(self._n_tokens, self._n_keys * ns.block_tokens + keys.n_tokens)
        n = counted if n_tokens is None else whole("n_tokens", n_tokens, 1 << 48)
        return ns._asked(keys, n, parent, flags, load_deadline)

    def _reserve(self, call: Call, n: int) -> Steps[v.ReserveResult]:
        self._use()
        values = {
            "op_id": self._session.op_id(),
            "lease": self._wire,
            "n": whole("n", n),
            "deadline_us": call.left_us(),
        }
        try:
            rep = yield from self._session.request(call, "RESERVE", values)
            if rep["n"] > n or not rep["n"]:
                raise self._session.bad_reply("RESERVE", "n")
            slots = self._slots_of("RESERVE", rep, rep["n"])
        except Lost:
            raise (yield from self._gone(call)) from None
        except BaseException as error:
            self._failed(call, error, False)
            raise
        finally:
            self._load = None  # who computes does not wait: the daemon tells the load's end to nobody
        self._reserved += rep["n"]
        return v.ReserveResult(rep["n"], rep["first"], slots, self._ns._reuse(rep["reuse"]))

    def _slots_of(self, op: str, rep: Dict[str, Any], n: int) -> v.Slots:
        most = (op == "RESERVE" and self._ns.n_write) or self._ns.n_slots
        try:
            return keys_of.slots_of(rep["runs"], n, most)
        except PrefixdError:
            raise self._session.bad_reply(op, "runs") from None

    def _commit(
        self, call: Call, n: Optional[int], checksums: Optional[bytes], kind: int, tail_tokens: int
    ) -> Steps[v.CommitResult]:
        self._use()
        n = self._reserved if n is None else whole("n", n)
        sums = b"" if checksums is None else bytes(checksums)
        if checksums is not None and len(sums) != 16 * n:
            raise argument("checksums", f"{n} blocks have {16 * n} bytes of them, not {len(sums)}")
        # So that neither the checksums nor a reply of one run per block is too long.
        most = (self._session.max_frame - HEADER_LEN - 128) // 16
        done = stored = duplicate = reuse = 0
        parts: List[v.Slots] = []
        try:
            while True:
                part = min(n - done, most)
                values = {
                    "op_id": self._session.op_id(),
                    "lease": self._wire,
                    "n": part,
                    "tail_tokens": whole("tail_tokens", tail_tokens) if not done else 0,
                    "checksum_kind": 0 if checksums is None else kind,
                    "checksums": sums[16 * done : 16 * (done + part)],
                }
                rep = yield from self._session.request(call, "COMMIT", values)
                if rep["n_stored"] + rep["n_duplicate"] != part:
                    raise self._session.bad_reply("COMMIT", "n_stored")
                parts.append(self._slots_of("COMMIT", rep, part))
                stored += rep["n_stored"]
                duplicate += rep["n_duplicate"]
                reuse = self._ns._reuse(rep["reuse"])
                done += part
                if done == n:
                    break
        except Lost:
            raise (yield from self._gone(call)) from None
        except BaseException as error:
            memory = isinstance(error, PrefixdError) and error.status in (Status.NO_MEMORY, Status.CONFLICT)
            self._failed(call, error, done > 0 or memory)
            raise
        slots = joined([p for p in parts if p.size])
        if slots.size:
            self._parts = [*self._parts, slots]
        self._n_path += n
        self._reserved -= min(n, self._reserved)
        return v.CommitResult(stored, duplicate, slots, reuse)

    def _wait(self, call: Call) -> Steps[v.WaitResult]:
        self._use()
        session = self._session
        try:
            slot = session.post("WAIT", {"lease": self._wire, "deadline_us": call.left_us()})
            try:
                rep = session.taken("WAIT", (yield from session.answer(call, "WAIT", slot)))
                if rep["state"] == _WAITING:
                    frame = yield from session.answer(call, "WAIT", slot)
                    if frame.op != OPS["EVENT"].code:
                        raise session.bad_reply("WAIT", "op")
                    rep = session.taken("EVENT", frame)
                    if rep["state"] == _AT_DEADLINE:
                        raise PrefixdError(Status.DEADLINE, "WAIT: not there before the deadline")
            finally:
                session.done(slot)
            if rep["lease"] != self._wire or rep["state"] not in (0, 2, 3):
                raise session.bad_reply("WAIT", "state")
        except Lost:
            raise (yield from self._gone(call)) from None
        except PrefixdError as error:
            call.doubt = False  # whether it arrived or not, the lease's path is what it was
            self._failed(call, error, False)
            raise
        return v.WaitResult(v.code(v.WaitState, rep["state"]), rep["n"], rep["leader_us"])

    def _load_wait(self, call: Call) -> Steps[v.LoadResult]:
        self._use()
        load = self._load
        if load is None:
            raise PrefixdError(Status.WRONG_STATE, "no load runs for the lease", "lease")
        while load.end is None:
            if not self._alive():
                raise (yield from self._gone(call))
            if call.until <= time.monotonic():
                raise PrefixdError(Status.DEADLINE, "the load has not ended before the deadline")
            yield READ, call.until
        if self._load is load:
            self._load = None
        return v.LoadResult(load.end["n"], v.code(v.Reason, load.end["reason"]))

    def _release(self, call: Call, over: bool, next_use: Optional[float]) -> Steps[v.ReleaseResult]:
        try:
            self._use(release=True)
        except PrefixdError:
            self._done()  # of those that a lost connection took along this is the word that counts
            raise
        values = {
            "op_id": self._session.op_id(),
            "lease": self._wire,
            "flags": int(over) | (2 if next_use is not None else 0),
            "next_use_ms": 0 if next_use is None else min(max(int(next_use * 1e3), 0), _U32_MAX),
        }
        try:
            rep = yield from self._session.request(call, "RELEASE", values)
        except Lost:
            self._done()
            raise (yield from self._gone(call)) from None
        except BaseException as error:
            # Without an answer the request is on its way, to be obeyed.
            status = error.status if isinstance(error, PrefixdError) else None
            known = status in (Status.UNKNOWN_LEASE, Status.REVOKED, Status.DEVICE_LOST)
            if known or call.doubt:
                self._done()
            if status == Status.REVOKED:
                self._session.revoked()
            raise
        self._done()
        return v.ReleaseResult(**rep)
