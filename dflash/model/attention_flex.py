"""Block attention with PyTorch's flex_attention: a block mask over [flat context ; all blocks], documents told apart in it.

The kernel skips the tiles that the mask leaves empty, so other conversations and other blocks cost little, and no mask of the
size of the scores ever exists. The mask depends on the layout and the window alone and is made once a pass and window, not once a layer.
On a GPU the kernel is compiled; on a CPU it has no backward, and serves only to be compared with the other ways. It was not
tried on a GPU by us.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from dflash.model.blocks import BlockLayout

_TILE = 128  # queries and keys are padded to a multiple of this


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
    mask = _block_mask(layout, window, query.device)
    key = torch.cat([context_key, block_key.flatten(0, 1).to(context_key.dtype)])
    value = torch.cat([context_value, block_value.flatten(0, 1).to(context_value.dtype)])
    attended = _kernel(query.device.type)(
        _heads_first(query.flatten(0, 1).to(key.dtype)),
        _heads_first(key),
        _heads_first(value.to(key.dtype)),
        block_mask=mask,
        enable_gqa=query.shape[2] != block_key.shape[2],
    )
    result: Tensor = attended[0, :, :query_rows].transpose(0, 1).reshape(query.shape).to(query.dtype)
    return result


def _heads_first(states: Tensor) -> Tensor:
    """[rows, heads, d] -> [1, heads, rows padded to whole tiles, d]."""
    padding = -len(states) % _TILE
    return torch.nn.functional.pad(states, (0, 0, 0, 0, 0, padding)).transpose(0, 1).unsqueeze(0)


@lru_cache(maxsize=2)  # a pass has one layout and at most two kinds of layers
def _block_mask(layout: BlockLayout, window: int | None, device: torch.device) -> BlockMask:
    query_rows = layout.blocks * layout.block_size
    key_rows = layout.context_rows + query_rows
    padded_queries, padded_keys = query_rows + -query_rows % _TILE, key_rows + -key_rows % _TILE
    rule = visibility_rule(layout, window, device, padded_queries)
    return create_block_mask(rule, None, None, padded_queries, padded_keys, device=str(device), BLOCK_SIZE=_TILE)


def visibility_rule(layout: BlockLayout, window: int | None, device: torch.device, query_rows: int) -> Callable[..., Tensor]:
    """The mask as flex_attention wants it: may query row q (of `query_rows`, padding included) see key row k?

    Key rows are [context ; blocks ; padding]. A query row of the padding sees the last block, so that its softmax is defined.
    """
    block_size, context_rows = layout.block_size, layout.context_rows
    block_of_query = (torch.arange(query_rows, device=device) // block_size).clamp(max=layout.blocks - 1)
    first = torch.from_numpy(layout.first_context).to(device)[block_of_query]
    end = torch.from_numpy(layout.end_context).to(device)[block_of_query]
    is_causal = layout.is_causal

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        in_context = (key >= first[query]) & (key < end[query])
        if window is not None:
            in_context = in_context & (end[query] + query % block_size - key < window)
        own = key - context_rows
        in_block = (own >= 0) & (own // block_size == block_of_query[query])
        if is_causal:
            in_block = in_block & (own % block_size <= query % block_size)
        return in_context | in_block

    return rule


@cache
def _kernel(device_type: str) -> Any:
    return flex_attention if device_type == "cpu" else torch.compile(flex_attention, dynamic=True)
