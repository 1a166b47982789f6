"""The threads behind the secondary tier: lookups that never block, and jobs that always end.

Both classes are driven by one caller, the scheduler's thread, and talk to the daemon from threads of
their own; nothing that the daemon does or does not do reaches the caller as an exception or as a wait.
They know no engine: keys are bytes, rows are a numpy array, a store is a ``prefixd.BlockStore`` (or
anything with its `contains`, `get` and `put`).

:class:`Lookups` guarantees that every question is answered within its deadline, late answers counting
as misses, and that an answer does not change for the request that asked.  :class:`Transfers` guarantees
that every job that was submitted is reported exactly once, that its rows are not touched after that,
and that a job waits for its turn no longer than its deadline.

The store is made when the first key arrives: the length of the keys, and the seed behind them, are not
known before.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np

__all__ = ["Done", "Job", "Lookups", "Store", "Transfers"]

_log = logging.getLogger(__name__)

_LOOKUP_SLICE = 512  # keys in one question: small enough that a deadline covers it
_COPY_BYTES = 32 << 20  # bytes in one get or put: cancelling waits for no more than one of them
_COPY_BLOCKS = 64


class _Row:
    """One row as a store's source or target: called with the slot's bytes, it copies.

    Stores get these and not the rows themselves, because what fails leaves frames behind that hold its
    arguments until the garbage collector comes by; rows that someone holds cannot be unmapped.
    """

    __slots__ = ("_load", "_owner", "_row")

    def __init__(self, owner: Transfers, row: int, load: bool) -> None:
        self._owner, self._row, self._load = owner, row, load

    def __call__(self, slot: np.ndarray[Any, Any]) -> None:
        rows = self._owner._rows
        if rows is None:
            raise RuntimeError("the rows are gone")
        if self._load:
            np.copyto(rows[self._row], slot)
        else:
            np.copyto(slot, rows[self._row])


class Store:
    """The daemon as the threads see it: made at the first key, and never raising.

    `make`: called once, with the length of the first key; what it raises is logged, and every key is a
    miss from then on.  Keys of another length are misses too.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._store: Any = None
        self._key_len = 0

    def call(self, name: str, keys: List[bytes], blocks: Optional[Sequence[_Row]] = None) -> List[bool]:
        """contains, get or put: an answer for each key; False for all that goes wrong."""
        answers = [False] * len(keys)
        try:
            store = self._get(keys)
            right = [i for i, key in enumerate(keys) if len(key) == self._key_len]
            if store is None or not right:
                return answers
            some = [keys[i] for i in right]
            found = (
                getattr(store, name)(some)
                if blocks is None
                else getattr(store, name)(some, [blocks[i] for i in right])
            )
            for i, answer in zip(right, found):
                answers[i] = bool(answer)
        except Exception as error:
            # A store promises not to raise.  Should it do so nonetheless the engine computes.
            _log.error("prefixd: %s raised %s: %s", name, type(error).__name__, error)
            return [False] * len(keys)
        return answers

    def close(self) -> None:
        """Give up the connections; later calls are misses."""
        with self._lock:
            store, self._store = self._store, None
            self._key_len = self._key_len or -1
        try:
            if store is not None:
                store.close()
        except Exception as error:
            _log.warning("prefixd: closing the store: %s", error)

    def _get(self, keys: List[bytes]) -> Any:
        with self._lock:
            if self._key_len == 0 and keys:
                self._key_len = len(keys[0])
                try:
                    self._store = self._make(self._key_len)
                except Exception as error:
                    _log.error("prefixd: the secondary tier stays empty: %s", error)
            return self._store


# ---- lookups ------------------------------------------------------------------------------------


@dataclass
class _Asked:
    at: float
    answer: Optional[bool] = None


