"""Threads in which calls of the daemon are made, so that no event loop and no controller waits for them.

A :class:`Lane` is one thread with a line of jobs.  A :class:`Job` hands its result over exactly once: to
whoever waits for it, or, when the waiter has given up, to a function that disposes of it, so that memory
which a late result holds is not lost.  A job whose time has passed before it began is not begun.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Generic, List, Optional, TypeVar

__all__ = ["Job", "Lane"]

log = logging.getLogger("prefixd.lmcache")

T = TypeVar("T")


def _nothing(_: Any) -> None:
    pass


class Job(Generic[T]):
    """One piece of work: `work()` in the lane's thread, or `missed` when it did not come to that.

    `until`: time.monotonic() after which it is not begun.  `dispose`: gets a result that nobody waits for
    any more.  `after`: called in any case when the job is over, done or not, behind everything else.
    `missed` also stands in for a `work` that raised.
    """

    def __init__(
        self,
        work: Callable[[], T],
        missed: T,
        until: float,
        dispose: Callable[[T], None] = _nothing,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.missed = missed
        self.until = until
        self._work, self._dispose, self._after = work, dispose, after
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._left = False  # the waiter has gone
        self._result = missed
        self._listeners: List[Callable[[], None]] = []

    def run(self) -> None:
        """Does the work, if there is time.  The lane's thread, once."""
        result = self.missed
        try:
            if time.monotonic() < self.until:
                result = self._work()
        except Exception as error:  # nothing may end the lane's thread
            log.warning("prefixd: a job failed: %r", error)
        with self._lock:
            self._result = result
            unwanted = self._left
            self._over.set()
            listeners, self._listeners = self._listeners, []
        try:
            if unwanted and result is not self.missed:
                self._dispose(result)
            self._after()
        except Exception as error:
            log.warning("prefixd: a job could not be tidied up: %r", error)
        for listener in listeners:
            listener()

    def leave(self) -> T:
        """The result if it is there, else `missed`: it will be disposed of when it comes."""
        with self._lock:
            if self._over.is_set():
                return self._result
            self._left = True
            return self.missed

    def wait(self, grace: float) -> T:
        """The result, or `missed` `grace` seconds after the job's time."""
        self._over.wait(max(0.0, self.until + grace - time.monotonic()))
        return self.leave()

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when the job is over, from the lane's thread, or at once when it is."""
        with self._lock:
            if not self._over.is_set():
                self._listeners.append(listener)
                return
        listener()

    async def arrive(self, grace: float) -> T:
        """As wait(), without holding up the event loop.  When cancelled, the result is disposed of."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(arrived.set)
            except RuntimeError:  # the loop has been closed
                pass

        self.listen(wake)
        try:
            await asyncio.wait_for(arrived.wait(), max(0.0, self.until + grace - time.monotonic()))
        except asyncio.TimeoutError:
            pass
        except asyncio.CancelledError:
            result = self.leave()
            if result is not self.missed:
                self._dispose(result)
            raise
        return self.leave()


class Lane:
    """A thread that does jobs in their order.  It starts with the first job and is a daemon thread.

    In a forked child the lane begins anew: the parent's jobs are the parent's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._jobs: Deque[Job[Any]] = deque()
        self._there = threading.Condition()
        self._closed = False
        self._busy = False
        self._thread: Optional[threading.Thread] = None
        self._pid = os.getpid()

    def submit(self, job: Job[T]) -> Job[T]:
        """Puts the job at the end of the line; a lane that is closed runs it out as missed."""
        if self._pid != os.getpid():
            self._begin()
        with self._there:
            if not self._closed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                self._jobs.append(job)
                self._there.notify_all()
                return job
        job.until = 0.0
        job.run()
        return job

    def idle(self, timeout: float) -> bool:
        """Waits until nothing is in line or under way.  False: that did not come within `timeout`."""
        with self._there:
            return self._there.wait_for(lambda: not self._jobs and not self._busy, timeout)

    def close(self, timeout: float) -> bool:
        """Runs out what is in line, as missed.  False: a job is still under way after `timeout`."""
        with self._there:
            self._closed = True
            self._there.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._there:
                while not self._jobs and not self._closed:
                    self._there.wait()
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                if self._closed:
                    job.until = 0.0
                self._busy = True
            job.run()
            with self._there:
                self._busy = False
                self._there.notify_all()
