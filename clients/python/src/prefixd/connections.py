"""Connections of a block store: shared by its threads, given up for a while when nobody answers.

A call borrows a connection and has it alone.  A lease belongs to the connection that it was made on;
between calls others may use that one.  No lock is ever waited for longer than a call has time, and none is
held while waiting for other workers' blocks on a connection that a hit might need.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, List, Optional, Tuple

from .client import Client, Lease, Namespace
from .errors import PrefixdError
from .many import flush, let_go

if TYPE_CHECKING:
    from .hit import Hit

_STRIKES = 3  # deadlines in a row after which the daemon counts as not answering


class Away(Exception):
    """There is nobody to ask now: the store is closed, or the daemon did not answer a moment ago."""


class Late(Exception):
    """The time of the whole call is over, between two of its steps."""


def left(until: float) -> float:
    """Seconds until then.  Raises Late when there are none."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise Late("no time was left for the next step")
    return seconds


class Gate:
    """Whether it is worth asking: after a failure one call in `every` seconds is let through."""

    def __init__(self, every: float) -> None:
        self.every = every
        self._lock = threading.Lock()
        self._until: Optional[float] = None  # None: open
        self._strikes = 0

    def enter(self) -> bool:
        """False: do not ask.  True may mean that this caller is the one who tries."""
        if self._until is None:
            return True
        with self._lock:
            now = time.monotonic()
            if self._until is None:
                return True
            if now < self._until:
                return False
            self._until = now + self.every
            return True

    def closed(self) -> bool:
        until = self._until
        return until is not None and time.monotonic() < until

    def good(self) -> None:
        """The daemon answered."""
        if self._strikes or self._until is not None:
            with self._lock:
                self._strikes, self._until = 0, None

    def gone(self) -> None:
        """It is not there, or says that asking again soon is of no use."""
        with self._lock:
            self._until = time.monotonic() + self.every

    def late(self) -> None:
        """It did not answer in time; once may be chance."""
        with self._lock:
            self._strikes += 1
            if self._strikes >= _STRIKES:
                self._until = time.monotonic() + self.every


class Connection:
    """One client.  Whoever holds `lock` uses it; hits that are open keep it alive."""

    def __init__(self, client: Client) -> None:
        self.lock = threading.Lock()
        self.client = client
        self.ns: Optional[Namespace] = None
        self.later: Deque[Tuple[Lease, bool, Optional[float]]] = deque()  # to be released by who uses it next
        self.hits: weakref.WeakSet[Hit] = weakref.WeakSet()

    def give_up(self) -> None:
        """The end of a use: releases what was left to be released, then the lock.  Does not wait."""
        while True:
            self.release_later()
            self.lock.release()
            # Somebody may have left a lease after the last look, seeing the lock held.
            if not self.later or not self.lock.acquire(blocking=False):
                return

    def release_later(self) -> None:
        """Sends the releases of all leases that were left here.  The lock is held.

        Also of those that came in answers which were too late for their calls, and those that an ended
        connection held: with nothing more to ask, they would hold their blocks.
        """
        session = self.client._session
        if not self.later and not session._orphans and not (session.connected and session.owes()):
            return
        while self.later:
            lease, over, next_use = self.later.popleft()
            try:
                let_go(lease, over, next_use)
            except PrefixdError:
                pass  # the connection has ended, and the lease with it
        flush(session)

    def leave(self, lease: Lease, over: bool = False, next_use: Optional[float] = None) -> None:
        """Has a lease released: now, or by the thread that uses the connection at this moment."""
        self.later.append((lease, over, next_use))
        if self.lock.acquire(blocking=False):
            self.give_up()


class Connections:
    """At most `most` connections, made when they are needed.  Threads that ended leave nothing behind."""

    def __init__(self, make: Callable[[], Client], most: int) -> None:
        self._make = make
        self._most = max(1, most)
        self._lock = threading.Lock()
        self._all: List[Connection] = []
        self._closed = False
        self._turn = 0
        self._waiting = 0
        self.pid = os.getpid()

    def borrow(self, until: float) -> Connection:
        """A connection whose lock is held.  Raises Late."""
        for conn in self._all:
            if conn.lock.acquire(blocking=False):
                return conn
        more = self._another()
        if more is not None:
            return more
        with self._lock:
            if not self._all:
                raise Late("the store is closed")
            self._turn += 1
            conn = self._all[self._turn % len(self._all)]
        if not conn.lock.acquire(timeout=max(until - time.monotonic(), 0)):
            raise Late("all connections were in use")
        return conn

    def borrow_to_wait(self) -> Optional[Connection]:
        """One that no open hit needs while its lock is held for long; None: too many wait already."""
        with self._lock:
            if 2 * (self._waiting + 1) > self._most:
                return None
            self._waiting += 1
        for conn in self._all:
            if not conn.hits and conn.lock.acquire(blocking=False):
                if not conn.hits:
                    return conn
                conn.lock.release()
        more = self._another()
        if more is None:
            self.waited()
        return more

    def waited(self) -> None:
        """Ends what borrow_to_wait() began, besides the connection's give_up()."""
        with self._lock:
            self._waiting -= 1

    def revive(self, until: float) -> None:
        """Connects one of those anew that broke and held blocks which nobody reads any more.

        A restart of the daemon breaks all of them at once.  Those that nobody happens to need would hold
        their blocks until the process ends, since the daemon cannot know that nobody reads them.
        """
        for conn in self._all:
            session = conn.client._session
            if session.connected or not session.owes() or not conn.lock.acquire(blocking=False):
                continue
            try:
                conn.client.connect(deadline=left(until))
            except (PrefixdError, Late):
                pass  # what the call was made for is done; the next one tries again
            finally:
                conn.give_up()
            return

    def _another(self) -> Optional[Connection]:
        """A new one, its lock held; None: there are as many as there may be."""
        with self._lock:
            if self._closed or len(self._all) >= self._most:
                return None
            conn = Connection(self._make())
            conn.lock.acquire()
            self._all = [*self._all, conn]  # a new list: others walk through the old one
            return conn

    def close(self, seconds: float) -> None:
        """Releases what open hits hold, and ends all connections that are free within that time each."""
        with self._lock:
            self._closed = True  # a call that is under way makes no new one
        for conn in self._all:
            if conn.lock.acquire(timeout=seconds):
                try:
                    for hit in list(conn.hits):
                        hit.forget()
                    conn.release_later()
                    conn.client.close()
                finally:
                    conn.lock.release()
        self._all = []
