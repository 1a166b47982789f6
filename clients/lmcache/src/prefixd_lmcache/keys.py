"""LMCache's names of chunks as the daemon's keys: 32 bytes, the same in every process.

A key of LMCache has fields; the daemon's is one digest.  Every field that LMCache itself compares goes
in, framed by its length, so that no two keys make one digest by where one field ends and the next begins.
No engine is imported: keys are read by their attributes.
"""

from __future__ import annotations

import hashlib
from typing import Any, Iterable, List, Union

__all__ = ["DIGEST_LEN", "chunk_digest", "object_digest", "probe_digest"]

DIGEST_LEN = 32

_Field = Union[str, int, bytes, bool, float, None]


def _framed(kind: bytes, fields: Iterable[_Field]) -> bytes:
    hash_ = hashlib.blake2b(digest_size=DIGEST_LEN, person=kind)
    for field in fields:
        # The type is said as well: LMCache tells the tag 1 from the tag "1".
        if isinstance(field, bytes):
            tag, data = b"b", field
        elif isinstance(field, str):
            tag, data = b"s", field.encode("utf-8", "surrogatepass")
        elif isinstance(field, bool):
            tag, data = b"t", str(field).encode()
        elif isinstance(field, int):
            tag, data = b"i", str(field).encode()
        else:
            tag, data = b"o", repr(field).encode("utf-8", "surrogatepass")
        hash_.update(tag + len(data).to_bytes(4, "little") + data)
    return hash_.digest()


def chunk_digest(key: Any, scratch: bytes = b"") -> bytes:
    """The daemon's key of a ``CacheEngineKey``.

    Tags (``lmcache.tag.*`` of a request) count in their order, as in LMCache's own comparison; other
    request settings do not.  `scratch` makes names that only this process knows.
    """
    fields: List[_Field] = [
        key.model_name,
        key.world_size,
        key.worker_id,
        key.chunk_hash,
        str(key.dtype),
        scratch,
    ]
    for name, value in key.tags or ():
        fields += [name, value]
    return _framed(b"lmcache-chunk", fields)


def object_digest(key: Any) -> bytes:
    """The daemon's key of an ``ObjectKey`` of LMCache's server; its salt counts like all of its fields."""
    fields = [key.chunk_hash, key.model_name, key.kv_rank, key.object_group_id, key.cache_salt]
    return _framed(b"lmcache-object", fields)


def probe_digest(chunk_hash: Union[int, bytes]) -> bytes:
    """A chunk's hash as a seed probe: shows whether two processes give one chunk one name."""
    return _framed(b"lmcache-probe", [chunk_hash])