class Lookups:
    """Answers whether keys are stored, for requests that ask again at every step of the scheduler.

    `deadline`: seconds from a request's first question about a key after which the answer is "no".
    All methods but the thread's own are called by one thread.
    """

    def __init__(self, store: Store, deadline: float) -> None:
        self._store = store
        self._deadline = deadline
        self._asked: Dict[str, Dict[bytes, _Asked]] = {}
        self._new: List[Tuple[str, bytes, float]] = []
        self._questions: "queue.SimpleQueue[Optional[List[Tuple[str, bytes, float]]]]" = queue.SimpleQueue()
        self._answers: "queue.SimpleQueue[List[Tuple[str, bytes, bool]]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._closed = False
        self.late = 0
        self.asked = 0
        self.found = 0

    def ask(self, request: str, key: bytes) -> Optional[bool]:
        """Whether `key` is stored; None: not known yet, ask again at the next step."""
        if not self._answers.empty():
            self._take()
        keys = self._asked.setdefault(request, {})
        entry = keys.get(key)
        if entry is None:
            now = time.monotonic()
            entry = keys[key] = _Asked(now, False if self._closed else None)
            self.asked += 1
            if not self._closed:
                self._new.append((request, key, now))
        elif entry.answer is None and time.monotonic() - entry.at > self._deadline:
            entry.answer = False
            self.late += 1
        return entry.answer

    def flush(self) -> None:
        """Send what was asked since the last call, as one batch; at the end of a scheduler step."""
        self._take()
        if not self._new or self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="prefixd-lookup", daemon=True)
            self._thread.start()
        self._questions.put(self._new)
        self._new = []

    def missing(self, keys: Sequence[bytes]) -> None:
        """A load of `keys` failed: no request that asked is told again that they are there."""
        for asked in self._asked.values():
            for key in keys:
                entry = asked.get(key)
                if entry is not None:
                    entry.answer = False

    def forget(self, request: str) -> None:
        """The request is finished; its answers go, so that the next one asks anew."""
        self._asked.pop(request, None)

    def close(self) -> None:
        """End the thread and answer "no" from now on.  The thread ends with its current question."""
        self._closed = True
        self._new = []
        for asked in self._asked.values():
            for entry in asked.values():
                entry.answer = False
        thread, self._thread = self._thread, None
        if thread is not None:
            self._questions.put(None)
            thread.join(self._deadline + 30.0)
            if thread.is_alive():
                _log.error("prefixd: the lookup thread does not end")

    def _take(self) -> None:
        while True:
            try:
                answers = self._answers.get_nowait()
            except queue.Empty:
                return
            for request, key, there in answers:
                entry = self._asked.get(request, {}).get(key)
                if entry is not None and entry.answer is None:
                    entry.answer = there
                    self.found += there

    def _run(self) -> None:
        ended = False
        while not ended:
            batch = self._questions.get()
            waiting: List[Tuple[str, bytes, float]] = []
            while True:
                if batch is None:
                    ended = True
                    break
                waiting.extend(batch)
                try:
                    batch = self._questions.get_nowait()
                except queue.Empty:
                    break
            if not ended:
                self._answer(waiting)

    def _answer(self, waiting: List[Tuple[str, bytes, float]]) -> None:
        for start in range(0, len(waiting), _LOOKUP_SLICE):
            # Whoever has given up on a question does not delay the others with it.
            now = time.monotonic()
            part = [q for q in waiting[start : start + _LOOKUP_SLICE] if now - q[2] <= self._deadline]
            keys = list(dict.fromkeys(q[1] for q in part))
            there = dict(zip(keys, self._store.call("contains", keys)))
            self._answers.put([(request, key, there[key]) for request, key, _ in part])


# ---- transfers ----------------------------------------------------------------------------------


@dataclass
class Job:
    """Rows to copy: into the pool (`load` False) or out of it.  `keys[i]` belongs to row `rows[i]`."""

    job_id: int
    load: bool
    keys: List[bytes]
    rows: List[int]
    at: float = field(default_factory=time.monotonic)
    number: int = 0


@dataclass
class Done:
    """How a job ended.  `ok` are the keys that succeeded, all of them if `success`."""

    job_id: int
    load: bool
    success: bool
    ok: List[bytes]
    failed: List[bytes]
    seconds: float


