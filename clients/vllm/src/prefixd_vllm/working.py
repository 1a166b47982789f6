"""The workers' half: copies blocks between the pool and the engine's K/V cache, in two threads of its own.

The engine's thread only hands over jobs and takes results, and never waits for the daemon.

- Loads are copies alone: the scheduler's lease holds the slots, and the worker has the pool mapped.  What was
  read is checked against the slots' generations afterwards.  A block for which anything is in doubt is told
  to the engine as not loaded, which computes it.
- Saves match the request's path, reserve what is missing, copy and commit.  A block is copied only while
  the engine keeps it: a preempted request's saves are cancelled before its blocks are used again, and a
  finished request's blocks are kept until its saves have ended, well or not.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

import numpy as np
from prefixd.errors import PrefixdError, Status

from .layout import Pages
from .meta import Load, Meta
from .session import Link, Say, Session
from .settings import Settings

__all__ = ["WorkerSide"]

_CHUNK_BYTES = 32 << 20  # copied under a request's lock at a time: what a preemption may have to wait for
_BACKLOG = 0.25  # seconds of waiting in the queue after which a save is dropped, by share of its deadline


class _Path:
    """A request's blocks as told so far.  `lock` is held while its blocks are read."""

    def __init__(self) -> None:
        self.keys: List[bytes] = []
        self.blocks: List[int] = []
        self.lock = threading.Lock()
        self.cancelled = False
        self.waiting = 0  # jobs that have not ended


