"""The identity of vLLM's K/V: from the engine's configuration to a `prefixd.Identity`, or a refusal.

No engine is imported: the functions read plain attributes, so that this is tested where no engine is
installed.  What cannot be found is refused by name (`prefixd.IdentityError`), never guessed.

What goes into which field:

- `revision`: which weights.  What the user says; else the commit that the model was loaded by; else a digest
  over the files of a local directory.  Behind it, after "~", a digest of everything else in the
  configuration that changes K and V: the effective model configuration (with overrides such as another
  rope scaling), quantization of the weights, and the type the model computes in.
- `layout`: the order of the engine's cache tensors and, for processors, the instruction set: attention
  kernels pack K by it.  Blocks are stored as the engine has them, not in an order of our own.
- `engine`: vLLM and its version, since nobody promises that two versions lay a block out alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from prefixd.errors import Status
from prefixd.identity import Identity, IdentityError, dtype_name

__all__ = ["identity_of", "revision_of", "variant_of"]

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})/?$")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
# Keys of a model's configuration that say where it came from, not what it computes.
_NOT_MODEL = frozenset(("_name_or_path", "name_or_path", "transformers_version"))
_CHUNK = 1 << 20


def identity_of(
    vllm_config: Any,
    kv_cache_config: Any,
    *,
    tp_rank: int,
    version: str,
    machine: str,
    model: str = "",
    revision: str = "",
    adapter: str = "",
    digest_limit_bytes: int = 16 << 30,
) -> Identity:
    """The identity of one rank's blocks.

    `version` is the engine's, e.g. "0.32.0"; `machine` names what the byte order inside a head depends on,
    e.g. "cpu AVX512".  `model`, `revision` and `adapter` are the user's words, "" where nothing was said.
    Raises IdentityError naming the field that is missing.
    """
    group = _get(kv_cache_config, "kv_cache_groups", "layout")[0]
    spec = _get(group, "kv_cache_spec", "layout")
    model_config = _get(vllm_config, "model_config", "model")
    load_format = _get(_get(vllm_config, "load_config", "revision"), "load_format", "revision")
    if not machine:
        raise _missing("layout", "the machine's instruction set is part of it, and is not known")
    if not version:
        raise _missing("engine", "the version of vLLM is not known")
    weights = revision_of(
        _get(model_config, "model", "model"),
        getattr(model_config, "revision", None),
        _text_of(load_format),
        given=revision,
        limit=digest_limit_bytes,
    )
    order = _said("layout", _get(kv_cache_config, "kv_cache_layout", "layout"))
    return Identity(
        model=model or str(_get(model_config, "model", "model")),
        revision=f"{weights}~{variant_of(model_config)}",
        dtype=dtype_name(_get(spec, "dtype", "dtype")),
        layout=f"{order} {machine}",
        engine=f"vllm {version}",
        adapter=_adapter(vllm_config, adapter),
        tp_size=_get(_get(vllm_config, "parallel_config", "tp_size"), "tensor_parallel_size", "tp_size"),
        tp_rank=tp_rank,
        layers=len(_get(group, "layer_names", "layers")),
        kv_heads=_get(spec, "num_kv_heads", "kv_heads"),
        head_dim=_get(spec, "head_size", "head_dim"),
        block_tokens=_get(spec, "block_size", "block_tokens"),
        windows="",
        scales="",
    )


def revision_of(
    model: str, revision: str | None, load_format: str, *, given: str = "", limit: int = 16 << 30
) -> str:
    """Which weights these are: a text that differs whenever they do.

    `given` is what the user says and wins.  Else a commit; a branch or tag is none, since it moves.  Else,
    for a directory or file, the BLAKE2b digest of its weights and its configuration, read in full: equal
    sizes and dates prove nothing about two fine-tunes.  That reads as fast as the engine itself loads; more
    than `limit` bytes are refused.
    """
    if given:
        return _said("revision", given)
    right = 'say "revision" in kv_connector_extra_config: the commit, or a digest of the weights'
    if load_format == "dummy":
        raise _missing("revision", f"weights of load_format=dummy have none; {right}")
    if revision and _COMMIT.fullmatch(revision):
        return revision
    snapshot = _SNAPSHOT.search(os.path.abspath(model)) if os.path.isdir(model) else None
    if snapshot:
        return snapshot.group(1)
    if os.path.exists(model):
        return _digest_of_files(model, limit, right)
    raise _missing(
        "revision", f"{revision!r} of {model!r} is no commit and {model!r} is no directory here; {right}"
    )


def _digest_of_files(path: str, limit: int, right: str) -> str:
    if os.path.isfile(path):
        names = [(os.path.basename(path), path)]
    else:
        names = sorted(
            (name, os.path.join(path, name))
            for name in os.listdir(path)
            if name.endswith(_WEIGHTS) or name.endswith(".json")
        )
    if not any(name.endswith(_WEIGHTS) for name, _ in names):
        raise _missing("revision", f"{path!r} has no weights that are known to PrefixdConnector; {right}")
    total = sum(os.path.getsize(file) for _, file in names)
    if total > limit:
        raise _missing(
            "revision", f"{path!r} has {total} bytes, too many to read (digest_limit_bytes={limit}); {right}"
        )
    digest = hashlib.blake2b(digest_size=20, person=b"prefixd-weights")
    for name, file in names:
        with open(file, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            digest.update(f"{len(name)}:{name}:{size}:".encode())
            for chunk in iter(lambda: source.read(_CHUNK), b""):
                digest.update(chunk)
    return "files-" + digest.hexdigest()


def variant_of(model_config: Any) -> str:
    """16 hex digits over what else changes K and V of the same weights.

    `hf_config` has the effective configuration, with what the user has overridden.
    """
    hf_config = _get(model_config, "hf_config", "revision")
    plain = hf_config.to_dict() if hasattr(hf_config, "to_dict") else dict(vars(hf_config))
    what: dict[str, Any] = {
        "config": {key: value for key, value in plain.items() if key not in _NOT_MODEL},
        "quantization": _text_of(getattr(model_config, "quantization", None)),
        "compute": dtype_name(_get(model_config, "dtype", "dtype")),
    }
    what = _plain(what)
    if _holds(what["config"], "long_factor"):
        # LongRoPE: which table turns K, the short or the long one, follows from the engine's longest request.
        what["longest"] = int(_get(model_config, "max_model_len", "revision"))
    text = json.dumps(what, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"prefixd-variant").hexdigest()


def _holds(config: Any, key: str) -> bool:
    """Whether the key is anywhere in a configuration: that of a text model may lie in another one."""
    if isinstance(config, dict):
        return key in config or any(_holds(one, key) for one in config.values())
    return isinstance(config, list) and any(_holds(one, key) for one in config)


def _adapter(vllm_config: Any, given: str) -> str:
    # The engine's block hashes hold a LoRA's name and path, but not what is in the files there.
    if getattr(vllm_config, "lora_config", None) is None:
        return given
    if not given:
        raise _missing(
            "adapter",
            'LoRA is enabled, and block hashes hold only an adapter\'s name and path; say "adapter" in '
            "kv_connector_extra_config: a text that changes when the files of any adapter do",
        )
    return given


def _text_of(value: Any) -> str:
    return str(getattr(value, "value", value))  # of an enum what it stands for


def _plain(value: Any) -> Any:
    """As JSON knows it, and the same in every process: str() of an object could name its address."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_plain(one), sort_keys=True) for one in value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "to_dict"):
        return _plain(value.to_dict())
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        return [type(value).__name__, _plain(getattr(value, "__dict__", {}))]
    return str(value)


def _get(owner: Any, name: str, field: str) -> Any:
    try:
        value = getattr(owner, name)
    except AttributeError:
        raise _missing(field, f"the engine's {type(owner).__name__} has no {name!r}") from None
    return _given(field, value)


def _given(field: str, value: Any) -> Any:
    if value is None:
        raise _missing(field, "the engine did not say it")
    return value


def _said(field: str, text: str) -> str:
    """A text that goes into a longer one, in which nobody would notice that it says nothing."""
    if str(text).strip().lower() in ("", "auto", "none", "null", "unknown"):
        raise _missing(field, f"it is {text!r}")
    return str(text)


def _missing(field: str, text: str) -> IdentityError:
    return IdentityError(Status.MISSING_FIELD, text, field)
