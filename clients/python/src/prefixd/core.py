"""One session with the daemon, without a socket or a thread: what both shells run.

A call is a generator.  It yields what it waits for, (READ | WRITE | PAUSE, until), and its result is its
return value; client.py waits by poll(), aio.py on the event loop.  Before a call that waited for READ
goes on, the shell calls pump(), which takes what has arrived and sorts it by seq.

What is guaranteed.  A call ends by its deadline.  It makes at most one attempt to connect, and none while
the back-off of the last failed one runs, so that a daemon that is away costs next to nothing.  A reply
that comes after its call gave up is skipped and what it gave is given back: leases are released with the
next request, descriptors closed.  A reply that is not the protocol, or names another life of the daemon,
ends the connection, and nothing of it is believed.  A "life" here is one successful HELLO: leases and
namespace numbers of one mean nothing in the next.  Pools go on where the daemon kept its memory, and so
do the blocks of leases that a connection took along: they are given back, by QUIESCED with the next
request, when the last of those leases was released or collected, and not before.
"""

from __future__ import annotations

import json
import os
import struct
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Generator, List, Mapping, Optional, Set, Tuple, TypeVar

import numpy as np
import numpy.typing as npt

from . import wire
from .errors import PrefixdError, Status
from .link import MAX_FDS, Link
from .pool import Pool, desk_of
from .values import NS_EXTRA, NS_OPAQUE, Change, ChangeKind, QuiescedResult, Removal, Tier, code
from .values import NamespaceOptions as NamespaceOptions
from .values import Owner as Owner

T = TypeVar("T")
READ, WRITE, PAUSE = "read", "write", "pause"
Steps = Generator[Tuple[str, float], None, T]

BACKOFF_MIN = 0.005
BACKOFF_MAX = 0.2
DEADLINE_MAX = 1e6
_U32_MAX = 0xFFFFFFFF
# The daemon closes after these; to a caller they mean that this client is wrong.
_FATAL = (Status.BAD_FRAME, Status.VERSION, Status.TOO_LARGE, Status.NO_HELLO)
_LOADED, _FAILED = 5, 3
_CODES = (wire.OPS[name].code for name in ("MATCH", "OPEN", "EVENT", "CHANGES", "WAIT", "LOST"))
_MATCH, _OPEN, _EVENT, _CHANGES, _WAIT, _LOST = _CODES


def checked(seconds: float) -> float:
    """A deadline, if it is one; some days are as good as for ever, and what waits knows no infinity."""
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise PrefixdError(Status.ARGUMENT, f"{seconds!r} is no number of seconds", "deadline")
    return min(seconds, DEADLINE_MAX)


class Lost(Exception):
    """The connection broke and was dropped; never reaches a caller."""


