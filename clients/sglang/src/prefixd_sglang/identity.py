"""What two SGLang instances must agree in before they share pages: the settings and the prefixd.Identity.

Reads plain attributes of SGLang's HiCacheStorageConfig, of its host memory pool, and of the extra
configuration that the operator writes; imports no engine.  What is missing is refused by its name and
nothing that changes K/V has a default here, because a page of another model is read as happily as the
right one.

Which of SGLang's facts became part of the identity, and why, is told in the README.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from prefixd.errors import Status
from prefixd.identity import DTYPE_BITS, Identity, IdentityError, dtype_name

__all__ = ["Geometry", "Settings", "geometry_of", "identity_of", "model_of", "settings_of"]

log = logging.getLogger("prefixd.sglang")

# Host pools whose pages hold all that belongs to their tokens, and whose layouts are checked against
# the installed package by the tests.  Others keep a part of a page elsewhere (scales, indexer keys,
# states) or hold a share of it only.
POOLS = ("MHATokenToKVPoolHost", "AsymmetricMHATokenToKVPoolHost", "MLATokenToKVPoolHost")
LAYOUTS: Dict[str, Tuple[str, ...]] = {
    "MHATokenToKVPoolHost": ("layer_first", "page_first", "page_first_direct", "page_head"),
    "AsymmetricMHATokenToKVPoolHost": ("page_first", "page_first_direct"),
    "MLATokenToKVPoolHost": ("layer_first", "page_first", "page_first_direct"),
}

# Keys of the extra configuration that SGLang reads itself.
_ENGINE_KEYS = frozenset(
    (
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "allocator",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
        "tp_lcm_size",
    )
)
_OWN_KEYS = frozenset(
    (
        "socket",
        "tenant",
        "salt",
        "revision",
        "dtype",
        "adapter",
        "scales",
        "draft",
        "deadline",
        "probe_deadline",
    )
)

_RIGHT = {
    "tenant": 'give the name of the tenant whose prompts these are, e.g. "default"',
    "salt": 'give a secret or label of the prompts\' owner; "" is one like any other',
    "revision": "give the commit or a digest of the weights as they are served: names alone move",
    "dtype": "give the type that K/V has in the cache (bfloat16, float16, fp8_e4m3 ...)",
    "adapter": 'give names and revisions of the LoRA adapters that this server loads, or "" if it loads none',
    "scales": 'give the origin of the K/V scales, e.g. "checkpoint" or a digest of the file: a quantized '
    "cache means something only with them",
    "draft": "give the model and revision of the speculative draft, whose layers share the pages",
    "deadline": "give seconds, above 0 and at most 60",
    "probe_deadline": "give seconds, above 0 and at most 60",
}


@dataclass(frozen=True)
class Settings:
    """The extra configuration, checked.  `scales` and `draft` are None where they were not given."""

    socket: Optional[str]
    tenant: str
    salt: bytes
    revision: str
    dtype: str
    adapter: str
    scales: Optional[str]
    draft: Optional[str]
    deadline: float  # seconds for one call that moves pages
    probe_deadline: float  # seconds for one call that only asks


@dataclass(frozen=True)
class Geometry:
    """What the host memory pool says of its pages.  Sizes are of one rank and one pipeline stage."""

    pool: str  # the pool's class
    layout: str
    stored: str  # element type in memory, "uint8" for fp8
    layers: int  # with those of a draft
    draft_layers: int
    first_layer: int
    heads: int
    k_dim: int
    v_dim: int  # 0: K and V are one (MLA)
    page_tokens: int
    page_bytes: int


def settings_of(extra: Optional[Mapping[str, Any]]) -> Settings:
    """The settings in SGLang's --hicache-storage-backend-extra-config.

    IdentityError names the key that is missing or wrong.  Unknown keys are logged: a misspelt optional
    one would be ignored silently otherwise, and SGLang may come to read more.
    """
    given = dict(extra or {})
    unknown = sorted(set(given) - _ENGINE_KEYS - _OWN_KEYS)
    if unknown:
        log.warning("extra config: %s: not known here and ignored", ", ".join(unknown))
    salt = _text(given, "salt", may_be_empty=True).encode()
    if len(salt) > 255:
        raise _refuse("salt", f"it has {len(salt)} bytes, more than 255")
    return Settings(
        socket=None if given.get("socket") is None else _text(given, "socket"),
        tenant=_text(given, "tenant"),
        salt=salt,
        revision=_text(given, "revision"),
        dtype=dtype_name(_text(given, "dtype")),
        adapter=_text(given, "adapter", may_be_empty=True),
        scales=None if given.get("scales") is None else _text(given, "scales", may_be_empty=True),
        draft=None if given.get("draft") is None else _text(given, "draft"),
        deadline=_seconds(given, "deadline", 1.0),
        probe_deadline=_seconds(given, "probe_deadline", 0.25),
    )


def model_of(config: Any) -> str:
    """The model's name.  IdentityError where SGLang gives none."""
    if not config.model_name:
        raise _refuse("model", "SGLang gives none; set --served-model-name", Status.MISSING_FIELD)
    return str(config.model_name)


