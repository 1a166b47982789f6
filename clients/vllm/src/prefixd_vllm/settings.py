"""What a user sets in `kv_connector_extra_config`, checked once when the engine starts.

A key that is not known is refused: a misspelt deadline must not become the default without a word.
Everything here is plain data; no engine is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping

from prefixd.errors import Status
from prefixd.identity import IdentityError

__all__ = ["Settings"]

# What must be said, and why there is no default.
_NEEDED = {
    "tenant": "give the tenant whose prompts these are, e.g. 'default'; a default would share too much",
    "salt": "give a secret or label of the prompts' owner, or '' to share with all of the tenant",
}


@dataclass(frozen=True)
class Settings:
    """Times are in milliseconds, as written by the user.

    `socket` is None for the client's own default.  `model`, `revision`, `adapter`: see `identity`.
    `lookup_deadline_ms` bounds one question to the daemon while the scheduler waits; `lower_tier_ms` is how
    long a request may wait for blocks that come up from host memory or Redis; `open_ms` how long the first
    requests wait while the namespace is opened; `save_deadline_ms` bounds the storing of one request's
    blocks, which nobody waits for; `load_deadline_ms` bounds the wait of a load for the pool's mapping.
    `save_every`: so many new blocks of an answer are stored at a time; the rest when it is finished.
    """

    tenant: str
    salt: str
    socket: str | None = None
    name: str = "vllm"
    model: str = ""
    revision: str = ""
    adapter: str = ""
    digest_limit_bytes: int = 16 << 30
    lookup_deadline_ms: float = 20.0
    lower_tier_ms: float = 500.0
    open_ms: float = 2000.0
    load_deadline_ms: float = 1000.0
    save_deadline_ms: float = 2000.0
    hold_ms: float = 2000.0
    save_generated: bool = True
    save_every: int = 8

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Settings:
        """From the user's dictionary; raises IdentityError or ValueError that names the key at fault."""
        known = {field.name: field for field in fields(cls)}
        for key in extra:
            if key not in known:
                raise ValueError(
                    f"kv_connector_extra_config: {key!r} is not known to PrefixdConnector; "
                    f"known are {', '.join(known)}"
                )
        for key, right in _NEEDED.items():
            if not isinstance(extra.get(key), str) or (key == "tenant" and not extra[key]):
                raise IdentityError(Status.MISSING_FIELD, f"kv_connector_extra_config lacks it; {right}", key)
        for key, value in extra.items():
            _check(key, value)
        return cls(**extra)


def _check(key: str, value: Any) -> None:
    if key.endswith("_ms"):
        good, right = (
            not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value <= 600_000,
            ("a number of milliseconds above 0, at most 600000"),
        )
    elif key in ("save_every", "digest_limit_bytes"):
        good, right = (
            not isinstance(value, bool) and isinstance(value, int) and value >= 1,
            "a whole number, at least 1",
        )
    elif key == "save_generated":
        good, right = isinstance(value, bool), "true or false"
    else:
        good, right = isinstance(value, str) or (key == "socket" and value is None), "a text"
    if not good:
        raise ValueError(f"kv_connector_extra_config: {key} is {value!r}, should be {right}")
