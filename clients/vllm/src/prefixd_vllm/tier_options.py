"""The options of the secondary tier, as they stand in ``secondary_tiers`` of the engine's configuration.

Parsing refuses what it does not know and names what is missing: a misspelt option would silently become
its default, and a forgotten one would share too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from prefixd.errors import Status
from prefixd.identity import IdentityError

__all__ = ["TierOptions"]

_RIGHT = {
    "revision": "give the commit or a digest of the weights that this engine serves",
    "tenant": "give the tenant whose prompts these are, as the daemon's configuration names it",
    "salt": "give the label or secret of the prompts' owner, '' for none",
}
_ON_RESET = ("stop", "keep")


@dataclass(frozen=True)
class TierOptions:
    """One field per option; times are seconds.

    `socket`: of the daemon, None for the client's default.  `revision`, `tenant`, `salt`: required.
    `model`, `adapter`, `scales`, `hash_algo`: see ``tier_identity``.  `deadline`: of one call to the
    daemon, from a helper thread.  `lookup_deadline`: after which a question is answered as a miss.
    `load_deadline`, `store_deadline`: from a job's submission on, after which what is left of it fails.
    `drain`: how long `drain_jobs` waits before it cancels.  `threads`: that copy.  `on_reset`: what a
    reset of the engine's caches means, "stop" (nothing is shared any more) or "keep".  `locality`: as the
    engine's requests may filter tiers by it, "LOCAL" or "REMOTE".
    """

    revision: str
    tenant: str
    salt: bytes
    socket: Optional[str] = None
    model: Optional[str] = None
    adapter: str = ""
    scales: Optional[str] = None
    hash_algo: Optional[str] = None
    deadline: float = 0.5
    lookup_deadline: float = 0.1
    load_deadline: float = 2.0
    store_deadline: float = 10.0
    drain: float = 2.0
    threads: int = 1
    on_reset: str = "stop"
    locality: Optional[str] = None

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> "TierOptions":
        """The options, or :class:`prefixd.identity.IdentityError` naming the one that is wrong."""
        known = set(cls.__dataclass_fields__)
        for name in options:
            if name not in known:
                raise IdentityError(
                    Status.ARGUMENT, f"no such option; there are {', '.join(sorted(known))}", str(name)
                )
        for name, right in _RIGHT.items():
            if options.get(name) is None:
                raise IdentityError(Status.MISSING_FIELD, f"it was not given; {right}", name)
        values: Dict[str, Any] = dict(options)
        for name in (
            "revision",
            "tenant",
            "salt",
            "socket",
            "model",
            "adapter",
            "scales",
            "hash_algo",
            "on_reset",
        ):
            if values.get(name) is not None and not isinstance(values[name], str):
                raise IdentityError(Status.ARGUMENT, f"it is {values[name]!r}, no text", name)
        values["salt"] = values["salt"].encode()
        for name in ("deadline", "lookup_deadline", "load_deadline", "store_deadline", "drain"):
            if name in values:
                values[name] = cls._seconds(name, values[name])
        threads = values.get("threads", 1)
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 16:
            raise IdentityError(Status.ARGUMENT, f"it is {threads!r}; give 1 to 16", "threads")
        if values.get("on_reset", "stop") not in _ON_RESET:
            raise IdentityError(
                Status.ARGUMENT, f"it is {values['on_reset']!r}; give stop or keep", "on_reset"
            )
        if values.get("locality") not in (None, "LOCAL", "REMOTE"):
            raise IdentityError(
                Status.ARGUMENT, f"it is {values['locality']!r}; give LOCAL or REMOTE", "locality"
            )
        if values.get("adapter") is None:
            values["adapter"] = ""
        return cls(**values)

    @staticmethod
    def _seconds(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 3600:
            raise IdentityError(
                Status.ARGUMENT, f"it is {value!r}; give seconds, more than 0, at most 3600", name
            )
        return float(value)
