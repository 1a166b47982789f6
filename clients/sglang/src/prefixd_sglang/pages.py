"""Pages of SGLang's host memory pool, copied to and from slots of prefixd once and in place.

A page is `page_size` consecutive tokens of the pool.  How it lies there is the pool's business: its own
get_data_page() gives a view, strided as the layout asks, and a slot holds the same elements in the order
of that view without gaps.  No byte is touched outside the view and the slot, whatever the indices are.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import torch

from .identity import Geometry

__all__ = ["HostPages"]

_INTEGERS: Dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class HostPages:
    """The pages of one pool.  ValueError at construction: the pool does not lie as its geometry says.

    Holds a reference to the pool, not to its buffer, so that a pool whose memory was given back is
    noticed.  Safe from several threads as far as they use different pages.
    """

    def __init__(self, pool: Any, geometry: Geometry) -> None:
        self._pool = pool
        self._geometry = geometry
        self._tokens = geometry.page_tokens
        self._as = _INTEGERS[pool.dtype.itemsize]
        views = self._views(0)
        size = sum(view.numel() * view.element_size() for view in views)
        if size != geometry.page_bytes:
            raise ValueError(
                f"a page of {geometry.pool} has {size} bytes where {geometry.page_bytes} were computed"
            )
        buffers = pool.kv_buffer if isinstance(pool.kv_buffer, (tuple, list)) else (pool.kv_buffer,)
        homes = {buffer.untyped_storage().data_ptr() for buffer in buffers}
        if any(view.untyped_storage().data_ptr() not in homes for view in views):
            raise ValueError(f"{geometry.pool} gives copies of its pages, not the pages")
        if any(view.device.type != "cpu" for view in views):
            raise ValueError(f"{geometry.pool} is not in host memory")

    def starts(self, indices: torch.Tensor, pages: int) -> List[int]:
        """The first index of each page.  ValueError: `indices` are not so many whole pages of the pool."""
        tokens = self._tokens
        if indices.numel() == pages * tokens:
            table = indices.reshape(pages, tokens)
            first = table[:, :1]
            whole = (table == first + torch.arange(tokens, dtype=table.dtype, device=table.device)).all()
            inside = ((first >= 0) & (first % tokens == 0) & (first + tokens <= self._pool.size)).all()
            if bool(whole) and bool(inside):
                return first.flatten().tolist()
        raise ValueError(f"{indices.numel()} indices are not {pages} whole pages of the host pool")

    def store(self, start: int, slot: np.ndarray) -> None:
        """The page at `start` into a slot: uint8, page_bytes long."""
        for view, part in self._parts(start, slot):
            np.copyto(part, view)

    def load(self, start: int, slot: np.ndarray) -> None:
        """A slot into the page at `start`."""
        for view, part in self._parts(start, slot):
            np.copyto(view, part)

    def _parts(self, start: int, slot: np.ndarray) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        at = 0
        for tensor in self._views(start):
            # numpy has no bfloat16, and no conversion is wanted: elements travel as integers of their size.
            view = tensor.view(self._as).numpy()
            yield view, slot[at : at + view.nbytes].view(view.dtype).reshape(view.shape)
            at += view.nbytes

    def _views(self, start: int) -> List[torch.Tensor]:
        pool, tokens = self._pool, self._tokens
        if self._geometry.v_dim in (0, self._geometry.k_dim):
            return [pool.get_data_page(start, flat=False)]
        # Heads of K and V differ: the pool has a buffer for each and gives no page of both.
        if self._geometry.layout == "page_first":
            return [buffer[start : start + tokens] for buffer in (pool.k_buffer, pool.v_buffer)]
        page = start // tokens
        return [buffer[page : page + 1] for buffer in (pool.k_buffer, pool.v_buffer)]
