"""Calls on many leases at once: all requests go out together, so that n keys cost one round trip.

For keys that stand for themselves, each needs a lease of its own; asked one after the other, the way to
the daemon and back would be most of their time.  What is guaranteed for one call holds for each of these:
a request whose answer was lost leaves its lease fit for release only, an answer that comes late is given
back.  One request that is refused does not stop the others.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import values as v
from .calls import PROMOTE, Asked, LeaseCore, NamespaceCore, Walk, check_owner
from .core import Call, Frame, Lost, Session, Slot, Steps
from .errors import PrefixdError
from .keys import NO_TOKENS, Keys
from .wire import NO_ID


class Failure(NamedTuple):
    """A request that was not answered with OK; `doubt`: the daemon may have done it all the same."""

    error: PrefixdError
    doubt: bool


class Answer(NamedTuple):
    slot: Slot
    body: Dict[str, Any]


def each(
    session: Session, call: Call, op: str, requests: Sequence[Mapping[str, Any]]
) -> Steps[List[Union[Answer, Failure]]]:
    """One answer per request, in their order.  Raises Lost, and then none of them counts."""
    slots: List[Slot] = []
    frames: List[Union[Frame, Failure]] = []
    waiting = len(session._tx)
    try:
        for values in requests:
            slots.append(session.post(op, values))
        _in_one_piece(session, waiting)
        for slot in slots:
            try:
                frames.append((yield from session.answer(call, op, slot)))
            except PrefixdError as error:  # late: what came for others is taken all the same
                frames.append(Failure(error, call.doubt))
    except BaseException:
        for frame in frames:
            if isinstance(frame, Frame):
                session._skip(frame)
        raise
    finally:
        for slot in slots:
            session.done(slot)
    out: List[Union[Answer, Failure]] = []
    for slot, frame in zip(slots, frames):
        if isinstance(frame, Failure):
            out.append(frame)
            continue
        try:
            out.append(Answer(slot, session.taken(op, frame)))
        except PrefixdError as error:
            out.append(Failure(error, False))
    return out


def _in_one_piece(session: Session, first: int) -> None:
    """Makes one piece of what waits to be sent, from `first` on: each send by itself would wake the daemon.

    None of them can be taken back then, should the time be over before it went: what comes late is skipped.
    """
    pieces = [session._tx.pop() for _ in range(len(session._tx) - first)]
    if pieces:
        session._tx.append(memoryview(b"".join(reversed(pieces))))


def match_each(
    ns: NamespaceCore,
    call: Call,
    owner: v.Owner,
    keys: Sequence[bytes],
    flags: int,
    load_us: int,
    leases: Sequence[LeaseCore],
) -> Steps[List[Optional[PrefixdError]]]:
    """MATCH of each key by itself, into the lease of its place; -> what each failed with, None: nothing.

    Leases of those that failed stay as they were made: ended.
    """
    check_owner(owner)
    session = ns._session

    def once() -> Steps[List[Optional[PrefixdError]]]:
        values: Dict[str, Any] = {
            **ns._root(owner),
            "decision_id": NO_ID,
            "flags": flags,
            "deadline_us": load_us or call.left_us(),
            "n_tokens": ns.block_tokens,
            "parent": b"",
            "tail": b"",
        }
        requests = [{**values, "op_id": session.op_id(), "keys": memoryview(key)} for key in keys]
        answers = yield from each(session, call, "MATCH", requests)
        return [_begin(ns, *one, flags) for one in zip(leases, keys, answers)]

    return (yield from session.retried(call, ns._opened, once))


def _begin(
    ns: NamespaceCore, lease: LeaseCore, key: bytes, answer: Union[Answer, Failure], flags: int
) -> Optional[PrefixdError]:
    if isinstance(answer, Failure):
        return answer.error
    walk = Walk(0)
    try:
        ns._part(walk, "MATCH", answer.body)
    except PrefixdError as error:
        return error
    if flags & PROMOTE and answer.body["n_host"] + answer.body["n_redis"] and not answer.body["advice"]:
        walk.load = ns._session.loading(answer.slot, walk.lease)
    keys = Keys(memoryview(key), 1, NO_TOKENS, ns.block_tokens)
    lease._begun(walk, Asked(keys, ns.block_tokens, flags, b"", 0, NO_ID))
    return None


def reserve_each(
    call: Call, leases: Sequence[LeaseCore]
) -> Steps[List[Union[v.ReserveResult, PrefixdError]]]:
    """RESERVE of one block on each lease, all of one session."""
    answers = yield from _on_each(
        call, "RESERVE", leases, lambda lease: {"n": 1, "deadline_us": call.left_us()}
    )
    out: List[Union[v.ReserveResult, PrefixdError]] = []
    for lease, answer in zip(leases, answers):
        lease._load = None  # who computes does not wait: the daemon tells the load's end to nobody
        if isinstance(answer, PrefixdError):
            out.append(answer)
            continue
        try:
            slots = lease._slots_of("RESERVE", answer, 1)
        except PrefixdError as error:
            out.append(error)
            continue
        lease._reserved = 1
        out.append(v.ReserveResult(1, answer["first"], slots, lease._ns._reuse(answer["reuse"])))
    return out


def commit_each(call: Call, leases: Sequence[LeaseCore]) -> Steps[List[Union[v.CommitResult, PrefixdError]]]:
    """COMMIT of the one block that each lease has reserved; its K/V is in its slot."""
    answers = yield from _on_each(
        call,
        "COMMIT",
        leases,
        lambda lease: {"n": 1, "tail_tokens": 0, "checksum_kind": 0, "checksums": b""},
    )
    out: List[Union[v.CommitResult, PrefixdError]] = []
    for lease, answer in zip(leases, answers):
        if isinstance(answer, PrefixdError):
            out.append(answer)
            continue
        lease._reserved = 0
        try:
            slots = lease._slots_of("COMMIT", answer, 1)
        except PrefixdError as error:
            out.append(error)
            continue
        reuse = lease._ns._reuse(answer["reuse"])
        out.append(v.CommitResult(answer["n_stored"], answer["n_duplicate"], slots, reuse))
    return out


def _on_each(
    call: Call, op: str, leases: Sequence[LeaseCore], values: Callable[[LeaseCore], Dict[str, Any]]
) -> Steps[List[Union[Dict[str, Any], PrefixdError]]]:
    """A request on each lease; what was lost or refused is that lease's failure alone."""
    if not leases:
        return []
    session = leases[0]._session
    for lease in leases:
        lease._use()
    requests = [{**values(lease), "op_id": session.op_id(), "lease": lease._wire} for lease in leases]
    try:
        answers = yield from each(session, call, op, requests)
    except Lost:
        for lease in leases[1:]:
            lease._ended = True
        raise (yield from leases[0]._gone(call)) from None
    except BaseException:
        for lease in leases:
            lease._doubt()
        raise
    out: List[Union[Dict[str, Any], PrefixdError]] = []
    for lease, answer in zip(leases, answers):
        if isinstance(answer, Answer):
            out.append(answer.body)
            continue
        call.doubt = answer.doubt
        lease._failed(call, answer.error, False)
        out.append(answer.error)
    call.doubt = False
    return out


def let_go(lease: LeaseCore, over: bool = False, next_use: Optional[float] = None) -> None:
    """RELEASE without waiting for its answer, which is skipped when it comes.

    Blocks never: what the socket does not take now goes with the next request.  The caller uses the client
    alone meanwhile.  Raises PrefixdError when the request could not even be made.
    """
    session = lease._session
    if lease.ended:
        lease._done()
        return
    values = {
        "op_id": session.op_id(),
        "lease": lease._wire,
        "flags": int(over) | (2 if next_use is not None else 0),
        "next_use_ms": 0 if next_use is None else min(max(int(next_use * 1e3), 0), 0xFFFFFFFF),
    }
    lease._done()
    session._late.add(session._append("RELEASE", values)[0])


def flush(session: Session) -> None:
    """Sends what let_go() made, and releases of leases that nobody knows of; does not wait for the socket."""
    try:
        if session.connected:
            session._post_orphans()
        _in_one_piece(session, 1)  # of the first a part may have gone
        session._send()
    except OSError as error:
        session.drop(Lost(f"the connection broke: {error}"))
