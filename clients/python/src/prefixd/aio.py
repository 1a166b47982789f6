"""The client for asyncio: the names of client.py, with `await`.

    async with prefixd.aio.Client(path) as client:
        ns = await client.open(options)
        async with ns.match(owner, tokens=ids) as lease: ...      # or: lease = await ns.match(...)

What is guaranteed: as in client.py, and several tasks may call at the same time: their requests go out one
behind the other, and who waits for a wait() or a load does not keep the others from going on.  A call
that is cancelled leaves a client that goes on: its late reply is skipped, and what that gave is given
back.  A lease serves one task at a time.  What is relied on: core.py and calls.py, which do the work;
here a call only waits on the loop, for the socket's readiness and its deadline.

A client belongs to the loop that it first connected on.
"""

from __future__ import annotations

import asyncio
import json as jsons
import os
import sys
import time
from types import TracebackType
from typing import Any, AsyncIterator, Dict, Generator, List, Mapping, Optional, Type, TypeVar, Union

from . import calls
from . import values as v
from .core import PAUSE, READ, Call, Opened, Session, Steps, checked
from .errors import PrefixdError, Status
from .keys import Digests, Extra, Tokens
from .link import Link, default_path

T = TypeVar("T")


class _Watch:
    """Who waits for one kind of readiness; all are woken together: one may have taken another's reply."""

    def __init__(self) -> None:
        self.waiting: List["asyncio.Future[None]"] = []

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class _LoopLink(Link):
    """A socket that the loop watches while somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: Optional[asyncio.AbstractEventLoop] = None
        self.reading = _Watch()
        self.writing = _Watch()
        self._watched = [False, False]

    def watch(self, session: Session, read: bool, write: bool) -> None:
        loop = asyncio.get_running_loop()
        fd = self.fileno()
        if loop is not self.loop:
            if any(self._watched) and self.loop is not None and not self.loop.is_closed():
                raise PrefixdError(Status.WRONG_STATE, "this client belongs to another event loop")
            self.loop, self._watched = loop, [False, False]
        if read and not self._watched[0]:
            loop.add_reader(fd, self._readable, session)
            self._watched[0] = True
        if write and not self._watched[1]:
            loop.add_writer(fd, self._writable)
            self._watched[1] = True

    def _readable(self, session: Session) -> None:
        session.pump()
        self.reading.wake()
        self.writing.wake()
        if session.stream:  # what nobody takes stays with the daemon, which knows how to skip a slow reader
            self._unwatch(read=True)

    def _writable(self) -> None:
        self._unwatch(write=True)
        self.writing.wake()

    def _unwatch(self, read: bool = False, write: bool = False) -> None:
        fd = self.fileno()
        if self.loop is None or fd < 0 or self.loop.is_closed():
            self._watched = [False, False]
            return
        if read and self._watched[0]:
            self.loop.remove_reader(fd)
            self._watched[0] = False
        if write and self._watched[1]:
            self.loop.remove_writer(fd)
            self._watched[1] = False

    def close(self, end: bool) -> None:
        self._unwatch(read=True, write=True)
        super().close(end)
        self.reading.wake()
        self.writing.wake()


class Client:
    """A session with the daemon on an event loop; arguments as of client.Client."""

    def __init__(
        self, socket: Optional[str] = None, *, name: str = "", deadline: float = 1.0, copies: bool = False
    ) -> None:
        path = default_path() if socket is None else os.fspath(socket)
        self._link = _LoopLink()
        self._session = Session(self._link, path, name or os.path.basename(sys.argv[0]) or "python", copies)
        self._deadline = checked(deadline)

    # ---- running a call ----

    def _begin(self, deadline: Optional[float]) -> Call:
        return self._session.begin(self._deadline if deadline is None else deadline)

    async def _run(self, steps: Steps[T]) -> T:
        try:
            while True:
                kind, until = next(steps)
                await self._pause(kind, until)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()

    async def _pause(self, kind: str, until: float) -> None:
        left = max(until - time.monotonic(), 0)
        if kind == PAUSE:
            await asyncio.sleep(left)
            return
        if self._link.fileno() < 0:
            return
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[None]" = loop.create_future()
        watch = self._link.reading if kind == READ else self._link.writing
        watch.waiting.append(future)
        # While something waits to be sent, replies are taken too: the daemon may not read before that.
        self._link.watch(self._session, True, kind != READ)
        timer = loop.call_later(left, _ring, future)
        try:
            await future
        finally:
            timer.cancel()
            if future in watch.waiting:
                watch.waiting.remove(future)

    # ---- the session ----

    @property
    def boot(self) -> bytes:
        """16 bytes that name the daemon's life, as last seen; zeroes before the first connection."""
        return self._session.boot

    @property
    def tenants(self) -> Dict[str, int]:
        """Tenants that this process may name, as last told."""
        return dict(self._session.tenants)

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known without asking."""
        return self._session.connected

    async def connect(self, *, deadline: Optional[float] = None) -> None:
        call = self._begin(deadline)
        await self._run(self._session.connect(call))

    async def ping(self, *, deadline: Optional[float] = None) -> None:
        call = self._begin(deadline)
        await self._run(self._session.ping(call))

    async def tenant(self, name: str, *, deadline: Optional[float] = None) -> int:
        call = self._begin(deadline)
        return await self._run(self._session.tenant(call, name))

    async def orphans(self, *, deadline: Optional[float] = None) -> int:
        call = self._begin(deadline)
        return await self._run(self._session.orphans(call))

    async def quiesced(self, *, deadline: Optional[float] = None) -> v.QuiescedResult:
        call = self._begin(deadline)
        return await self._run(self._session.quiesced(call))

    async def admin(
        self, request: Union[str, Mapping[str, Any]], *, deadline: Optional[float] = None
    ) -> Dict[str, Any]:
        call = self._begin(deadline)
        text = request if isinstance(request, str) else jsons.dumps(dict(request))
        return await self._run(self._session.admin(call, text))

    async def open(
        self, options: v.NamespaceOptions, *, map: str = "rw", deadline: Optional[float] = None
    ) -> "Namespace":
        call = self._begin(deadline)
        opened = Opened(options, map)
        await self._run(self._session.open(call, opened))
        return Namespace(self, opened)

    async def subscribe(
        self,
        namespace: Optional["Namespace"] = None,
        *,
        since: int = 0,
        life: bytes = b"",
        deadline: Optional[float] = None,
    ) -> "Subscription":
        call = self._begin(deadline)
        opened = None if namespace is None else namespace._opened
        rep = await self._run(self._session.subscribe(call, opened, since, life))
        return Subscription(self, rep["last"], rep["oldest"])

    async def close(self) -> None:
        """Ends the session; calls of other tasks end with GONE."""
        self._session.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()


def _ring(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Subscription:
    """As client.Subscription; `async for`."""

    def __init__(self, client: Client, last: int, oldest: int) -> None:
        self._client = client
        self.last = last
        self.oldest = oldest

    async def next(self, *, deadline: Optional[float] = None) -> Optional[v.Change]:
        """The next event, or None when none came before the deadline."""
        call = self._client._begin(deadline)
        return await self._client._run(self._client._session.change(call))

    async def __aiter__(self) -> AsyncIterator[v.Change]:
        while True:
            change = await self.next()
            if change is not None:
                yield change


class _Matching:
    """What match() gives: awaited it is the lease, `async with` also releases it."""

    def __init__(self, client: Client, steps: Steps[None], lease: "Lease") -> None:
        self._client, self._steps, self._lease = client, steps, lease

    async def _get(self) -> "Lease":
        await self._client._run(self._steps)
        return self._lease

    def __await__(self) -> Generator[Any, None, "Lease"]:
        return self._get().__await__()

    async def __aenter__(self) -> "Lease":
        return await self._get()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self._lease.__aexit__(kind, error, trace)


class Namespace(calls.NamespaceCore):
    """An open namespace; calls as of client.Namespace."""

    def __init__(self, client: Client, opened: Opened) -> None:
        super().__init__(client._session, opened)
        self.client = client

    def match(
        self,
        owner: v.Owner,
        *,
        tokens: Optional[Tokens] = None,
        digests: Optional[Digests] = None,
        extra: Optional[Extra] = None,
        n_tokens: Optional[int] = None,
        parent: bytes = b"",
        promote: bool = False,
        lead: bool = False,
        island: bool = False,
        no_tail: bool = False,
        exact: bool = False,
        decision_id: bytes = b"",
        load_deadline: Optional[float] = None,
        deadline: Optional[float] = None,
    ) -> _Matching:
        """To be awaited, or entered by `async with`, once."""
        call = self.client._begin(deadline)
        keys = self._keys(tokens, digests, extra)
        flags = calls.flags(promote, island, no_tail, lead, exact)
        asked = self._asked(keys, self._count(keys, n_tokens), parent, flags, load_deadline, decision_id)
        lease = Lease(self)
        return _Matching(self.client, self._match(call, owner, asked, lease), lease)

    async def probe(
        self,
        owner: v.Owner,
        *,
        tokens: Optional[Tokens] = None,
        digests: Optional[Digests] = None,
        extra: Optional[Extra] = None,
        n_tokens: Optional[int] = None,
        bitmap: bool = False,
        deadline: Optional[float] = None,
    ) -> v.ProbeResult:
        call = self.client._begin(deadline)
        keys = self._keys(tokens, digests, extra)
        return await self.client._run(self._probe(call, owner, keys, self._count(keys, n_tokens), bitmap))

    async def explain(
        self,
        owner: v.Owner,
        *,
        tokens: Optional[Tokens] = None,
        digests: Optional[Digests] = None,
        extra: Optional[Extra] = None,
        n_tokens: Optional[int] = None,
        deadline: Optional[float] = None,
    ) -> v.ExplainResult:
        call = self.client._begin(deadline)
        keys = self._keys(tokens, digests, extra)
        return await self.client._run(self._explain(call, owner, keys, self._count(keys, n_tokens)))

    async def prefetch(
        self,
        owner: v.Owner,
        *,
        tokens: Optional[Tokens] = None,
        digests: Optional[Digests] = None,
        extra: Optional[Extra] = None,
        n_tokens: Optional[int] = None,
        load_deadline: Optional[float] = None,
        deadline: Optional[float] = None,
    ) -> v.PrefetchResult:
        call = self.client._begin(deadline)
        keys = self._keys(tokens, digests, extra)
        steps = self._prefetch(call, owner, keys, self._count(keys, n_tokens), load_deadline)
        return await self.client._run(steps)

    async def report(
        self,
        *,
        ttft: float = 0.0,
        tpot: float = 0.0,
        input_tokens: int = 0,
        running: int = 0,
        waiting: int = 0,
        deadline: Optional[float] = None,
    ) -> None:
        call = self.client._begin(deadline)
        await self.client._run(self._report(call, ttft, tpot, input_tokens, running, waiting))


class Lease(calls.LeaseCore):
    """A hold on a path of blocks; calls as of client.Lease."""

    def __init__(self, ns: Namespace) -> None:
        super().__init__(ns)
        self._client = ns.client

    async def extend(
        self,
        *,
        tokens: Optional[Tokens] = None,
        digests: Optional[Digests] = None,
        extra: Optional[Extra] = None,
        n_tokens: Optional[int] = None,
        parent: bytes = b"",
        promote: bool = False,
        lead: bool = False,
        no_tail: bool = False,
        load_deadline: Optional[float] = None,
        deadline: Optional[float] = None,
    ) -> v.MatchResult:
        call = self._client._begin(deadline)
        flags = calls.flags(promote, False, no_tail, lead)
        asked = self._more(tokens, digests, extra, n_tokens, parent, flags, load_deadline)
        return await self._client._run(self._extend(call, asked))

    async def reserve(self, n: int, *, deadline: Optional[float] = None) -> v.ReserveResult:
        call = self._client._begin(deadline)
        return await self._client._run(self._reserve(call, n))

    async def commit(
        self,
        n: Optional[int] = None,
        *,
        checksums: Optional[bytes] = None,
        checksum_kind: int = calls.CHECKSUM_XXH3,
        tail_tokens: int = 0,
        deadline: Optional[float] = None,
    ) -> v.CommitResult:
        call = self._client._begin(deadline)
        return await self._client._run(self._commit(call, n, checksums, checksum_kind, tail_tokens))

    async def wait(self, *, deadline: Optional[float] = None) -> v.WaitResult:
        call = self._client._begin(deadline)
        return await self._client._run(self._wait(call))

    async def load_wait(self, *, deadline: Optional[float] = None) -> v.LoadResult:
        call = self._client._begin(deadline)
        return await self._client._run(self._load_wait(call))

    async def release(
        self, *, over: bool = False, next_use: Optional[float] = None, deadline: Optional[float] = None
    ) -> v.ReleaseResult:
        call = self._client._begin(deadline)
        return await self._client._run(self._release(call, over, next_use))

    async def __aenter__(self) -> "Lease":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._ended:
            self._done()
            return
        try:
            await self.release()
        except PrefixdError:
            pass  # it ended with its connection, or the daemon will hear of it later
