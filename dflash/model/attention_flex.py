"""Block attention with PyTorch's flex_attention: a block mask over [flat context ; all blocks], documents told apart in it.

The kernel skips the tiles of 128 x 128 that the mask leaves empty, so other conversations and other blocks cost little. Which
tiles those are is worked out from the layout's ranges: asking the mask rule about every (query, key) pair, as the stock helper
does, would take gigabytes for a pass of 16,384 positions. The tiles depend on the layout and the window alone and are made
once a pass and window, not once a layer.

On a GPU the kernel is compiled; on a CPU it has no backward, and serves only to be compared with the other ways. It was not
tried on a GPU by us.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dflash.model.blocks import BlockLayout

TILE = 128


def attend_flex(
    query: Tensor,
    block_key: Tensor,
    block_value: Tensor,
    context_key: Tensor,
    context_value: Tensor,
    layout: BlockLayout,
    window: int | None,
) -> Tensor:
    """See `dflash.model.attention.Attend`."""
    query_rows = layout.blocks * layout.block_size
    key = torch.cat([context_key, block_key.flatten(0, 1).to(context_key.dtype)])
    value = torch.cat([context_value, block_value.flatten(0, 1).to(context_value.dtype)])
    attended = _kernel(query.device.type)(
        _heads_first(query.flatten(0, 1).to(key.dtype)),
        _heads_first(key),
        _heads_first(value.to(key.dtype)),
        block_mask=block_mask(layout, window, query.device),
        enable_gqa=query.shape[2] != block_key.shape[2],
    )
    result: Tensor = attended[0, :, :query_rows].transpose(0, 1).reshape(query.shape).to(query.dtype)
    return result


@lru_cache(maxsize=2)  # a pass has one layout and at most two kinds of layers
def block_mask(layout: BlockLayout, window: int | None, device: torch.device) -> BlockMask:
    """The mask of queries [blocks x block_size] over keys [context ; blocks ; padding], rows padded to whole tiles.

    A query row of the padding sees what the last slot sees, so that its softmax is defined; a key of the padding is never seen.
    """
    seen = _Ranges(layout, window)
    some, every = seen.tiles()

    def on_device(rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(rows).to(device)

    start, stop, own_start, own_stop = map(on_device, (seen.start, seen.stop, seen.own_start, seen.own_stop))

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ((key >= start[query]) & (key < stop[query])) | ((key >= own_start[query]) & (key < own_stop[query]))

    partial_count, partial_index = _listed(some & ~every, device)
    full_count, full_index = _listed(every, device)
    return BlockMask.from_kv_blocks(
        partial_count,
        partial_index,
        full_count,
        full_index,
        BLOCK_SIZE=TILE,
        mask_mod=rule,
        seq_lengths=(len(seen.start), seen.key_rows),
    )


class _Ranges:
    """What each query row sees: context rows start .. stop - 1 and, of its own block, key rows own_start .. own_stop - 1."""

    def __init__(self, layout: BlockLayout, window: int | None) -> None:
        size, rows = layout.block_size, layout.blocks * layout.block_size
        self.key_rows = _whole_tiles(layout.context_rows + rows)
        query = np.minimum(np.arange(_whole_tiles(rows)), rows - 1)
        block, slot = np.divmod(query, size)
        self.stop = layout.end_context[block]
        self.start = layout.first_context[block]
        if window is not None:
            self.start = np.maximum(self.start, self.stop + slot - window + 1)
        self.own_start = layout.context_rows + block * size
        self.own_stop = self.own_start + (slot + 1 if layout.is_causal else size)

    def tiles(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """[query tiles, key tiles]: where some pair is visible, and where every pair is."""
        left = np.arange(0, self.key_rows, TILE)
        right = left + TILE
        start, stop, own_start, own_stop = (part[:, None] for part in (self.start, self.stop, self.own_start, self.own_stop))
        some = ((start < right) & (stop > left) & (start < stop)) | ((own_start < right) & (own_stop > left))
        every = ((start <= left) & (stop >= right)) | ((own_start <= left) & (own_stop >= right))
        by_tile = (len(self.start) // TILE, TILE, len(left))
        return np.any(some.reshape(by_tile), axis=1), np.all(every.reshape(by_tile), axis=1)


def _listed(tiles: NDArray[np.bool_], device: torch.device) -> tuple[Tensor, Tensor]:
    """A tile matrix as flex_attention wants it: how many key tiles each query tile has, and their numbers, first come first."""
    count = tiles.sum(1).astype(np.int32)
    index = np.argsort(~tiles, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(count)[None, None].to(device), torch.from_numpy(index)[None, None].to(device)


def _heads_first(states: Tensor) -> Tensor:
    """[rows, heads, d] -> [1, heads, rows padded to whole tiles, d]."""
    padding = _whole_tiles(len(states)) - len(states)
    return torch.nn.functional.pad(states, (0, 0, 0, 0, 0, padding)).transpose(0, 1).unsqueeze(0)


def _whole_tiles(rows: int) -> int:
    return rows + -rows % TILE


@cache
def _kernel(device_type: str) -> Any:
    return flex_attention if device_type == "cpu" else torch.compile(flex_attention, dynamic=True)
