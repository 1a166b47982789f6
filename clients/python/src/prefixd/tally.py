"""Counters of a block store, and its log: one line of a kind in a minute, however often it happens."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Dict

log = logging.getLogger("prefixd.blockstore")

_SAY_EVERY = 60.0  # seconds between two lines of a kind

COUNTERS = (
    "lookups",  # calls of lookup()
    "inserts",  # calls of insert() and Hit.insert()
    "gets",  # keys of get(), puts and contains likewise
    "puts",
    "contains",
    "hit_blocks",  # by lookup() and get()
    "missed_blocks",
    "stored",  # blocks that became others' to use by this store
    "duplicates",  # that were to be stored and were there already
    "not_stored",  # that were to be stored and were not
    "late_loads",  # loads from lower tiers that did not end in time
    "refused_reads",  # blocks that were read and thrown away
    "deadline",  # calls that did not end in time
    "gone",  # calls for which nobody was there
    "bytes_read",
    "bytes_written",
    "seconds",  # spent in calls
)


class Tally:
    """Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._errors: Dict[str, int] = {}
        self._said: Dict[str, float] = {}

    def add(self, **changes: float) -> None:
        with self._lock:
            for name, change in changes.items():
                self._values[name] += change

    def error(self, kind: str, level: int, text: str, *args: Any, trace: bool = False) -> None:
        """Counts a failure of a kind, and logs it unless one of its kind was logged in the last minute."""
        now = time.monotonic()
        with self._lock:
            self._errors[kind] = self._errors.get(kind, 0) + 1
            if now - self._said.get(kind, -_SAY_EVERY) < _SAY_EVERY:
                return
            self._said[kind] = now
        log.log(level, text, *args, exc_info=trace)

    def snapshot(self) -> Dict[str, Any]:
        with self._lock:
            return {**self._values, "errors": dict(self._errors)}

    def forked(self) -> None:
        """In a child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