class Transfers:
    """Jobs between the rows of the primary tier and the daemon's pool, loads before stores.

    `rows`: uint8, n x block bytes; let go of by `close`.  `load_deadline`, `store_deadline`: seconds
    from a job's submission after which what is left of it fails.  All methods but the threads' own are
    called by one thread.
    """

    def __init__(
        self,
        rows: np.ndarray[Any, Any],
        store: Store,
        *,
        threads: int,
        load_deadline: float,
        store_deadline: float,
    ) -> None:
        self._rows: Optional[np.ndarray[Any, Any]] = rows
        self._store = store
        self._n_threads = threads
        self._deadlines = {True: load_deadline, False: store_deadline}
        self._batch = max(1, min(_COPY_BLOCKS, _COPY_BYTES // max(1, rows.shape[1])))
        self._changed = threading.Condition()
        self._loads: Deque[Job] = deque()
        self._stores: Deque[Job] = deque()
        self._running = 0
        self._done: List[Done] = []
        self._number = 0
        self._cancelled = 0  # jobs up to this number stop at their next batch
        self._refusing = False
        self._closed = False
        self._threads: List[threading.Thread] = []

    @property
    def open(self) -> int:
        """Jobs whose end was not taken yet."""
        with self._changed:
            return len(self._loads) + len(self._stores) + self._running + len(self._done)

    def submit(self, job: Job) -> None:
        """Queue a job; never waits.  After `refuse` or `close` it fails at once."""
        with self._changed:
            self._number += 1
            job.number = self._number
            if self._refusing or not job.keys or len(job.keys) != len(job.rows):
                self._finish(job, [False] * len(job.keys))
                return
            (self._loads if job.load else self._stores).append(job)
            if len(self._threads) < self._n_threads:
                name = f"prefixd-copy-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()

    def take(self) -> List[Done]:
        """The jobs that ended since the last call."""
        with self._changed:
            done, self._done = self._done, []
            return done

    def refuse(self) -> None:
        """Let every job fail that is submitted from now on."""
        with self._changed:
            self._refusing = True

    def drain(self, seconds: float) -> bool:
        """Wait until no job is open, those that have not begun after `seconds` being cancelled.

        A job that runs is not torn: it ends after the batch that it is in.  False: it did not end in
        half a minute more, and its rows may still be in use.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while self._loads or self._stores or self._running:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self._cancel()

    def close(self) -> bool:
        """Cancel what has not begun, wait for what has, end the threads and let go of the rows.

        False: a thread did not end, and rows may still be in use.
        """
        with self._changed:
            self._refusing = self._closed = True
            ended = self._cancel()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(30.0 if ended else 0.0)
            ended = ended and not thread.is_alive()
        self._threads = []
        if ended:
            self._rows = None
        return ended

    def _cancel(self) -> bool:
        """With the lock: fail the jobs that wait, let those that run stop early, wait for them."""
        self._cancelled = self._number
        for jobs in (self._loads, self._stores):
            while jobs:
                job = jobs.popleft()
                self._finish(job, [False] * len(job.keys))
        until = time.monotonic() + 30.0
        while self._running and time.monotonic() < until:
            self._changed.wait(until - time.monotonic())
        if self._running:
            _log.error("prefixd: %d copy jobs do not end", self._running)
        return self._running == 0

    def _finish(self, job: Job, answers: List[bool]) -> None:
        ok = [key for key, good in zip(job.keys, answers) if good]
        failed = [key for key, good in zip(job.keys, answers) if not good]
        self._done.append(Done(job.job_id, job.load, not failed, ok, failed, time.monotonic() - job.at))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._loads and not self._stores and not self._closed:
                    self._changed.wait()
                if self._closed:
                    break
                job = (self._loads or self._stores).popleft()
                self._running += 1
            answers: List[bool] = []
            try:
                answers = self._copy(job)
            except Exception as error:
                _log.error("prefixd: a copy job raised %s: %s", type(error).__name__, error)
            finally:
                answers += [False] * (len(job.keys) - len(answers))
                with self._changed:
                    self._finish(job, answers)
                    self._running -= 1
                    self._changed.notify_all()

    def _copy(self, job: Job) -> List[bool]:
        """Which of the job's keys were copied, in their order; shorter if it was cut off."""
        answers: List[bool] = []
        until = job.at + self._deadlines[job.load]
        for start in range(0, len(job.keys), self._batch):
            if job.number <= self._cancelled or time.monotonic() > until:
                break
            keys = job.keys[start : start + self._batch]
            rows = [_Row(self, row, job.load) for row in job.rows[start : start + self._batch]]
            answers += self._store.call("get" if job.load else "put", keys, rows)
        return answers