class WorkerSide:
    """`rank` picks what concerns this worker.  Threads begin with the first job."""

    def __init__(
        self, settings: Settings, link: Link, owner: Any, pages: Pages, rank: int, *, writable: bool, say: Say
    ):
        self._settings, self._link, self._owner, self._pages, self._say = settings, link, owner, pages, say
        self._rank, self._writable = rank, writable  # by role; the session may be read-only besides
        self._lock = threading.Lock()
        self._options: Any = None  # of the namespace that was asked for last
        self._paths: Dict[str, _Path] = {}
        self._delayed: Set[str] = set()
        self._received: Set[str] = set()
        self._bad: Set[int] = set()
        self._load_jobs: queue.SimpleQueue[Optional[Load]] = queue.SimpleQueue()
        self._save_jobs: queue.SimpleQueue[Optional[Tuple[_Path, int, float]]] = queue.SimpleQueue()
        self._threads: List[threading.Thread] = []
        self._counts: Dict[str, int] = {}

    # ---- what the engine's thread calls ----

    def options(self, meta: Meta) -> None:
        """Takes the namespace to use.  With another one than before, what was computed before is not saved."""
        if not meta.options:
            return
        mine = meta.options[self._rank]
        if self._options is not None and self._options != mine:
            for req_id in list(self._paths):
                self._cancel(req_id)
        self._options = mine
        self._link.want([mine])

    def preempted(self, meta: Meta) -> None:
        """Returns when nothing reads these requests' blocks any more: at most one copy later."""
        for req_id in meta.preempted:
            self._cancel(req_id)

    def load(self, meta: Meta) -> None:
        for job in meta.loads:
            try:
                self._start()
            except RuntimeError as error:  # no thread can be had: the request must hear of it all the same
                self._say("thread", "%s; blocks are computed", error)
                self._loaded(job, set(job.blocks))
                continue
            self._load_jobs.put(job)

    def save(self, meta: Meta) -> None:
        """After the step was computed: its full blocks are there to be read."""
        for job in meta.saves:
            path = self._paths.get(job.req_id)
            if job.start == 0:
                self._cancel(job.req_id)
                path = self._paths[job.req_id] = _Path()
            if path is None or len(path.keys) != job.start:
                continue  # told out of order: this request is not saved further
            self._start()  # before anything waits for the thread
            path.keys.extend(job.keys)
            path.blocks.extend(job.blocks)
            with self._lock:
                path.waiting += 1
            self._save_jobs.put((path, len(path.keys), time.monotonic()))

    def results(self, meta: Optional[Meta], finished: Iterable[str]) -> Tuple[Set[str], Set[str]]:
        """(requests whose saves ended and whose blocks were kept for them, requests whose loads ended)."""
        if meta is not None:
            self._delayed |= meta.delayed
        for req_id in finished:
            if req_id not in self._delayed:
                self._paths.pop(req_id, None)
        sent = set()
        with self._lock:
            for req_id in self._delayed:
                path = self._paths.get(req_id)
                if path is None or path.waiting == 0:
                    sent.add(req_id)
            received, self._received = self._received, set()
        for req_id in sent:
            self._paths.pop(req_id, None)
        self._delayed -= sent
        return sent, received

    def bad_blocks(self) -> Set[int]:
        """Blocks that were not loaded since the last call; those of `results` before are among them."""
        with self._lock:
            bad, self._bad = self._bad, set()
        return bad

    def counts(self) -> Dict[str, int]:
        """What happened since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def close(self) -> None:
        self._load_jobs.put(None)
        self._save_jobs.put(None)
        for path in self._paths.values():
            path.cancelled = True
        for thread in self._threads:
            thread.join(2.0)
        self._link.close()

    def _start(self) -> None:
        runs = (("prefixd-load", self._run_loads), ("prefixd-save", self._run_saves))
        for name, run in runs[len(self._threads) :]:
            thread = threading.Thread(target=run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _cancel(self, req_id: str) -> None:
        path = self._paths.pop(req_id, None)
        if path is not None:
            with path.lock:
                path.cancelled = True

    def _count(self, what: str, n: int) -> None:
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + n

    # ---- loads ----

    def _run_loads(self) -> None:
        while True:
            job = self._load_jobs.get()
            if job is None:
                return
            bad: Set[int] = set(job.blocks)
            try:
                bad = self._load(job)
            except Exception as error:  # in any doubt the engine computes these blocks
                self._say("load", "blocks could not be loaded: %s; they are computed", error, trace=True)
            self._loaded(job, bad)

    def _loaded(self, job: Load, bad: Set[int]) -> None:
        with self._lock:
            self._bad |= bad
            self._received.add(job.req_id)
        self._count("blocks_loaded", len(job.blocks) - len(bad))
        self._count("blocks_not_loaded", len(bad))

    def _load(self, job: Load) -> Set[int]:
        """Copies; returns the blocks that are not right."""
        every = set(job.blocks)
        if not job.slots:
            return every
        slots = job.slots[self._rank]
        session = self._session_of(job.boot)
        pool = session.pools[0] if session is not None else None
        if pool is None:
            self._say(
                "load gone", "the daemon went away between a match and its load; those blocks are computed"
            )
            return every
        if len(slots) != len(job.blocks) or pool.block_bytes != self._pages.block_bytes:
            raise ValueError(f"{len(slots)} slots of {pool.block_bytes} bytes for {len(job.blocks)} blocks")
        if max(slots) >= pool.n_slots or min(slots) < 0 or max(job.blocks) >= self._pages.n_blocks:
            raise ValueError("a slot or block that does not exist")
        self._pages.load(pool.array, slots, job.blocks)
        stale = pool.stale(np.asarray(slots), pool.reuse(job.reuse[self._rank]))
        return {block for block, old in zip(job.blocks, stale) if old}

    def _session_of(self, boot: bytes) -> Optional[Session]:
        """The session with the daemon's life that gave the slots; other lives' slots mean nothing here."""
        until = time.monotonic() + self._settings.load_deadline_ms / 1000
        while True:
            session = self._link.wait(max(until - time.monotonic(), 0.0))
            if session is None or session.boot == boot:
                return session
            self._link.failed(session, PrefixdError(Status.GONE, "the daemon was started anew"))
            if time.monotonic() >= until:
                return None

    # ---- saves ----

    def _run_saves(self) -> None:
        while True:
            job = self._save_jobs.get()
            if job is None:
                return
            path, upto, since = job
            seconds = self._settings.save_deadline_ms / 1000
            try:
                session = self._link.session
                if (
                    session is None
                    or not (self._writable and session.writable)
                    or time.monotonic() - since > _BACKLOG * seconds
                ):
                    self._count("saves_dropped", 1)
                elif not path.cancelled:
                    self._save(session, path, upto, time.monotonic() + seconds)
            except Exception as error:  # nothing of it was committed but what is right
                self._say("save", "blocks could not be saved: %s", error, trace=True)
            with self._lock:
                path.waiting -= 1

    def _save(self, session: Session, path: _Path, upto: int, until: float) -> None:
        keys, blocks = path.keys[:upto], path.blocks[:upto]
        try:
            with session.lock:
                lease = session.spaces[0].match(self._owner, digests=keys, deadline=_left(until))
                try:
                    self._fill(lease, path, blocks, until)
                finally:
                    lease.release(deadline=max(_left(until), 0.05))
            session.strikes = 0
        except PrefixdError as error:
            self._count("saves_dropped", 1)
            self._link.failed(session, error)

    def _fill(self, lease: Any, path: _Path, blocks: List[int], until: float) -> None:
        pool = lease.pool
        chunk = max(1, _CHUNK_BYTES // self._pages.block_bytes)
        if pool.block_bytes != self._pages.block_bytes:
            raise ValueError(
                f"the pool's blocks have {pool.block_bytes} bytes, the engine's {self._pages.block_bytes}"
            )
        at = len(lease.slots)
        while at < len(blocks) and time.monotonic() < until:
            todo = lease.reserve(min(chunk, len(blocks) - at), deadline=_left(until))
            n = len(todo.slots)
            with path.lock:
                if path.cancelled:
                    return
                self._pages.save(
                    lease.room, [int(slot) for slot in todo.slots], blocks[todo.first : todo.first + n]
                )
            done = lease.commit(n, deadline=_left(until))
            at = todo.first + n
            self._count("blocks_saved", done.n_stored)


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.001)
