"""What must agree before two LMCache instances share chunks, from LMCache's own configuration objects.

The engine tells model, shapes and type; what it does not know (which weights, which LoRA, whose prompts)
stands in LMCache's configuration file and has no default.  A setting that is missing, unknown or cannot
be right raises :class:`prefixd.IdentityError`, which names it, when LMCache makes the connector; LMCache
logs that and goes on without this storage.  No engine is imported: objects are read by their attributes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from prefixd.errors import Status
from prefixd.identity import DTYPE_BITS, Identity, IdentityError, dtype_name

__all__ = ["ModelSettings", "ServerSettings", "Settings", "identity_of", "object_identity"]

_MISSING: Any = object()

_RIGHT: Dict[str, str] = {
    "revision": "give the commit or a digest of the weights as they are loaded, quantization included",
    "adapter": "give the LoRA that the engine always applies, or '' where there is none",
    "scales": "give a digest or name of the K/V scales, or '' where all are 1",
    "windows": "give the attention windows by layer group, or '' for full attention",
    "tenant": "give the tenant whose prompts these are, as the daemon knows it",
    "salt": "give a secret of those who may share, or '' where all of the tenant's workers may",
    "socket": "give the path of the daemon's socket",
    "deadline": "give seconds that one read of the engine may take, above 0",
    "lookup_deadline": "give seconds that one lookup of the engine may take, above 0",
    "put_deadline": "give seconds that one batch of chunks may wait until it is stored, above 0",
    "pending_bytes": "give the bytes that may wait to be stored, at least 0",
    "pipeline_stages": "give the stages of pipeline parallelism, 1 to 65535; 1: none",
    "ping": "give true or false",
    "hash_algorithm": "give the server's --hash-algorithm",
    "chunk_size": "give the tokens of a chunk; all of LMCache's settings must say the same number",
    "models": "give a mapping from model names to their revision, adapter and scales",
    "use_layerwise": "layers in objects of their own are not supported; set it to false",
    "enable_blending": "chunks that are used at other positions are not supported; set it to false",
    "remote_serde": "chunks are kept as they are, so that one copy brings them back; set it to naive",
}


def _refuse(field: str, what: str, status: Status = Status.BAD_NAMESPACE) -> IdentityError:
    return IdentityError(status, f"{what}; {_RIGHT[field]}", field)


def _missing(field: str) -> IdentityError:
    return _refuse(field, "it was not given", Status.MISSING_FIELD)


class _Options:
    """A mapping of settings, each taken once, with nothing left over at the end."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = dict(given)

    def text(self, field: str, default: Any = _MISSING) -> Any:
        value = self.given.pop(field, default)
        if value is _MISSING or value is None and default is not None:
            raise _missing(field)
        if value is not None and not isinstance(value, str):
            raise _refuse(field, f"it is {value!r}, no text")
        return value

    def seconds(self, field: str, default: float) -> float:
        value = self.given.pop(field, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 3600:
            raise _refuse(field, f"it is {value!r}")
        return float(value)

    def number(self, field: str, low: int, default: Optional[int]) -> Optional[int]:
        value = self.given.pop(field, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise _refuse(field, f"it is {value!r}")
        return value

    def flag(self, field: str) -> Optional[bool]:
        value = self.given.pop(field, None)
        if value is not None and not isinstance(value, bool):
            raise _refuse(field, f"it is {value!r}")
        return value

    def end(self) -> None:
        for field in self.given:
            raise IdentityError(
                Status.BAD_NAMESPACE, "no such setting of prefixd; see its README", str(field)
            )


@dataclass(frozen=True)
class ModelSettings:
    """What LMCache does not know of a model: `revision` and `adapter` must be said, `scales` for 8 bits."""

    revision: str
    adapter: str
    scales: Optional[str] = None
    windows: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ModelSettings:
        """From a mapping with just these settings.  Raises IdentityError, which names the one at fault."""
        given = _Options(options)
        model = cls._take(given)
        given.end()
        return model

    @classmethod
    def _take(cls, given: _Options) -> ModelSettings:
        revision, adapter = given.text("revision"), given.text("adapter")
        return cls(revision, adapter, given.text("scales", None), given.text("windows", ""))


@dataclass(frozen=True)
class Settings:
    """Settings of one connector, checked.

    `socket`           path of the daemon's socket; None: $PREFIXD_SOCKET, else the client's own default
    `tenant`, `salt`   whose prompts these are
    `model`            what LMCache does not know of the model
    `deadline`         seconds of one read, all of its chunks together
    `lookup_deadline`  seconds of one lookup
    `put_deadline`     seconds that a batch of chunks may take until it is stored
    `pending_bytes`    bytes that may wait to be stored; what comes beyond them is dropped
    `pipeline_stages`  None: not said.  Needed for MLA on several ranks, see :func:`identity_of`
    `ping`             whether LMCache's health monitor may ask; None: see PrefixdConnector.support_ping
    """

    socket: Optional[str]
    tenant: str
    salt: bytes
    model: ModelSettings
    deadline: float = 1.0
    lookup_deadline: float = 0.1
    put_deadline: float = 5.0
    pending_bytes: int = 1 << 30
    pipeline_stages: Optional[int] = None
    ping: Optional[bool] = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Settings:
        """From a mapping of settings.  Raises IdentityError, which names the one at fault."""
        given = _Options(options)
        found = _owner_and_limits(given)
        stages, ping = given.number("pipeline_stages", 1, None), given.flag("ping")
        settings = cls(model=ModelSettings._take(given), pipeline_stages=stages, ping=ping, **found)
        given.end()
        return settings

    @classmethod
    def from_extra_config(cls, extra_config: Optional[Mapping[str, Any]], plugin: str) -> Settings:
        """From LMCache's ``extra_config``, keys ``remote_storage_plugin.<plugin>.<setting>``."""
        prefix = f"remote_storage_plugin.{plugin}."
        given = {
            key[len(prefix) :]: value for key, value in (extra_config or {}).items() if key.startswith(prefix)
        }
        for loading in ("module_path", "class_name"):
            given.pop(loading, None)
        return cls.from_options(given)


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the server's adapter, checked: as in :class:`Settings`, for several models.

    `hash_algorithm`, `chunk_size`   as the server was started with
    `models`                         what LMCache does not know, by the model's name as engines tell it
    """

    socket: Optional[str]
    tenant: str
    salt: bytes
    hash_algorithm: str
    chunk_size: int
    models: Tuple[Tuple[str, ModelSettings], ...]
    deadline: float = 1.0
    lookup_deadline: float = 0.1
    put_deadline: float = 5.0
    pending_bytes: int = 1 << 30

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ServerSettings:
        """From ``adapter_params``.  Raises IdentityError, which names the setting at fault."""
        given = _Options(options)
        found = _owner_and_limits(given)
        algorithm = given.text("hash_algorithm")
        tokens = given.number("chunk_size", 1, None)
        if tokens is None:
            raise _missing("chunk_size")
        models = given.given.pop("models", None)
        if not isinstance(models, Mapping) or not models:
            raise _missing("models") if not models else _refuse("models", f"it is {models!r}")
        given.end()
        each = tuple((name, ModelSettings.from_options(of)) for name, of in models.items())
        return cls(hash_algorithm=algorithm, chunk_size=tokens, models=each, **found)

    def model(self, name: str) -> ModelSettings:
        """Raises IdentityError, field "models", for a model of which nothing was said."""
        for known, model in self.models:
            if known == name:
                return model
        raise _refuse("models", f"{name!r} is not among them", Status.MISSING_FIELD)


def _owner_and_limits(given: _Options) -> Dict[str, Any]:
    """The settings that both ways in have; `given` loses them."""
    found: Dict[str, Any] = {
        "socket": given.text("socket", None) or os.environ.get("PREFIXD_SOCKET") or None,
        "tenant": given.text("tenant"),
        "salt": given.text("salt").encode(),
        "deadline": given.seconds("deadline", 1.0),
        "lookup_deadline": given.seconds("lookup_deadline", 0.1),
        "put_deadline": given.seconds("put_deadline", 5.0),
        "pending_bytes": given.number("pending_bytes", 0, 1 << 30),
    }
    if found["tenant"] == "":
        raise _missing("tenant")
    return found


def _groups(metadata: Any) -> Tuple[List[Tuple[int, ...]], List[str]]:
    """Shapes [kv, layers, tokens, hidden] and types of a chunk's layer groups."""
    if callable(getattr(metadata, "get_shapes", None)):
        shapes = [tuple(int(n) for n in shape) for shape in metadata.get_shapes()]
        return shapes, [dtype_name(dtype) for dtype in metadata.get_dtypes()]
    layers, kv, tokens, heads, dim = metadata.kv_shape
    return [(kv, layers, tokens, heads * dim)], [dtype_name(metadata.kv_dtype)]


def _layout(fmt: str, shapes: Sequence[Tuple[int, ...]], dtypes: Sequence[str]) -> str:
    groups = "+".join(f"{'x'.join(map(str, shape))}:{dtype}" for shape, dtype in zip(shapes, dtypes))
    return f"{fmt} {groups}"


def _scales(model: ModelSettings, dtypes: Sequence[str]) -> str:
    # Engines keep fp8 as uint8, so every type of 8 bits or of a size that is not known may be scaled.
    if model.scales is None and any(DTYPE_BITS.get(dtype, 8) <= 8 for dtype in dtypes):
        raise _missing("scales")
    return model.scales or ""


def _bytes(shapes: Sequence[Tuple[int, ...]], itemsizes: Sequence[int]) -> int:
    total = 0
    for shape, size in zip(shapes, itemsizes):
        for n in shape:
            size *= n
        total += size
    return total


def _itemsizes(dtypes: Sequence[str]) -> List[int]:
    sizes = []
    for dtype in dtypes:
        bits = DTYPE_BITS.get(dtype)
        if bits is None or bits % 8:
            raise IdentityError(Status.BAD_NAMESPACE, f"it is {dtype!r}, of no known size", "dtype")
        sizes.append(bits // 8)
    return sizes


def identity_of(metadata: Any, config: Any, settings: Settings, *, lmcache_version: str) -> Identity:
    """The identity of full chunks of LMCache inside the engine's process.

    `metadata`: LMCache's metadata of the engine (model_name, world_size, worker_id, kv_dtype, kv_shape,
    use_mla, chunk_size, and get_shapes/get_dtypes where layers are in several groups).  `config`: its
    configuration.  `lmcache_version`: as installed; another version may lay chunks out in another way.

    The rank is part of it: one rank's chunks hold its own heads.  With MLA all ranks hold the same and
    LMCache stores rank 0's for all, so the identity is rank 0's; as LMCache counts pipeline stages as
    ranks, which do not hold the same, `pipeline_stages: 1` must be said there.

    Raises IdentityError, which names the setting or attribute at fault.
    """
    extra = getattr(config, "extra_config", None) or {}
    for field in ("use_layerwise", "enable_blending"):
        if getattr(config, field, False):
            raise _refuse(field, "it is true")
    serde = getattr(config, "remote_serde", "naive")
    if serde not in (None, "naive"):
        raise _refuse("remote_serde", f"it is {serde!r}")
    tokens = metadata.chunk_size
    for other in (getattr(config, "chunk_size", tokens), metadata.kv_shape[2]):
        if other != tokens:
            raise _refuse("chunk_size", f"it is {tokens} and {other}")
    tp_size, tp_rank = metadata.world_size, metadata.worker_id
    if metadata.use_mla and tp_size > 1 and extra.get("remote_enable_mla_worker_id_as0", True):
        if settings.pipeline_stages is None:
            raise _missing("pipeline_stages")
        if settings.pipeline_stages > 1:
            raise _refuse("pipeline_stages", "with MLA, LMCache gives all of them rank 0's chunks")
        tp_rank = 0
    shapes, dtypes = _groups(metadata)
    return Identity(
        model=metadata.model_name,
        revision=settings.model.revision,
        dtype=dtypes[0],
        layout=_layout("KV_MLA_FMT" if metadata.use_mla else "KV_2LTD", shapes, dtypes),
        engine=f"lmcache {lmcache_version}" if lmcache_version else "",
        adapter=settings.model.adapter,
        tp_size=tp_size,
        tp_rank=tp_rank,
        layers=metadata.kv_shape[0],
        kv_heads=metadata.kv_shape[3],
        head_dim=metadata.kv_shape[4],
        block_tokens=tokens,
        windows=settings.model.windows,
        scales=_scales(settings.model, dtypes),
        block_bytes=_bytes(shapes, _itemsizes(dtypes)),
        opaque=True,
    )


def object_identity(
    model_name: str,
    model: ModelSettings,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[object],
    *,
    world_size: int,
    rank: int,
    group: int,
    chunk_tokens: int,
    lmcache_version: str,
) -> Identity:
    """The identity of objects of LMCache's server, of one model, layout, object group and rank.

    `shapes`, `dtypes`: the object's layout, one entry for each layer group in it.  The server does not
    tell heads from their size, so an object counts as one head of its whole width.
    """
    names = [dtype_name(dtype) for dtype in dtypes]
    whole = [tuple(int(n) for n in shape) for shape in shapes]
    if not whole or not all(whole):
        raise IdentityError(Status.BAD_NAMESPACE, "an object without a shape is not K/V", "layout")
    return Identity(
        model=model_name,
        revision=model.revision,
        dtype=names[0],
        layout=_layout(f"object {group}", whole, names),
        engine=f"lmcache-server {lmcache_version}" if lmcache_version else "",
        adapter=model.adapter,
        tp_size=world_size,
        tp_rank=rank,
        layers=max(1, whole[0][1] if len(whole[0]) == 4 else whole[0][0]),
        kv_heads=1,
        head_dim=whole[0][-1],
        block_tokens=chunk_tokens,
        windows=model.windows,
        scales=_scales(model, names),
        block_bytes=_bytes(whole, _itemsizes(names)),
        opaque=True,
    )
