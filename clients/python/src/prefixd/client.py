"""The blocking client.

    client = Client("/run/prefixd/prefixd.sock")
    ns = client.open(options)
    with ns.match(owner, tokens=ids) as lease: ...

What is guaranteed: every call ends by its deadline and raises nothing but PrefixdError; a client that
lost its daemon goes on with the next one.  What is relied on: core.py and calls.py, which do the work;
here a call only waits by poll().

One thread at a time: calls of several threads on one client wait for each other, up to their deadlines.
A child of the client's process is told FORKED, and nothing of the parent's is closed.
"""

from __future__ import annotations

import json as jsons
import os
import select
import sys
import threading
import time
from types import TracebackType
from typing import Any, Dict, Iterator, Mapping, Optional, Type, TypeVar, Union

from . import calls
from . import values as v
from .core import PAUSE, READ, Call, Opened, Session, Steps, checked
from .errors import PrefixdError, Status
from .keys import Digests, Extra, Tokens
from .link import Link, default_path

T = TypeVar("T")


class Client:
    """A session with the daemon; it connects when first used, and again after a restart of the daemon.

    `socket`: path; None: $PREFIXD_SOCKET, else where a daemon without options listens.  `name` is shown to
    operators.  `deadline`: seconds, the default of every call.  `copies`: this worker copies blocks out
    before it computes with them, so its reads may be revoked.
    """

    def __init__(
        self, socket: Optional[str] = None, *, name: str = "", deadline: float = 1.0, copies: bool = False
    ) -> None:
        path = default_path() if socket is None else os.fspath(socket)
        self._link = Link()
        self._session = Session(self._link, path, name or os.path.basename(sys.argv[0]) or "python", copies)
        self._deadline = checked(deadline)
        self._lock = threading.Lock()

    # ---- running a call ----

    def _begin(self, deadline: Optional[float]) -> Call:
        return self._session.begin(self._deadline if deadline is None else deadline)

    def _run(self, call: Call, steps: Steps[T]) -> T:
        if not self._lock.acquire(timeout=max(call.until - time.monotonic(), 0)):
            raise PrefixdError(Status.DEADLINE, "another thread's call on this client took all the time")
        try:
            while True:
                kind, until = next(steps)
                self._pause(kind, until)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()
            if self._session.closed:  # by another thread, meanwhile
                self._session.close()
            self._lock.release()

    def _pause(self, kind: str, until: float) -> None:
        left = max(until - time.monotonic(), 0)
        if kind == PAUSE:
            time.sleep(left)
            return
        fd = self._link.fileno()
        if fd < 0:
            return
        poll = select.poll()
        # While something waits to be sent, replies are taken too: the daemon may not read before that.
        poll.register(fd, select.POLLIN if kind == READ else select.POLLIN | select.POLLOUT)
        for _, events in poll.poll(1000 * left):
            if events & ~select.POLLOUT:
                self._session.pump()

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

    def connect(self, *, deadline: Optional[float] = None) -> None:
        """A connection, now: a new one if the old one has ended.  No other call needs it before."""
        call = self._begin(deadline)
        self._run(call, self._session.connect(call))

    def ping(self, *, deadline: Optional[float] = None) -> None:
        call = self._begin(deadline)
        self._run(call, self._session.ping(call))

    def tenant(self, name: str, *, deadline: Optional[float] = None) -> int:
        """A tenant's number; FORBIDDEN if this process may not use it, or there is none of that name."""
        call = self._begin(deadline)
        return self._run(call, self._session.tenant(call, name))

    def orphans(self, *, deadline: Optional[float] = None) -> int:
        """Leases of this client's ended connections that the daemon holds still; 0: nothing is to be said."""
        call = self._begin(deadline)
        return self._run(call, self._session.orphans(call))

    def quiesced(self, *, deadline: Optional[float] = None) -> v.QuiescedResult:
        """Says that nothing, no device either, touches any more what this client's ended connections held.

        It says so by itself when the last lease of them was released, or collected.
        """
        call = self._begin(deadline)
        return self._run(call, self._session.quiesced(call))

    def admin(
        self, request: Union[str, Mapping[str, Any]], *, deadline: Optional[float] = None
    ) -> Dict[str, Any]:
        """One JSON object and its answer, on the admin socket."""
        call = self._begin(deadline)
        text = request if isinstance(request, str) else jsons.dumps(dict(request))
        return self._run(call, self._session.admin(call, text))

    def open(
        self, options: v.NamespaceOptions, *, map: str = "rw", deadline: Optional[float] = None
    ) -> "Namespace":
        """Opens a namespace.  `map`: the pool writable "rw", readable "ro", or not at all "no"."""
        call = self._begin(deadline)
        opened = Opened(options, map)
        self._run(call, self._session.open(call, opened))
        return Namespace(self, opened)

    def subscribe(
        self,
        namespace: Optional["Namespace"] = None,
        *,
        since: int = 0,
        life: bytes = b"",
        deadline: Optional[float] = None,
    ) -> "Subscription":
        """A stream of what is stored and what goes, of one namespace or of all that this client has opened.

        `since`: number of the first event wanted, with the `boot` under which it was counted as `life`;
        0: from now on.  From then on the client is used for nothing else.
        """
        call = self._begin(deadline)
        opened = None if namespace is None else namespace._opened
        rep = self._run(call, self._session.subscribe(call, opened, since, life))
        return Subscription(self, rep["last"], rep["oldest"])

    def close(self) -> None:
        """Ends the session; another thread's call ends with GONE.  Views of a pool stay readable.

        Leases that are still held keep their blocks until this process ends: release them before.
        """
        if os.getpid() != self._session.pid:
            self._session.close()
        elif self._lock.acquire(blocking=False):
            self._session.close()
            self._lock.release()
        else:
            self._session.closed = True
            self._link.end()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


