"""Which K/V layouts are supported, and the copying between the engine's blocks and the pool's slots.

A block of the pool is, layer after layer in the engine's order, the bytes that the engine keeps for that
block in that layer ("page"), as they are: K and V packed as the attention kernel has them.  So a copy is
one memory copy per layer and run of blocks, in both directions, and nothing is computed on the way.
What would make a page mean something else is refused when the engine starts, with the way out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Pages", "UnsupportedLayout", "check_config", "layer_names", "runs"]

# Orders of [layer, block, head, token, content] in which one block's bytes of one layer lie together.
_COMPACT = ("LBHNC", "LBNHC", "BLHNC", "BLNHC")
_BLOCK_TOKENS_MAX = 16376


class UnsupportedLayout(ValueError):
    """The engine is set up in a way that blocks cannot be shared; the text says what, and the way out."""


def check_config(vllm_config: Any, kv_cache_config: Any) -> None:
    """Refuse what this connector cannot share correctly; raises UnsupportedLayout with every reason."""
    reasons = list(_config_reasons(vllm_config)) + list(_group_reasons(kv_cache_config))
    if reasons:
        raise UnsupportedLayout("PrefixdConnector cannot be used with this engine: " + "; ".join(reasons))


def layer_names(kv_cache_config: Any) -> list[str]:
    """The layers of a block, in the order of a block's bytes."""
    return list(kv_cache_config.kv_cache_groups[0].layer_names)


def _config_reasons(config: Any) -> Iterator[str]:
    parallel = config.parallel_config
    for name, what in (
        ("pipeline_parallel_size", "pipeline parallelism"),
        ("decode_context_parallel_size", "decode context parallelism"),
        ("prefill_context_parallel_size", "prefill context parallelism"),
    ):
        if getattr(parallel, name, 1) != 1:
            yield f"{what} is not supported (set it to 1)"
    if getattr(config, "speculative_config", None) is not None:
        yield "speculative decoding is not supported (remove --speculative-config)"
    if getattr(config.model_config, "is_encoder_decoder", False):
        yield "encoder-decoder models are not supported"
    transfer = config.kv_transfer_config
    if getattr(transfer, "kv_load_failure_policy", None) != "recompute":
        yield (
            'kv_load_failure_policy must be "recompute" (say so in --kv-transfer-config): any other fails a '
            "request whose blocks cannot be read, where it could be computed"
        )


def _group_reasons(config: Any) -> Iterator[str]:
    groups = list(config.kv_cache_groups)
    if len(groups) != 1:
        yield (
            f"it has {len(groups)} K/V cache groups (sliding windows, Mamba, other hybrid models); only one "
            "group of full attention is supported: such models run without this connector"
        )
        return
    group, spec = groups[0], groups[0].kv_cache_spec
    kind = type(spec).__name__
    if kind != "FullAttentionSpec":
        yield f"its K/V cache is {kind} (MLA, Mamba, windows ...); only FullAttentionSpec is supported"
        return
    yield from _spec_reasons(spec)
    if getattr(group, "host_resident", False) or not getattr(group, "enable_kv_transfer", True):
        yield "its K/V cache group is not to be transferred"
    if getattr(group, "is_eagle_group", False):
        yield "its K/V cache group has layers of a draft model"
    hash_size = getattr(config, "hash_block_size", None)
    if hash_size is not None and hash_size != spec.block_size:
        yield (
            f"block hashes are of {hash_size} tokens and blocks of {spec.block_size} "
            "(leave --prefix-match-unit unset)"
        )
    order = getattr(config, "kv_cache_layout", None)
    if order is not None and order not in _COMPACT:
        yield (
            f"in K/V cache layout {order} a block's bytes do not lie together "
            "(set VLLM_KV_CACHE_LAYOUT=LBHNC)"
        )


def _spec_reasons(spec: Any) -> Iterator[str]:
    if (
        getattr(spec, "sliding_window", None) is not None
        or getattr(spec, "attention_chunk_size", None) is not None
    ):
        yield "sliding windows and chunked attention are not supported"
    if getattr(spec, "non_causal", False):
        yield "non-causal attention is not supported"
    if int(getattr(spec, "kv_quant_mode", 0)) != 0:
        yield "a quantized K/V cache is not supported (set --kv-cache-dtype auto)"
    if getattr(spec, "head_size_v", spec.head_size) != spec.head_size:
        yield f"K has heads of {spec.head_size} and V of {spec.head_size_v} elements"
    for name in ("page_size_padded", "num_head_slots", "state_content_bytes"):
        if getattr(spec, name, None) is not None:
            yield f"its pages are packed or padded ({name})"
    if getattr(spec, "tokens_per_state", 1) != 1:
        yield "its cache is compressed (tokens_per_state)"
    if spec.block_size > _BLOCK_TOKENS_MAX:
        yield f"blocks of {spec.block_size} tokens are too large (set --block-size below {_BLOCK_TOKENS_MAX})"


