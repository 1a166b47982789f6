"""Statuses and the exceptions that carry them.

Every failure of a call is a :class:`PrefixdError` with the status, the field at fault and a sentence.
In doubt a worker computes: no status means "retry until it works".
"""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Status codes of the protocol (below 100) and of this client (from 100 on)."""

    OK = 0
    BAD_FRAME = 1
    VERSION = 2
    TOO_LARGE = 3
    BAD_BODY = 4
    MISSING_FIELD = 5
    NO_HELLO = 6
    SELF_TEST = 7
    FORBIDDEN = 8
    UNKNOWN_OP = 9
    UNKNOWN_NAMESPACE = 10
    UNKNOWN_LEASE = 11
    BAD_NAMESPACE = 12
    NO_BUDGET = 13
    BUSY = 14
    DEADLINE = 15
    STALE = 16
    WRONG_STATE = 17
    LIMIT = 18
    DRAINING = 19
    OP_ID_REUSED = 20
    CONFLICT = 21
    UNSUPPORTED = 22
    NO_MEMORY = 23
    REVOKED = 24
    DEVICE_LOST = 25
    GONE = 100  # no daemon answers at the socket, or it closed the connection
    PROTOCOL = 101  # it answered something that is not the protocol
    FORKED = 102  # this client belongs to the parent process
    ARGUMENT = 103  # the call itself is wrong; `field` names the argument


class PrefixdError(Exception):
    """A call that did not succeed: compute, and go on.

    `status` is a :class:`Status`, or the bare number when the daemon is newer than this client;
    `field` names what was wrong, empty if nothing in particular; `text` says what would be right;
    `retry_after` is seconds after which trying again may help, 0.0 where it will not.
    """

    def __init__(self, status: int, text: str, field: str = "", retry_after: float = 0.0) -> None:
        try:
            status = Status(status)
        except ValueError:
            pass
        name = status.name if isinstance(status, Status) else f"status {status}"
        super().__init__(f"{name}: {field + ': ' if field else ''}{text}")
        self.status = status
        self.text = text
        self.field = field
        self.retry_after = retry_after
