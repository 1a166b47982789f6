"""What makes the rows of vLLM's host tier interchangeable, from the offloading configuration.

The secondary tier sees rows of bytes and keys, not a model.  :func:`tier_identity` says what those rows
are: it reads the ``OffloadingConfig`` that vLLM hands to every offloading back end (any object with its
attributes will do: no engine is imported here) and the tier's own options for what that configuration
does not hold.  What is missing is refused and named, when the tier is made; nothing is guessed.

:func:`seed_probe` needs the engine, and only when it is called: block hashes exist from the first
request on, not yet when the tier is made.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from typing import Any, Dict, Optional, Tuple

from prefixd import Identity
from prefixd.errors import Status
from prefixd.identity import IdentityError, dtype_name

__all__ = ["GROUP_BYTES", "SeedUnknown", "seed_probe", "tier_identity", "tier_layout"]

GROUP_BYTES = 4  # an offload key is a block's hash with the number of its cache group behind it
_HASHES = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
_UNSCALED = ("float64", "float32", "float16", "bfloat16")
_MISSING = object()


class SeedUnknown(Exception):
    """The engine's hash function or its seed could not be found out; the text says why."""


def _need(config: Any, path: str, field: str = "") -> Any:
    """The attribute `path` of the configuration, or a refusal that names `field`, else its last part."""
    value = config
    for name in path.split("."):
        value = getattr(value, name, _MISSING)
        if value is _MISSING or value is None:
            raise IdentityError(
                Status.MISSING_FIELD,
                f"the offloading configuration has no {path}; this engine is not supported",
                field or name,
            )
    return value


def tier_layout(config: Any) -> Tuple[str, Dict[str, Any]]:
    """The name of the rows' byte order, and the facts behind it for the log.

    A row holds the bytes of all workers side by side, of all layers of one cache group, with padding at
    its end; how many of each there are, in which K/V layout and for which layers, all changes the bytes.
    The facts do not fit into the name, so that it carries their hash.
    """
    parallel = {
        name: int(_need(config, f"parallel.{name}"))
        for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
    }
    groups = [
        [
            int(_need(g, "group_id")),
            int(_need(g, "tokens_per_block")),
            [str(n) for n in _need(g, "layer_names")],
        ]
        for g in _need(config, "groups")
    ]
    if not groups:
        raise IdentityError(Status.MISSING_FIELD, "the offloading configuration has no cache group", "groups")
    kv_layout = getattr(config, "kv_cache_layout", None)
    facts: Dict[str, Any] = {
        "parallel": parallel,
        "groups": groups,
        "kv_cache_layout": None if _unsaid(kv_layout) else str(kv_layout),
        "canonical": bool(getattr(config, "canonical_layout", False)),
        "replicated": bool(getattr(config, "replicated_layout", False)),
        "worker_bytes": int(_need(config, "worker_kv_bytes_per_block")),
        "tokens_per_hash": int(_need(config, "cache.tokens_per_hash")),
        "blocks_per_chunk": int(_need(config, "cache.blocks_per_chunk")),
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"vllm-rows tp{parallel['tp_size']}pp{parallel['pp_size']} {digest}", facts


def _unsaid(layout: Any) -> bool:
    """Whether the engine did not settle the order within a page (older versions do not say it)."""
    return layout is None or str(layout).strip().lower() in ("", "none", "auto")


def tier_identity(
    config: Any,
    *,
    row_bytes: int,
    engine: str,
    revision: str,
    model: Optional[str] = None,
    adapter: str = "",
    scales: Optional[str] = None,
) -> Identity:
    """The identity of the rows that `config` describes.

    `config`: the spec's ``OffloadingConfig``.  `row_bytes`: bytes of one row of the primary tier.
    `engine`: engine and version, as "vllm 1.2.3 cuda".  `revision`: of the weights; the configuration
    does not hold it, and a model's name or folder alone says nothing about what is in it.  `model`: in
    place of the configuration's name, for machines that keep one model under different paths.
    `adapter`: what is merged into the weights; adapters of single requests are in the keys already.
    `scales`: digest or name of the K/V scales; must be given where K/V is stored in 8 bits or fewer.

    Raises :class:`prefixd.identity.IdentityError` naming the field.
    """
    layout, facts = tier_layout(config)
    tokens = {tokens for _, tokens, _ in facts["groups"]}
    names = {name for _, _, layers in facts["groups"] for name in layers}
    dtype = dtype_name(_need(config, "model.dtype", "dtype"))
    identity = Identity(
        model=_need(config, "model.name", "model") if model is None else model,
        revision=revision,
        dtype=dtype,
        layout=layout,
        engine=engine,
        adapter=adapter,
        scales=scales or "",
        # A row has the bytes of all ranks, so that one row is one block; the shape is in the layout.
        tp_size=1,
        tp_rank=0,
        layers=len(names),
        # The configuration has no heads; with an opaque layout nobody computes sizes from them.
        kv_heads=1,
        head_dim=1,
        block_tokens=max(tokens) * facts["blocks_per_chunk"],
        block_bytes=row_bytes,
        opaque=True,
    )
    if scales is None and dtype not in _UNSCALED:
        text = f"it was not given, and {dtype} means nothing without them; '' says that there are none"
        raise IdentityError(Status.MISSING_FIELD, text, "scales")
    return identity


def seed_probe(tokens_per_hash: int, hash_len: int, hash_algo: Optional[str] = None) -> bytes:
    """The engine's hash of a block of the tokens 0, 1, 2 ... without a parent; it shows its seed.

    `hash_len` is what keys really have.  `hash_algo` names the function where the engine does not let
    it be found out from its seed.  Raises :class:`SeedUnknown`: two processes whose seeds differ never
    share, and a guess would hide that.
    """
    try:
        hashing = importlib.import_module("vllm.utils.hashing")
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    except ImportError as error:
        raise SeedUnknown(f"no block hashes in this engine: {error}") from error
    root = getattr(utils, "NONE_HASH", None)
    if not isinstance(root, bytes):
        raise SeedUnknown("the engine has not set its seed yet")
    names = _HASHES if hash_algo is None else (hash_algo,)
    for name in names:
        try:
            function = hashing.get_hash_fn_by_name(name)
            if hash_algo is None and function(utils.get_none_hash_seed()) != root:
                continue
            probe = bytes(utils.hash_block_tokens(function, None, list(range(tokens_per_hash))))
        except Exception as error:  # a function whose package is missing, or an interface that changed
            if hash_algo is not None:
                raise SeedUnknown(f"hash_algo {name}: {error}") from error
            continue
        if len(probe) == hash_len:
            return probe
    raise SeedUnknown(
        f"none of {', '.join(names)} makes the engine's {hash_len}-byte hashes; hash_algo names the function"
    )