def runs(slots: Sequence[int], blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first slot, first block, length) of stretches in which both go up by one."""
    start, n = 0, len(slots)
    for i in range(1, n + 1):
        if i == n or slots[i] != slots[i - 1] + 1 or blocks[i] != blocks[i - 1] + 1:
            yield int(slots[start]), int(blocks[start]), i - start
            start = i


@dataclass(frozen=True)
class Pages:
    """The engine's cache tensors as rows of bytes: `layers[l][block]` is the page of a block, no copy.

    Made once from the tensors, which it keeps alive.  Any thread may copy; who copies says that the blocks
    are not used otherwise at that time.
    """

    layers: tuple[npt.NDArray[np.uint8], ...]
    page_bytes: int
    n_blocks: int

    @property
    def block_bytes(self) -> int:
        return self.page_bytes * len(self.layers)

    @classmethod
    def of(cls, kv_caches: Mapping[str, Any], kv_cache_config: Any) -> Pages:
        """From what the engine registers; raises UnsupportedLayout where it is not what was configured."""
        names, spec = layer_names(kv_cache_config), kv_cache_config.kv_cache_groups[0].kv_cache_spec
        if set(names) != set(kv_caches):
            odd = sorted(set(names) ^ set(kv_caches))
            raise UnsupportedLayout(
                f"PrefixdConnector: layers that share or lack a K/V cache: {', '.join(odd[:4])}"
            )
        layers = tuple(_rows(name, kv_caches[name], spec, kv_cache_config.num_blocks) for name in names)
        if len({rows.ctypes.data for rows in layers}) != len(layers):
            raise UnsupportedLayout("PrefixdConnector: layers share one K/V cache, which is not supported")
        return cls(layers, int(spec.page_size_bytes), int(kv_cache_config.num_blocks))

    def load(self, pool: npt.NDArray[np.uint8], slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Pool slots into the engine's blocks. `pool`: n_slots x block_bytes."""
        page = self.page_bytes
        for slot, block, n in runs(slots, blocks):
            for i, layer in enumerate(self.layers):
                layer[block : block + n] = pool[slot : slot + n, i * page : (i + 1) * page]

    def save(self, pool: npt.NDArray[np.uint8], slots: Sequence[int], blocks: Sequence[int]) -> None:
        """The engine's blocks into pool slots."""
        page = self.page_bytes
        for slot, block, n in runs(slots, blocks):
            for i, layer in enumerate(self.layers):
                pool[slot : slot + n, i * page : (i + 1) * page] = layer[block : block + n]


def _rows(name: str, tensor: Any, spec: Any, n_blocks: int) -> npt.NDArray[np.uint8]:
    import torch

    def wrong(what: str) -> UnsupportedLayout:
        return UnsupportedLayout(f"PrefixdConnector: the K/V cache of {name} {what}")

    if not isinstance(tensor, torch.Tensor):
        raise wrong(f"is {type(tensor).__name__}, not a tensor")
    if tensor.device.type != "cpu":
        raise wrong(f"lies on {tensor.device.type}; this version copies between processors' memory only")
    if tensor.dtype != spec.dtype:
        raise wrong(f"is of {tensor.dtype}, configured was {spec.dtype}")
    if tensor.dim() < 2 or tensor.shape[0] != n_blocks:
        raise wrong(f"has shape {tuple(tensor.shape)}, not {n_blocks} blocks first")
    item, page = tensor.element_size(), int(spec.page_size_bytes)
    inner = sorted(zip(tensor.stride()[1:], tensor.shape[1:]))
    expected = 1
    for stride, length in inner:
        if length != 1 and stride != expected:
            raise wrong(f"has strides {tensor.stride()}, a block's bytes do not lie together")
        expected *= length
    if expected * item != page or tensor.stride(0) * item < page:
        raise wrong(f"has {expected * item} bytes a block, configured were {page}")
    # The same memory as bytes, whatever the order of heads and tokens inside a page.
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    rows = torch.as_strided(
        flat, (n_blocks, page), (tensor.stride(0) * item, 1), tensor.storage_offset() * item
    )
    array: npt.NDArray[np.uint8] = rows.numpy()
    return array