def geometry_of(pool: Any) -> Geometry:
    """The geometry of a host memory pool.

    ValueError: pages of this kind of pool cannot be kept, with the reason.  Raise it while the server
    starts; nothing calls this later.
    """
    name = type(pool).__name__
    if name not in POOLS:
        raise ValueError(
            f"prefixd cannot keep the pages of host pool {name}: only {', '.join(POOLS)} hold whole pages in "
            "one place and are known here (hybrid, sparse, quantized-with-scales and sharded pools do not)"
        )
    layout = str(pool.layout)
    if layout not in LAYOUTS[name]:
        raise ValueError(
            f"prefixd cannot keep the pages of host pool {name} in layout {layout!r}; "
            f"set --hicache-mem-layout to one of {', '.join(LAYOUTS[name])}"
        )
    if getattr(pool, "dcp_size", 1) != 1:
        raise ValueError(f"prefixd does not support decode context parallelism (dcp_size {pool.dcp_size})")
    if getattr(pool, "_layer_shard_enabled", False):
        raise ValueError("prefixd does not support host pools whose layers are sharded over ranks")
    if pool.kv_buffer is None:
        raise ValueError(f"host pool {name} has no buffer of its own (deduplicated over ranks?)")
    mla = name == "MLATokenToKVPoolHost"
    item = pool.dtype.itemsize
    layers, tokens = int(pool.layer_num), int(pool.page_size)
    heads = 1 if mla else int(pool.head_num)
    k_dim = int(pool.kv_cache_dim if mla else pool.head_dim)
    v_dim = 0 if mla else int(pool.v_head_dim)
    return Geometry(
        pool=name,
        layout=layout,
        stored=dtype_name(pool.dtype),
        layers=layers,
        draft_layers=layers - int(pool.target_layer_num),
        first_layer=int(pool.start_layer),
        heads=heads,
        k_dim=k_dim,
        v_dim=v_dim,
        page_tokens=tokens,
        page_bytes=layers * heads * (k_dim + v_dim) * tokens * item,
    )


def identity_of(config: Any, settings: Settings, geometry: Geometry, version: str) -> Identity:
    """The identity of one rank's pages.

    `config`: SGLang's HiCacheStorageConfig or what has its attributes; `version`: of SGLang.
    IdentityError names the field that is missing or cannot be right.
    """
    g = geometry
    _dtype_agrees(settings, g)
    if config.attn_cp_size != 1:
        raise _refuse("attn_cp_size", f"it is {config.attn_cp_size}: context parallelism is not supported")
    if getattr(config, "dcp_size", 1) != 1:
        raise _refuse("dcp_size", f"it is {config.dcp_size}: decode context parallelism is not supported")
    plain = g.v_dim == g.k_dim and settings.dtype in DTYPE_BITS
    quantized = DTYPE_BITS.get(settings.dtype, 8) < 16
    if quantized and settings.scales is None:
        raise _refuse("scales", f"it was not given, and dtype is {settings.dtype}", Status.MISSING_FIELD)
    if g.draft_layers and settings.draft is None:
        raise _refuse(
            "draft", f"it was not given, and {g.draft_layers} layers are a draft's", Status.MISSING_FIELD
        )
    layout = [g.pool.replace("TokenToKVPoolHost", "").lower(), g.layout]
    if g.v_dim not in (0, g.k_dim):
        layout.append(f"v={g.v_dim}")
    if config.pp_size != 1:
        layout.append(f"pp={config.pp_size}/{config.pp_rank},from={g.first_layer}")
    if g.draft_layers:
        layout.append(f"draft={g.draft_layers}:{settings.draft}".replace(";", ","))
    # MLA keeps one latent per token that no rank splits: every rank has the same bytes, the first one
    # writes them, and all read them.
    shared = bool(config.is_mla_model)
    return Identity(
        model=model_of(config),
        revision=settings.revision,
        dtype=settings.dtype,
        layout=",".join(layout),
        engine=f"sglang {version}",
        adapter=settings.adapter,
        tp_size=1 if shared else config.tp_size,
        tp_rank=0 if shared else config.tp_rank,
        layers=g.layers,
        kv_heads=g.heads,
        head_dim=g.k_dim,
        block_tokens=g.page_tokens,
        scales=settings.scales or "",
        block_bytes=g.page_bytes,
        opaque=not plain,
    )


def _dtype_agrees(settings: Settings, g: Geometry) -> None:
    """SGLang keeps fp8 as uint8, so that only the operator can tell which fp8; all else is seen here."""
    bits = DTYPE_BITS.get(settings.dtype, 8)
    if g.stored == settings.dtype or (g.stored == "uint8" and bits == 8 and settings.dtype != "int8"):
        return
    raise _refuse("dtype", f"it is {settings.dtype} but the host pool holds {g.stored}")


def _refuse(key: str, what: str, status: int = Status.BAD_NAMESPACE) -> IdentityError:
    return IdentityError(status, f"{what}; {_RIGHT[key]}" if key in _RIGHT else what, key)


def _text(given: Mapping[str, Any], key: str, may_be_empty: bool = False) -> str:
    value = given.get(key)
    if value is None:
        raise _refuse(key, "it is missing in the extra config", Status.MISSING_FIELD)
    if not isinstance(value, str):
        raise _refuse(key, f"it is {value!r}, no text")
    if not value.strip() and not (may_be_empty and value == ""):
        raise _refuse(key, "it is empty", Status.MISSING_FIELD)
    return value


def _seconds(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 60:
        raise _refuse(key, f"it is {value!r}")
    return float(value)