class Subscription:
    """The events of a subscription, as an iterator without an end; next() is the same with a deadline.

    PrefixdError GONE: the connection ended and the subscription with it; subscribe again, from the number
    after the last one.
    """

    def __init__(self, client: Client, last: int, oldest: int) -> None:
        self._client = client
        self.last = last  # number of the last event before the subscription
        self.oldest = oldest  # number of the oldest event that was kept then

    def next(self, *, deadline: Optional[float] = None) -> Optional[v.Change]:
        """The next event, or None when none came before the deadline."""
        call = self._client._begin(deadline)
        return self._client._run(call, self._client._session.change(call))

    def __iter__(self) -> Iterator[v.Change]:
        while True:
            change = self.next()
            if change is not None:
                yield change


class Namespace(calls.NamespaceCore):
    """An open namespace; it opens itself again after a restart of the daemon."""

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
    ) -> "Lease":
        """What of this prompt is there already, held by a lease.  It gives one also when nothing is.

        `tokens`: all of the prompt, a sequence or array of ints; what does not fill a block is its tail.
        `digests`: one per block, in a namespace of digests.  `extra`: 32 bytes per full block, in one of
        EXTRA.  `n_tokens`: if the prompt has more, or its last digest stands for fewer.  `promote` begins
        to bring up what lies in lower tiers, for `load_deadline` seconds at most (None: as long as the
        call); `lead` makes this lease compute what is missing and nobody computes, for which others wait.
        `exact`: end before the first block that a cold codec has changed, here and in `extend`.
        """
        call = self.client._begin(deadline)
        keys = self._keys(tokens, digests, extra)
        flags = calls.flags(promote, island, no_tail, lead, exact)
        asked = self._asked(keys, self._count(keys, n_tokens), parent, flags, load_deadline, decision_id)
        lease = Lease(self)
        self.client._run(call, self._match(call, owner, asked, lease))
        return lease

    def probe(
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
        """What a match would find, without a lease and without recency: for routers.

        Keys beyond one frame are not looked at, but for the bitmap of digests: its bits are of all keys.
        """
        call = self.client._begin(deadline)
        keys = self._keys(tokens, digests, extra)
        return self.client._run(call, self._probe(call, owner, keys, self._count(keys, n_tokens), bitmap))

    def explain(
        self,
        owner: v.Owner,
        *,
        tokens: Optional[Tokens] = None,
        digests: Optional[Digests] = None,
        extra: Optional[Extra] = None,
        n_tokens: Optional[int] = None,
        deadline: Optional[float] = None,
    ) -> v.ExplainResult:
        """Why a match of this prompt is not longer."""
        call = self.client._begin(deadline)
        keys = self._keys(tokens, digests, extra)
        return self.client._run(call, self._explain(call, owner, keys, self._count(keys, n_tokens)))

    def prefetch(
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
        """Asks for a prompt's blocks to be brought up before somebody matches it.

        Returns at once, holds nothing, and the end is not told.  Keys beyond one frame are not looked at.
        """
        call = self.client._begin(deadline)
        keys = self._keys(tokens, digests, extra)
        steps = self._prefetch(call, owner, keys, self._count(keys, n_tokens), load_deadline)
        return self.client._run(call, steps)

    def report(
        self,
        *,
        ttft: float = 0.0,
        tpot: float = 0.0,
        input_tokens: int = 0,
        running: int = 0,
        waiting: int = 0,
        deadline: Optional[float] = None,
    ) -> None:
        """Tells operators how a request went; times in seconds."""
        call = self.client._begin(deadline)
        self.client._run(call, self._report(call, ttft, tpot, input_tokens, running, waiting))


class Lease(calls.LeaseCore):
    """A hold on a path of blocks, from match() to release().  `with` releases it whatever happens.

    One that is never released is given back when it is collected, with a ResourceWarning.
    """

    def __init__(self, ns: Namespace) -> None:
        super().__init__(ns)
        self._client = ns.client

    def extend(
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
        """More of the prompt, or nothing new: what others committed and a load brought up is found too.

        `tokens` follow all that were given before, tokens short of a block included.  Slots and n_device
        of the result are of what this call added.
        """
        call = self._client._begin(deadline)
        flags = calls.flags(promote, False, no_tail, lead)
        asked = self._more(tokens, digests, extra, n_tokens, parent, flags, load_deadline)
        return self._client._run(call, self._extend(call, asked))

    def reserve(self, n: int, *, deadline: Optional[float] = None) -> v.ReserveResult:
        """Places for up to n further blocks.  Fewer than asked for is ordinary, none at all is BUSY."""
        call = self._client._begin(deadline)
        return self._client._run(call, self._reserve(call, n))

    def commit(
        self,
        n: Optional[int] = None,
        *,
        checksums: Optional[bytes] = None,
        checksum_kind: int = calls.CHECKSUM_XXH3,
        tail_tokens: int = 0,
        deadline: Optional[float] = None,
    ) -> v.CommitResult:
        """The next n reserved blocks are filled: others can use them.  None: all that are reserved.

        `checksums`: 16 bytes per block; None: none.  `tail_tokens`: used of a partial block that was offered.
        """
        call = self._client._begin(deadline)
        return self._client._run(call, self._commit(call, n, checksums, checksum_kind, tail_tokens))

    def wait(self, *, deadline: Optional[float] = None) -> v.WaitResult:
        """Waits until pending blocks are there, or it is this worker's turn to compute them.

        DEADLINE: not yet; the lease is as before.  It must have nothing reserved (WRONG_STATE).
        """
        call = self._client._begin(deadline)
        return self._client._run(call, self._wait(call))

    def load_wait(self, *, deadline: Optional[float] = None) -> v.LoadResult:
        """Waits for the end of the load that `promote` began; extend() then gives the slots.

        Also when nothing came up: n is 0, and the rest is computed.  DEADLINE: not yet; it goes on.
        WRONG_STATE: there is none to wait for.
        """
        call = self._client._begin(deadline)
        return self._client._run(call, self._load_wait(call))

    def release(
        self, *, over: bool = False, next_use: Optional[float] = None, deadline: Optional[float] = None
    ) -> v.ReleaseResult:
        """Gives everything back.  `over`: the conversation is; `next_use`: it goes on in so many seconds."""
        call = self._client._begin(deadline)
        return self._client._run(call, self._release(call, over, next_use))

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._ended:
            self._done()
            return
        try:
            self.release()
        except PrefixdError:
            pass  # it ended with its connection, or the daemon will hear of it later