class Call:
    """One call of the user: its deadline, and whether a request of it is without an answer."""

    __slots__ = ("until", "attempted", "doubt")

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + checked(seconds)
        self.attempted = False
        self.doubt = False

    def left_us(self) -> int:
        """What is left, for the daemon: a little less, so that its answer is in time."""
        left = int((self.until - time.monotonic()) * 1e6)
        return min(max(left - min(left // 8, 5000), 1), _U32_MAX)


class Frame:
    """A reply: its header's part that matters, its body, and the descriptors that came with an OPEN."""

    __slots__ = ("op", "status", "seq", "version", "body", "fds")

    def __init__(self, h: wire.Header, body: bytes) -> None:
        self.op, self.status, self.seq = h.op, h.status, h.seq
        self.version = wire.body_version(h, body, True)
        self.body = body
        self.fds: List[int] = []

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


class Slot:
    """A request on its way: what has come for it."""

    __slots__ = ("seq", "op", "chunk", "frames", "answered", "event")

    def __init__(self, seq: int, op: int, chunk: memoryview) -> None:
        self.seq = seq
        self.op = op
        self.chunk = chunk
        self.frames: Deque[Frame] = deque()
        self.answered = False
        self.event: Optional[Dict[str, Any]] = None  # the end of a load that came before anybody asked


class Load:
    """A load that MATCH or EXTEND began; `end` once its EVENT has come."""

    __slots__ = ("lease", "end", "__weakref__")

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.end: Optional[Dict[str, Any]] = None


class Opened:
    """A namespace as the session keeps it, to open it again in the next life."""

    def __init__(self, options: NamespaceOptions, mapped: str) -> None:
        self.options = options
        self.mapped = mapped  # "rw", "ro", "no"
        self.life = 0
        self.info: Dict[str, Any] = {}
        self.pool: Optional[Pool] = None
        self.room: Optional[npt.NDArray[np.uint8]] = None  # where blocks are written; None: in the pool


class Session:
    """The state of one client; see the module."""

    def __init__(self, link: Link, path: str, name: str, copies: bool) -> None:
        if "\0" in path or not path:
            raise PrefixdError(Status.ARGUMENT, "a path of a socket is needed", "socket")
        self.link = link
        self.path = path
        self.name = name.encode("utf-8", "replace").replace(b"\0", b"?")[:64].decode("utf-8", "ignore")
        self.copies = copies
        self.pid = os.getpid()
        self.closed = False
        self.instance = os.urandom(16)
        self.life = 0
        self.connected = False
        self.boot = wire.NO_ID
        self.tenants: Dict[str, int] = {}
        self.version = wire.VERSION_HELLO  # of all frames; HELLO's reply agrees on one
        self.max_frame = wire.MAX_FRAME
        self.max_keys = 1
        self.namespaces: "weakref.WeakSet[Opened]" = weakref.WeakSet()
        self.changes: Deque[Dict[str, Any]] = deque()
        self.stream = 0  # seq of SUBSCRIBE
        self._subscribed = False
        self._broken: Optional[Exception] = None
        self._hello_boot = wire.NO_ID
        self._seq = 0
        self._slots: Dict[int, Slot] = {}
        self._late: Set[int] = set()  # requests whose calls gave up
        self._loads: "weakref.WeakValueDictionary[int, Load]" = weakref.WeakValueDictionary()
        self._orphans: Deque[Tuple[int, int]] = deque()
        self._tx: Deque[memoryview] = deque()
        self._rx = bytearray()
        self._rx_max = wire.MAX_FRAME
        self._fds: Deque[int] = deque()
        self._pools: List[Pool] = []  # mapped in this life
        self._desks: Dict[int, npt.NDArray[np.uint8]] = {}  # of this life, by group
        self._tags = 0
        self._held: Set[int] = set()  # leases that callers have
        # (life, lease) of callers' that QUIESCED would speak of: lost with a connection, revoked, doubtful.
        self._unsettled: Set[Tuple[int, int]] = set()
        self._left = 0  # leases of ended connections that the daemon holds, as far as is known
        self._prefix = os.urandom(8)
        self._ops = 0
        self._connecting = False
        self._next_attempt = 0.0
        self._backoff = 0.0

    # ---- starts and ends ----

    def begin(self, seconds: float) -> Call:
        if os.getpid() != self.pid:
            raise PrefixdError(Status.FORKED, "this client belongs to the parent process: make a new one")
        if self.closed:
            raise PrefixdError(Status.GONE, "this client was closed")
        return Call(seconds)

    def close(self) -> None:
        """Ends the session; in a child of the client's process it leaves the parent's as it is."""
        self.closed = True
        mine = os.getpid() == self.pid
        if mine and self.connected:
            try:
                self._post_orphans()
                self._send()
            except (PrefixdError, OSError):
                pass  # the end of this process gives them back
        self._drop(Lost("the client was closed"), mine)
        self._pools.clear()
        self._desks.clear()

    def drop(self, why: Exception) -> None:
        self._drop(why, True)

    def _drop(self, why: Exception, end: bool) -> None:
        self.link.close(end)
        if self.connected:
            self._lose()
        for slot in self._slots.values():
            for frame in slot.frames:
                frame.close()
        while self._fds:
            os.close(self._fds.popleft())
        self._slots.clear()
        self._late.clear()
        self._loads.clear()
        self._orphans.clear()  # they ended with the connection
        self._tx.clear()
        self._rx.clear()
        self._rx_max = self.max_frame = wire.MAX_FRAME
        self.version = wire.VERSION_HELLO
        self.stream = 0
        self._broken = why
        self.connected = False

    # ---- leases of ended connections ----

    def held(self, lease: int) -> None:
        """A caller has it from now on."""
        self._held.add(lease)

    def let_go(self, lease: int, life: int) -> None:
        """The caller is done with it, whatever has become of it.  Any thread, in the middle of anything."""
        if life == self.life:
            self._held.discard(lease)
        self._unsettled.discard((life, lease))

    def unsettled(self, lease: int) -> None:
        """It was revoked, or may have been: its caller may not have stopped to write."""
        self._unsettled.add((self.life, lease))

    def revoked(self) -> None:
        """The caller is done with a revoked lease: what it had reserved is kept back until that is said."""
        self._left += 1

    def _lose(self) -> None:
        """The connection ends, and what it holds is left behind."""
        held = list(self._held)
        self._held.clear()
        self._unsettled.update((self.life, lease) for lease in held)
        # What is still on its way may be a lease too, or the release of one; the next HELLO tells.
        under_way = bool(self._late) or any(not slot.answered for slot in self._slots.values())
        self._left += len(held) + under_way

    def owes(self) -> bool:
        """Whether the daemon keeps something that nobody here reads any more, and does not know it."""
        return self._left > 0 and not self._unsettled

    def _quiesced_values(self) -> Dict[str, bytes]:
        # Without a life it is of all of them; version 1 has no such word, nor memory of old lives.
        return {"instance": self.instance, "old_boot": wire.NO_ID if self.version >= 2 else self.boot}

    # ---- what arrives ----

    def pump(self) -> None:
        """Takes what the socket has.  Raises nothing: waiting calls find the connection dropped."""
        try:
            got = self.link.receive()
            if got is None:
                return
            data, fds, cut = got
            self._fds.extend(fds)
            if cut or len(self._fds) > MAX_FDS:
                raise PrefixdError(Status.PROTOCOL, "the daemon sent more descriptors than belong to it")
            if not data:
                raise Lost("the daemon closed the connection")
            self._rx += data
            self._sort()
        except OSError as error:
            self.drop(Lost(f"the connection broke: {error}"))
        except Lost as why:
            self.drop(why)
        except PrefixdError as error:
            self.drop(PrefixdError(Status.PROTOCOL, f"the daemon sent what is not the protocol: {error.text}",
                                   error.field))

    def _sort(self) -> None:
        at = 0
        rx = self._rx
        while len(rx) - at >= wire.HEADER_LEN:
            h = wire.header_decode(rx, self._rx_max, at)
            end = at + wire.HEADER_LEN + h.len
            if len(rx) < end:
                break
            if h.version != self.version:
                raise PrefixdError(Status.PROTOCOL, f"a frame of version {h.version}", "version")
            frame = Frame(h, bytes(rx[at + wire.HEADER_LEN : end]))
            at = end
            if self.connected and h.boot != self.boot:
                raise Lost("a reply of another life of the daemon")
            if not self.connected:
                self._hello_boot = h.boot
            try:
                self._dispatch(frame)
            except BaseException:
                frame.close()
                raise
        if at:
            del rx[:at]

    def _dispatch(self, frame: Frame) -> None:
        if frame.op == _OPEN and not frame.status:
            rep = wire.reply_body("OPEN", frame.version).decode(frame.body)
            n = rep["n_pool_fds"] + bool(rep.get("n_write"))
            words = bool(rep.get("n_words"))
            if n + words > len(self._fds):
                raise PrefixdError(Status.PROTOCOL, "fewer descriptors than the reply names", "n_pool_fds")
            frame.fds = [self._fds.popleft() for _ in range(n)]
            if words:  # nothing here writes them
                os.close(self._fds.popleft())
        slot = self._slots.get(frame.seq)
        if frame.op == _EVENT and (slot is None or slot.op != _WAIT or not slot.answered):
            self._end_of_load(frame, slot)
        elif frame.op == _LOST:
            self._device_lost(frame)
        elif frame.op == _CHANGES and frame.seq == self.stream and frame.seq:
            self.changes.extend(wire.changes(wire.reply_body("CHANGES").decode(frame.body)["events"]))
        elif slot is not None and (frame.op == _EVENT or (frame.op == slot.op and not slot.answered)):
            slot.answered = True
            slot.frames.append(frame)
        elif frame.seq in self._late and frame.op != _CHANGES:
            self._late.discard(frame.seq)
            self._skip(frame)
        else:
            raise PrefixdError(Status.PROTOCOL, f"a reply that was not asked for: seq {frame.seq}", "seq")

    def _end_of_load(self, frame: Frame, slot: Optional[Slot]) -> None:
        """An EVENT that no WAIT waits for: a load's, or that of a wait which was given up."""
        if frame.seq > self._seq or frame.status:
            raise PrefixdError(Status.PROTOCOL, "an EVENT that was not asked for", "seq")
        event = wire.reply_body("EVENT").decode(frame.body)
        load = self._loads.get(frame.seq)
        if event["state"] not in (_LOADED, _FAILED):
            return
        if load is not None and load.lease == event["lease"]:
            load.end = event
        elif slot is not None:
            slot.event = event

    def _device_lost(self, frame: Frame) -> None:
        """Said unasked, with a pool group for its seq: its namespaces are opened again when they are used."""
        if not self.connected or self.version < 3:
            raise PrefixdError(Status.PROTOCOL, "a frame LOST that was not to be expected", "op")
        wire.MESSAGES["error"].decode(frame.body)
        for ns in list(self.namespaces):
            if ns.info and ns.info["group"] == frame.seq:
                ns.life = 0

    def _skip(self, frame: Frame) -> None:
        """A reply that nobody waits for any more: what it gave is given back."""
        frame.close()
        if frame.op == _MATCH and not frame.status:
            lease = wire.reply_body("MATCH").decode(frame.body)["lease"]
            if lease:
                self.orphan(lease, self.life)

    def orphan(self, lease: int, life: int) -> None:
        """A lease that nobody will release: done with the next request."""
        if life == self.life and self.connected:
            self._orphans.append((lease, life))

    # ---- one request ----

    def op_id(self) -> bytes:
        self._ops += 1
        return self._prefix + struct.pack("<Q", self._ops)

    def _append(self, op: str, values: Mapping[str, Any]) -> Tuple[int, memoryview]:
        seq = self._seq + 1
        data = wire.frame(op, seq, values, self.boot if self.connected else wire.NO_ID, self.version)
        if len(data) > self.max_frame:
            raise PrefixdError(
                Status.LIMIT, f"{op} of {len(data)} bytes; the daemon takes frames of {self.max_frame}"
            )
        self._seq = seq
        chunk = memoryview(data)
        self._tx.append(chunk)
        return seq, chunk

    def _post_orphans(self) -> None:
        if self.owes():
            self._late.add(self._append("QUIESCED", self._quiesced_values())[0])
            self._left = 0
        while self._orphans:
            lease, life = self._orphans.popleft()
            if life == self.life:
                values = {"op_id": self.op_id(), "lease": lease, "flags": 0, "next_use_ms": 0}
                self._late.add(self._append("RELEASE", values)[0])

    def post(self, op: str, values: Mapping[str, Any]) -> Slot:
        """Queues a request.  The caller ends it by done()."""
        if self.stream:
            raise PrefixdError(Status.WRONG_STATE, f"{op}: this client has subscribed and hears events only")
        if self.connected:
            self._post_orphans()
        seq, chunk = self._append(op, values)
        slot = self._slots[seq] = Slot(seq, wire.OPS[op].code, chunk)
        return slot

    def done(self, slot: Slot) -> None:
        """The call takes nothing more of this request; what still comes is skipped."""
        if self._slots.get(slot.seq) is not slot:
            return  # the connection was dropped, and it with it
        del self._slots[slot.seq]
        if not slot.answered:
            if self._unsend(slot):
                return
            self._late.add(slot.seq)
        for frame in slot.frames:
            if frame.op != _EVENT:
                self._skip(frame)

    def _unsend(self, slot: Slot) -> bool:
        """Takes back a request of which no byte has gone: it never will."""
        for i, chunk in enumerate(self._tx):
            if chunk is slot.chunk:
                del self._tx[i]
                return True
        return False

    def _send(self) -> bool:
        """True when all has gone.  Raises OSError."""
        while self._tx:
            chunk = self._tx[0]
            n = self.link.send(chunk)
            if n == len(chunk):
                self._tx.popleft()
            elif n:
                self._tx[0] = chunk[n:]  # no slot's chunk any more: it is on its way
            else:
                return False
        return True

    def _failure(self, op: str) -> Exception:
        """Why the connection is gone, as this call is to be told."""
        why = self._broken or Lost("the connection is gone")
        if isinstance(why, PrefixdError):
            return PrefixdError(int(why.status), f"{op}: {why.text}", why.field)
        return Lost(f"{op}: {why}")

    def answer(self, call: Call, op: str, slot: Slot) -> Steps[Frame]:
        """The next frame for the request, whatever its status."""
        call.doubt = True
        while not slot.frames:
            if self._slots.get(slot.seq) is not slot:
                raise self._failure(op)
            if self._tx:
                try:
                    sent = self._send()
                except OSError as error:
                    self.drop(Lost(f"the connection broke: {error}"))
                    continue
            else:
                sent = True
            if time.monotonic() >= call.until:
                call.doubt = all(chunk is not slot.chunk for chunk in self._tx)
                raise PrefixdError(Status.DEADLINE, f"{op}: no answer before the deadline")
            yield (READ if sent else WRITE), call.until
        call.doubt = False
        return slot.frames.popleft()

    def taken(self, op: str, frame: Frame) -> Dict[str, Any]:
        """The body of a reply that is OK.  Raises what it says otherwise."""
        try:
            if not frame.status:
                return wire.reply_body(op, frame.version).decode(frame.body)
            e = wire.MESSAGES["error"].decode(frame.body)
        except PrefixdError as error:
            frame.close()
            raise self.bad_reply(op, error.field) from None
        status = frame.status
        if status in _FATAL or status >= Status.GONE:
            status = Status.PROTOCOL
        refusal = PrefixdError(status, f"{op}: {e['text']}", e["field"], e["retry_after_us"] / 1e6)
        if frame.status in _FATAL or status == Status.SELF_TEST:
            self.drop(Lost("the daemon refused this client's frames"))
        raise refusal

    def bad_reply(self, op: str, field: str) -> PrefixdError:
        """A reply that cannot be right: the connection ends."""
        self.drop(Lost("the daemon sent what is not the protocol"))
        return PrefixdError(Status.PROTOCOL, f"the reply to {op} does not decode", field)

    def exchange(self, call: Call, op: str, values: Mapping[str, Any]) -> Steps[Tuple[Slot, Dict[str, Any]]]:
        """One request and its reply.  Raises PrefixdError, or Lost when the connection broke."""
        slot = self.post(op, values)
        try:
            frame = yield from self.answer(call, op, slot)
        finally:
            self.done(slot)
        return slot, self.taken(op, frame)

    def request(self, call: Call, op: str, values: Mapping[str, Any]) -> Steps[Dict[str, Any]]:
        return (yield from self.exchange(call, op, values))[1]

    # ---- connecting ----

    def _hello(self, call: Call) -> Steps[None]:
        values = {
            "version_min": wire.VERSION_MIN,
            "version_max": wire.VERSION,
            "flags": 1 if self.copies else 0,
            "self_test": wire.self_test(wire.VERSION_MIN),
            "instance": self.instance,
            "name": self.name,
        }
        rep = yield from self.request(call, "HELLO", values)
        try:
            names = wire.tenants(rep["tenants"])
        except PrefixdError as error:
            raise self.bad_reply("HELLO", error.field) from None
        if rep["max_frame"] < wire.MAX_HELLO or not rep["max_keys"]:
            raise self.bad_reply("HELLO", "max_frame or max_keys")
        self.version = rep["version"]
        self.tenants = names
        self.max_keys = rep["max_keys"]
        self.max_frame = rep["max_frame"]
        self._rx_max = max(self._rx_max, self.max_frame)
        self.boot = self._hello_boot
        self.connected = True
        self.life += 1
        self._left = rep.get("n_orphans", len(self._unsettled))
        self._pools.clear()  # who still looks into them keeps them
        self._desks.clear()

    def _connect(self, call: Call) -> Steps[None]:
        while True:
            try:
                if self.link.connect(self.path):
                    return
            except OSError as error:
                text = f"no daemon at {self.path}: {error.strerror or error}"
                raise PrefixdError(Status.GONE, text) from None
            now = time.monotonic()
            if now >= call.until:
                raise PrefixdError(Status.DEADLINE, f"connecting to {self.path} took too long")
            yield PAUSE, min(call.until, now + 0.002)

    def _attempt(self, call: Call) -> Steps[None]:
        now = time.monotonic()
        if self.closed:
            raise PrefixdError(Status.GONE, "this client was closed")
        if call.attempted:
            raise PrefixdError(Status.GONE, str(self._broken))
        if now < self._next_attempt:
            raise PrefixdError(
                Status.GONE,
                f"no daemon at {self.path}; trying again in {1000 * (self._next_attempt - now):.0f} ms",
                retry_after=self._next_attempt - now,
            )
        call.attempted = True
        self._connecting = True
        try:
            yield from self._connect(call)
            yield from self._hello(call)
        except BaseException as error:
            self.drop(Lost(str(error)))
            self._backoff = min(2 * self._backoff or BACKOFF_MIN, BACKOFF_MAX)
            self._next_attempt = time.monotonic() + self._backoff
            if isinstance(error, Lost):
                raise PrefixdError(Status.GONE, str(error)) from None
            raise
        finally:
            self._connecting = False
        self._backoff = self._next_attempt = 0.0

    def ready(self, call: Call, ns: Optional[Opened] = None) -> Steps[None]:
        """A connection, and the namespace open on it.  Raises PrefixdError only."""
        while True:
            if self._connecting:  # another task of this client does it
                if time.monotonic() >= call.until:
                    raise PrefixdError(Status.DEADLINE, f"connecting to {self.path} took too long")
                yield PAUSE, min(call.until, time.monotonic() + 0.002)
                continue
            try:
                if not self.connected:
                    yield from self._attempt(call)
                    # All of them now, so that their pools are there when they are needed; one that is
                    # refused is tried again, and its refusal told, at its next use.
                    for other in list(self.namespaces):
                        if other is not ns:
                            try:
                                yield from self.ensure(call, other)
                            except PrefixdError:
                                pass
                if ns is not None:
                    yield from self.ensure(call, ns)
                if self.connected:
                    return
            except Lost:
                continue  # opening found that the connection had died

    def retried(self, call: Call, ns: Optional[Opened], once: Callable[[], Steps[T]]) -> Steps[T]:
        """Runs what may be asked again on a new connection, should the old one have died unnoticed."""
        while True:
            yield from self.ready(call, ns)  # the second time it connects, the third it says GONE
            try:
                return (yield from once())
            except Lost:
                pass

    # ---- calls without a namespace ----

    def connect(self, call: Call) -> Steps[None]:
        yield READ, 0.0  # a connection that has ended unnoticed shows it now
        yield from self.ready(call)

    def ping(self, call: Call) -> Steps[None]:
        def once() -> Steps[None]:
            yield from self.request(call, "PING", {})

        yield from self.retried(call, None, once)

    def tenant(self, call: Call, name: str) -> Steps[int]:
        yield from self.ready(call)
        if name not in self.tenants:
            raise PrefixdError(
                Status.FORBIDDEN, f"{name!r} may not be used by this process, or there is none", "tenant"
            )
        return self.tenants[name]

    def orphans(self, call: Call) -> Steps[int]:
        yield from self.connect(call)
        return 0 if self.owes() else self._left

    def quiesced(self, call: Call) -> Steps[QuiescedResult]:
        yield from self.connect(call)
        settled = set(self._unsettled)
        try:
            rep = yield from self.request(call, "QUIESCED", self._quiesced_values())
        except Lost as why:
            raise PrefixdError(Status.GONE, str(why)) from None
        self._unsettled -= settled
        self._left = 0
        return QuiescedResult(rep["n_leases"], rep["n_slots"])

    def admin(self, call: Call, text: str) -> Steps[Dict[str, Any]]:
        yield from self.ready(call)
        self._rx_max = wire.MAX_FRAME_LIMIT  # a dump of a tree is long
        try:
            rep = yield from self.request(call, "ADMIN", {"json": text.encode()})
        except Lost as why:  # never sent twice: it may have been an order
            raise PrefixdError(Status.GONE, str(why)) from None
        try:
            answer = json.loads(rep["json"])
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self.bad_reply("ADMIN", "json")
        return answer

    def subscribe(self, call: Call, ns: Optional[Opened], since: int, life: bytes) -> Steps[Dict[str, Any]]:
        if len(life) not in (0, 16) or (since and not life):
            raise PrefixdError(Status.ARGUMENT, "`since` needs the boot under which it was counted", "life")

        def once() -> Steps[Dict[str, Any]]:
            number = 0 if ns is None else ns.info["ns"]
            values = {"ns": number, "from": since, "life": life if since else wire.NO_ID}
            slot = self.post("SUBSCRIBE", values)
            self.changes.clear()
            self.stream = slot.seq
            try:
                rep = self.taken("SUBSCRIBE", (yield from self.answer(call, "SUBSCRIBE", slot)))
                self._subscribed = True
                return rep
            except BaseException:
                if self.stream == slot.seq and call.doubt:
                    self.drop(Lost("whether this client has subscribed is not known"))
                self.stream = 0
                raise
            finally:
                self.done(slot)

        return (yield from self.retried(call, ns, once))

    def change(self, call: Call) -> Steps[Optional[Change]]:
        """The next event of the subscription, None at the deadline."""
        if not self.stream and not self.changes:
            if self._subscribed:
                raise PrefixdError(Status.GONE, "the connection ended, and the subscription with it")
            raise PrefixdError(Status.WRONG_STATE, "this client has not subscribed")
        while not self.changes:
            if not self.stream:
                why = self._failure("CHANGES")
                raise why if isinstance(why, PrefixdError) else PrefixdError(Status.GONE, str(why))
            if time.monotonic() >= call.until:
                return None
            yield READ, call.until
        e = self.changes.popleft()
        for name in ("tenant", "position", "slot"):
            e[name] = None if e[name] == _U32_MAX else e[name]
        e["kind"], e["reason"] = code(ChangeKind, e["kind"]), code(Removal, e["reason"])
        e["tier"], e["from_tier"] = code(Tier, e["tier"]), code(Tier, e["from_tier"])
        return Change(**e)

    # ---- namespaces ----

    def open(self, call: Call, ns: Opened) -> Steps[None]:
        if ns.mapped not in ("rw", "ro", "no"):
            raise PrefixdError(Status.ARGUMENT, f'{ns.mapped!r} is none of "rw", "ro", "no"', "map")
        if not isinstance(ns.options, NamespaceOptions):
            raise PrefixdError(Status.ARGUMENT, "NamespaceOptions are needed", "options")
        if isinstance(ns.options.flags, int) and ns.options.flags & ~(NS_OPAQUE | NS_EXTRA):
            # STRIPE, WINDOWS, WORDS change what replies mean and what is passed along: not spoken here.
            text = f"they are {ns.options.flags:#x}; this client speaks NS_OPAQUE and NS_EXTRA"
            raise PrefixdError(Status.ARGUMENT, text, "flags")
        wire.request_body("OPEN").encode(vars(ns.options))  # names what does not fit, before all else
        yield from self.ready(call, ns)

    def ensure(self, call: Call, ns: Opened) -> Steps[None]:
        """OPEN, unless it is open in this life.  Raises Lost too."""
        if ns.life == self.life and self.connected:
            return
        slot = self.post("OPEN", vars(ns.options))
        try:
            frame = yield from self.answer(call, "OPEN", slot)
        finally:
            self.done(slot)
        rep = self.taken("OPEN", frame)
        try:
            wrong = _bad_geometry(ns, rep)
            if wrong:
                raise self.bad_reply("OPEN", wrong)
            pool = self._mapped(ns, rep, frame.fds[: rep["n_pool_fds"]])
            room = self._room_of(ns, rep, frame.fds)
        finally:
            frame.close()  # the mappings keep the memory
        ns.pool, ns.room = pool, room
        ns.info = rep
        ns.life = self.life
        self.namespaces.add(ns)

    def _mapped(self, ns: Opened, rep: Dict[str, Any], fds: List[int]) -> Optional[Pool]:
        if ns.mapped == "no":
            return None
        staged = rep.get("n_write", 0) > 0
        if ns.mapped == "rw" and rep["flags"] & 2 and not staged:
            raise PrefixdError(Status.FORBIDDEN, 'this process may map the pool read-only: map="ro"', "map")
        if len(fds) < 2:
            raise PrefixdError(Status.UNSUPPORTED, 'no pool came with the reply: map="no"', "map")
        if rep.get("device", 0) or len(fds) > 2:
            text = 'the pool lies in the memory of a GPU, which this client does not map: map="no"'
            raise PrefixdError(Status.UNSUPPORTED, text, "map")
        writable, tag = ns.mapped == "rw" and not staged, 0
        for pool in self._mapped_before(rep, fds):
            if (pool.length, pool.n_slots) != (rep["pool_len"], rep["n_slots"]):
                raise self.bad_reply("OPEN", "pool_len")
            tag = pool.tag
            if pool.writable == writable:
                break
        else:
            if not tag:
                self._tags = tag = self._tags + 1
            pool = Pool(rep, fds, tag, writable)
        if pool not in self._pools:
            self._pools.append(pool)
        return pool

    def _room_of(
        self, ns: Opened, rep: Dict[str, Any], fds: List[int]
    ) -> Optional[npt.NDArray[np.uint8]]:
        """Where this session writes blocks of that group, if that is not the pool."""
        if ns.mapped != "rw" or not rep.get("n_write", 0):
            return None
        room = self._desks.get(rep["group"])
        if room is None:
            room = self._desks[rep["group"]] = desk_of(rep, fds[rep["n_pool_fds"]])
        return room

    def _mapped_before(self, rep: Dict[str, Any], fds: List[int]) -> List[Pool]:
        """Mappings of that memory: of this life, and of earlier ones if it was kept."""
        known = list(self._pools)
        if rep.get("pool", wire.NO_ID) != wire.NO_ID:
            known += [ns.pool for ns in list(self.namespaces) if ns.pool is not None]
        try:
            return [pool for pool in known if pool.is_of(rep, fds)]
        except OSError as error:
            raise PrefixdError(Status.PROTOCOL, f"a descriptor of no file: {error}", "n_pool_fds") from None

    def loading(self, slot: Slot, lease: int) -> Load:
        """The load that a request began: its EVENT will tell its end, or has told it already."""
        load = Load(lease)
        load.end = slot.event
        self._loads[slot.seq] = load
        return load


def _bad_geometry(ns: Opened, rep: Dict[str, Any]) -> str:
    """What does not fit together, or nothing."""
    if len(rep["digest"]) != 32:
        return "digest"
    if not rep["block_bytes"] or rep["slot_stride"] < rep["block_bytes"]:
        return "slot_stride"
    if not rep["n_slots"] or rep["n_slots"] * rep["slot_stride"] > rep["pool_len"] or rep["pool_len"] >> 62:
        return "pool_len"
    n_write = rep.get("n_write", 0)
    if n_write and (n_write * rep["slot_stride"] > rep["write_len"] or rep["write_len"] >> 62):
        return "write_len"
    if not rep["key_len"] or not rep["block_tokens"]:
        return "key_len"
    # The same fields were sent: the caller's keys and blocks cannot have changed size.
    if ns.info and any(ns.info[k] != rep[k] for k in ("key_len", "block_tokens", "block_bytes")):
        return "key_len, which was another one before"
    return ""

