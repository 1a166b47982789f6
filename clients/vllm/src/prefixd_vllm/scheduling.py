"""The scheduler's half: what of a prompt is in the pool, which blocks to load, which to save.

Runs in the engine's scheduling loop, one thread, so no call takes longer than `lookup_deadline_ms`, and one
that meets no daemon takes nothing.  A request holds at most one lease per rank.  A lease begins with a match,
is used again when the engine asks again, and ends when the load is done, when the request is finished,
preempted or scheduled without a load, or after `hold_ms` without being scheduled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from prefixd.errors import PrefixdError, Status

from .meta import Load, Meta, Save
from .session import Link, Say, Session
from .settings import Settings

__all__ = ["SchedulerSide"]

_ENDED_WELL = frozenset(("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"))
_LOOK = 0.0005  # seconds: long enough to take what has arrived
_REUSE_MASK = (1 << 48) - 1  # the daemon's part of a counter, without the client's own number of the life


@dataclass
class _Request:
    """What is known of one request.  Positions are in blocks."""

    request: Any
    session: Optional[Session] = None  # of the leases
    leases: List[Any] = field(default_factory=list)  # by rank
    reuse: List[int] = field(default_factory=list)
    n_keys: int = 0  # asked for by the leases
    since: float = 0.0  # when the leases began
    rising: bool = False  # blocks come up from a lower tier
    first_ask: float = 0.0
    have: int = 0  # the engine's own hit when it asked last
    stored: int = 0  # known to be in the pool
    sent: int = 0  # told to the workers for saving
    loading: Optional[Load] = None
    spoilt: bool = False  # a load failed: compute from now on


class SchedulerSide:
    """`namespaces()` gives the options by rank, or None while the engine's hash seed is not made yet."""

    def __init__(
        self,
        settings: Settings,
        link: Link,
        owner: Any,
        namespaces: Callable[[], Optional[List[Any]]],
        block_tokens: int,
        *,
        loads: bool,
        saves: bool,
        say: Say,
    ) -> None:
        self._settings, self._link, self._owner, self._say = settings, link, owner, say
        self._namespaces, self._options = namespaces, []  # type: ignore[var-annotated]
        self._block = block_tokens
        self._loads, self._saves = loads, saves
        self._requests: Dict[str, _Request] = {}
        self._held: Dict[str, _Request] = {}  # those with leases, finished ones in mid-load included
        self._planned: List[Load] = []
        self._last: List[Save] = []
        self._delayed_new: Set[str] = set()
        self._delayed: Set[str] = set()
        self.counts: Dict[str, int] = {}

    # ---- what the engine asks ----

    def matched(self, request: Any, num_computed: int) -> Tuple[Optional[int], bool]:
        """Tokens behind `num_computed` that can be loaded; None: ask again, an answer is on its way."""
        if not self._loads:
            return 0, False
        r = self._of(request)
        if r.loading is not None:
            return 0, False  # the engine does not ask then; in doubt it computes
        r.have = num_computed // self._block
        keys = self._keys(request, (request.num_tokens - 1) // self._block)
        if r.spoilt or getattr(request, "skip_reading_prefix_cache", False) or len(keys) <= r.have:
            self._release(r)
            return 0, False
        now = time.monotonic()
        r.first_ask = r.first_ask or now
        session = self._ready()
        if session is None:
            r.leases, r.session = [], None
            if self._link.opening and now - r.first_ask < self._settings.open_ms / 1000:
                return None, False
            return 0, False
        if r.session is not session or r.n_keys != len(keys):
            self._release(r)
            self._match(r, session, keys, now)
        n = self._found(r, session, now)
        if n is None:
            return None, False
        r.stored = max(r.stored, n)
        if n <= r.have:
            self._release(r)
            return 0, False
        return (n - r.have) * self._block, True

    def allocated(self, request: Any, block_ids: List[int], num_external: int) -> None:
        """The engine has decided: `num_external` tokens are to be loaded into its blocks."""
        r = self._of(request)
        if num_external <= 0:
            if r.loading is None:
                self._release(r)
            return
        n = -(-num_external // self._block)
        load = Load(request.request_id, list(block_ids[r.have : r.have + n]))
        r.loading = load
        self._planned.append(load)  # from here on the engine waits for it, whatever follows
        self._held[request.request_id] = r
        if num_external % self._block or len(load.blocks) != n or r.session is None:
            self._say(
                "plan", "a load could not be planned (%d tokens, %d blocks)", num_external, len(load.blocks)
            )
            return
        slots = [[int(slot) for slot in lease.slots[r.have : r.have + n]] for lease in r.leases]
        if slots and all(len(one) == n for one in slots):
            load.boot, load.reuse, load.slots = r.session.boot, r.reuse, slots
            self._count("loads", 1)

    def step(self, output: Any) -> Meta:
        """Everything for the workers to do with this step."""
        preempted = set(getattr(output, "preempted_req_ids", None) or ())
        meta = Meta(list(self._options), self._planned, self._last, preempted, self._delayed_new)
        self._planned, self._last, self._delayed_new = [], [], set()
        try:
            self._plan_saves(output, meta)
            self._expire()
        except Exception as error:  # the engine waits for what is in `meta` already: that must arrive
            self._say("step", "planning a step failed: %r; its blocks are not saved", error, trace=True)
        return meta

    def _plan_saves(self, output: Any, meta: Meta) -> None:
        for req_id in meta.preempted:
            if req_id in self._requests:
                self._requests[req_id].sent = 0
        if self._saves:
            meta.saves.extend(self._full_blocks(output))

    def _expire(self) -> None:
        now = time.monotonic()
        for r in [r for r in self._held.values() if r.loading is None]:
            if now - r.since > self._settings.hold_ms / 1000:
                self._release(r)

    def received(self, done: Iterable[str], sent: Iterable[str], bad_blocks: Set[int]) -> None:
        """What the workers told: loads that ended, saves that ended, blocks that were not loaded."""
        if bad_blocks:
            for r in self._held.values():
                if r.loading is not None and not bad_blocks.isdisjoint(r.loading.blocks):
                    r.spoilt, r.stored = True, 0
                    self._count("loads_failed", 1)
        for req_id in done:
            held = self._held.get(req_id)
            if held is not None:
                held.loading = None
                self._release(held)
        self._delayed.difference_update(sent)

    def finished(self, request: Any, block_ids: List[int]) -> bool:
        """Ends a request; True: keep its blocks until the workers say that they are saved."""
        r = self._requests.pop(request.request_id, None)
        if r is None:
            return False
        if r.loading is not None:
            return False  # the engine waits for the load itself; its lease ends with it
        self._release(r)
        if self._saves and request.status.name in _ENDED_WELL and self._settings.save_generated:
            # The last token was sampled and never computed.  What was scheduled ahead does not count.
            full = min(request.num_tokens - 1, request.num_computed_tokens) // self._block
            done = min(full, len(self._keys(request, full)), len(block_ids))
            if done > max(r.stored, r.sent):
                self._last.append(self._save(r, done, block_ids))
        if r.sent == 0:
            return False
        self._delayed_new.add(request.request_id)
        self._delayed.add(request.request_id)
        return True

    def new(self, request: Any) -> None:
        self._of(request)
        self._ready()  # begins to open, if nothing has yet

    @property
    def frees_pending(self) -> bool:
        """Whether blocks of finished requests will become free when their saves end, which is soon."""
        return bool(self._delayed)

    def reset(self, namespaces: Callable[[], Optional[List[Any]]]) -> None:
        """Use other namespaces from now on."""
        for r in list(self._held.values()):
            if r.loading is None:
                self._release(r)
        self._namespaces, self._options = namespaces, []
        for r in self._requests.values():
            r.stored = 0

    def close(self) -> None:
        for r in list(self._held.values()):
            self._release(r)
        self._link.close()

    # ---- saving ----

    def _full_blocks(self, output: Any) -> Iterable[Save]:
        state = getattr(output, "kv_connector_block_state", None)
        for req_id, scheduled in output.num_scheduled_tokens.items():
            r = self._requests.get(req_id)
            if r is None or state is None:
                continue
            request = r.request
            # Computed when this step is over, and of tokens that are known: only those have hashes.
            full = (request.num_computed_tokens + scheduled) // self._block
            prompt = request.num_prompt_tokens // self._block
            if not self._settings.save_generated:
                full = min(full, prompt)
            done = min(full, len(request.block_hashes))
            before = max(r.stored, r.sent)
            if done <= before or (before >= min(done, prompt) and done - before < self._settings.save_every):
                continue
            done = min(done, len(self._keys(request, done)))
            block_ids = state.resolve_block_ids(req_id)[0]
            if before < done <= len(block_ids):
                yield self._save(r, done, block_ids)

    def _save(self, r: _Request, done: int, block_ids: List[int]) -> Save:
        start, r.sent = r.sent, done
        keys = [bytes(key) for key in r.request.block_hashes[start:done]]
        self._count("blocks_to_save", done - max(start, r.stored))
        return Save(r.request.request_id, start, keys, list(block_ids[start:done]))

    # ---- asking ----

    def _of(self, request: Any) -> _Request:
        r = self._requests.get(request.request_id)
        if r is None or r.request is not request:
            if r is not None:
                self._release(r)
            r = self._requests[request.request_id] = _Request(request)
        return r

    def _keys(self, request: Any, n: int) -> List[bytes]:
        publishable = getattr(request, "num_publishable_block_hashes", None)
        if publishable is not None:
            n = min(n, int(publishable))
        return request.block_hashes[:n]  # type: ignore[no-any-return]

    def _ready(self) -> Optional[Session]:
        if not self._options:
            self._options = self._namespaces() or []
        if self._options:
            self._link.want(self._options)
        return self._link.session

    def _match(self, r: _Request, session: Session, keys: List[bytes], now: float) -> None:
        until = now + self._settings.lookup_deadline_ms / 1000
        r.session, r.n_keys, r.since, r.reuse, r.rising = session, len(keys), now, [], False
        self._held[r.request.request_id] = r
        try:
            with session.lock:
                for space in session.spaces:
                    lease = space.match(
                        self._owner,
                        digests=keys,
                        promote=True,
                        load_deadline=self._settings.lower_tier_ms / 1000,
                        deadline=max(until - time.monotonic(), 0.0005),
                    )
                    r.leases.append(lease)
                    r.reuse.append(lease.result.reuse & _REUSE_MASK)
                    r.rising = r.rising or bool(lease.result.loading)
                if not session.current:
                    raise PrefixdError(Status.GONE, "the daemon was started anew")
            session.strikes = 0
        except PrefixdError as error:
            self._count("lookups_failed", 1)
            self._release(r)
            self._link.failed(session, error)
            r.n_keys = -1  # nothing was learned

    def _found(self, r: _Request, session: Session, now: float) -> Optional[int]:
        """Leading blocks that all ranks have in the pool; None while more are on their way up."""
        if not r.leases:
            return 0
        if r.rising:
            if now - r.since < self._settings.lower_tier_ms / 1000 and self._still_rising(r, session):
                return None
            r.rising = False
        return min(len(lease.slots) for lease in r.leases)

    def _still_rising(self, r: _Request, session: Session) -> bool:
        """Looks, without waiting, whether loads from lower tiers have ended, and takes what came up."""
        rising = False
        try:
            with session.lock:
                for rank, lease in enumerate(r.leases):
                    if not lease.result.loading:
                        continue
                    try:
                        lease.load_wait(deadline=_LOOK)
                    except PrefixdError as error:
                        if error.status != Status.DEADLINE:
                            raise
                        rising = True
                        continue
                    result = lease.extend(deadline=self._settings.lookup_deadline_ms / 1000)
                    r.reuse[rank] = result.reuse & _REUSE_MASK
        except PrefixdError as error:
            self._release(r)
            self._link.failed(session, error)
            return False
        return rising

    def _release(self, r: _Request) -> None:
        """Gives the leases back, unless a load still reads what they hold."""
        if r.loading is not None:
            return
        leases, session = r.leases, r.session
        r.leases, r.session, r.n_keys = [], None, 0
        self._held.pop(r.request.request_id, None)
        if not leases or session is None:
            return
        if session is not self._link.session:
            return  # they ended with their connection; or it only was slow, and they go with its next request
        with session.lock:
            for lease in leases:
                try:
                    lease.release(deadline=self._settings.lookup_deadline_ms / 1000)
                except PrefixdError as error:
                    self._link.failed(session, error)
                    if self._link.session is not session:
                        break  # no more waiting; those that are dropped are released with the next request

    def _count(self, what: str, n: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + n
