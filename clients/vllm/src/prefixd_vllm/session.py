"""A connection to the daemon that is kept open by a thread of its own, so that nobody else ever waits for it.

`Link.session` is what can be used now, or None; taking it costs nothing.  Who meets a failure hands the
session back by `lost` or `late`, and the thread brings up the next one, at most `RETRY` seconds after a
daemon answers again.  Opening may take long (the first worker of a kind makes the pool), which is why it is
not done where the engine waits.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, List, Optional, Sequence

import prefixd
from prefixd.errors import PrefixdError, Status

__all__ = ["Link", "Say", "Session", "client_maker"]

RETRY = 0.5  # seconds between attempts while no daemon answers
RETRY_REFUSED = 15.0  # ... while one answers and refuses, which only an operator can change
OPEN_DEADLINE = 30.0  # seconds for one OPEN: the daemon may have to make a pool of many GiB first
STRIKES = 3  # deadlines in a row after which the daemon counts as not answering
SAY_EVERY = 60.0

# What a connection survives: the request was refused, the next one may not be.
_HARMLESS = frozenset(
    (
        Status.BUSY,
        Status.LIMIT,
        Status.WRONG_STATE,
        Status.CONFLICT,
        Status.NO_MEMORY,
        Status.REVOKED,
        Status.STALE,
        Status.UNKNOWN_LEASE,
    )
)


class Say:
    """Log lines, each kind at most once a minute: a daemon that is away must not fill the engine's log."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, float] = {}

    def __call__(
        self, kind: str, text: str, *args: Any, level: int = logging.WARNING, trace: bool = False
    ) -> None:
        now = time.monotonic()
        if now - self._last.get(kind, -SAY_EVERY) >= SAY_EVERY:
            self._last[kind] = now
            self._log.log(level, "prefixd: " + text, *args, exc_info=trace)


@dataclass
class Session:
    """One life of a connection: namespaces opened in it, in the order asked for.  `lock` for every call.

    The client may have gone on to another life of the daemon by itself: `current` after a call tells.
    `pools` are those of this life, none where nothing is mapped.
    """

    client: Any
    spaces: List[Any]
    boot: bytes
    pools: List[Any]
    writable: bool
    lock: threading.Lock = field(default_factory=threading.Lock)
    strikes: int = 0

    @property
    def current(self) -> bool:
        return bytes(self.client.boot) == self.boot


class Link:
    """See the module.  `make` makes a client (of its own: no other thread may use it)."""

    def __init__(self, make: Callable[[], Any], map: str, say: Say) -> None:
        self._make, self._map, self._say = make, map, say
        self._wake = threading.Condition()
        self._wanted: Optional[Sequence[Any]] = None
        self._closed = False
        self._thread: Optional[threading.Thread] = None
        self._session: Optional[Session] = None
        self._tried = False

    @property
    def session(self) -> Optional[Session]:
        return self._session

    @property
    def opening(self) -> bool:
        """Whether the first attempt to open what is wanted has not ended yet: waiting a little may help."""
        return self._wanted is not None and not self._tried and self._session is None

    def want(self, options: Sequence[Any]) -> None:
        """Have these namespaces open, instead of others.  Returns at once."""
        with self._wake:
            if self._closed or self._wanted == options:
                return
            self._wanted, self._tried, self._session = options, False, None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prefixd-link", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def wait(self, seconds: float) -> Optional[Session]:
        """The session, waited for at most so long; for threads that may wait."""
        with self._wake:
            self._wake.wait_for(lambda: self._session is not None or self._closed, seconds)
            return self._session

    def failed(self, session: Session, error: PrefixdError) -> None:
        """Tell of a call that did not succeed; decides whether the session is of any more use."""
        if error.status == Status.DEADLINE:
            session.strikes += 1
            if session.strikes < STRIKES:
                return
        elif error.status in _HARMLESS:
            return
        self._say(f"status {error.status}", "%s; requests are computed until the daemon answers again", error)
        with self._wake:
            if self._session is session:
                self._session = None
                self._wake.notify_all()

    def close(self) -> None:
        with self._wake:
            self._closed, session, self._session = True, self._session, None
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)
        if session is not None and session.lock.acquire(timeout=1.0):
            try:
                session.client.close()
            finally:
                session.lock.release()

    def _run(self) -> None:
        client = None
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._closed or (self._wanted is not None and self._session is None)
                )
                if self._closed:
                    if client is not None and self._session is None:
                        client.close()
                    return
                wanted = self._wanted
            pause = RETRY
            session = None
            try:
                client = client or self._make()
                session = self._open(client, wanted or ())
            except PrefixdError as error:
                away = error.status in (Status.GONE, Status.DEADLINE, Status.DRAINING)
                pause = RETRY if away else RETRY_REFUSED
                self._say(f"open {error.status}", "%s; requests are computed without it", error)
            except Exception as error:  # a bug here must not end the thread: the daemon may return
                pause = RETRY_REFUSED
                self._say("open", "opening failed: %s; requests are computed without it", error, trace=True)
            with self._wake:
                if self._wanted is wanted:
                    self._session, self._tried = session, True
                    self._wake.notify_all()
                if session is None:
                    self._pause(wanted, pause)

    def _pause(self, wanted: Any, seconds: float) -> None:
        self._wake.wait_for(lambda: self._closed or self._wanted is not wanted, seconds)

    def _open(self, client: Any, wanted: Sequence[Any]) -> Session:
        # What an earlier connection held is given back when its leases are released: a save may be in the
        # middle of writing to one, and would go on in slots that are others' by then.
        client.connect(deadline=RETRY)
        map = self._map
        try:
            spaces = [client.open(options, map=map, deadline=OPEN_DEADLINE) for options in wanted]
        except PrefixdError as error:
            if map != "rw" or error.status != Status.FORBIDDEN or error.field != "map":
                raise
            self._say("read only", "this process may read the pool and not write it; it stores nothing")
            map = "ro"
            spaces = [client.open(options, map=map, deadline=OPEN_DEADLINE) for options in wanted]
        for space in spaces:
            if getattr(space, "seed_mismatch", False):
                self._say(
                    "seed",
                    "another process hashes blocks of this model with another seed; the two share nothing: "
                    "set PYTHONHASHSEED to the same value for all of them, or to none with "
                    "--prefix-caching-hash-algo sha256",
                )
        pools = [] if map == "no" else [space.pool for space in spaces]
        return Session(client, spaces, bytes(client.boot), pools, map == "rw")


def client_maker(socket: Optional[str], name: str, deadline: float, copies: bool) -> Callable[[], Any]:
    """Makes clients for a Link.  `copies`: what is read is copied out and checked, so it may be revoked."""
    return lambda: prefixd.Client(socket, name=name, deadline=deadline, copies=copies)
