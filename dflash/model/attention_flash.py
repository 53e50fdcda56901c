"""Block attention with flash-attn's variable-length kernel: each block is a sequence of its own, its keys gathered.

Keys of a block are [visible context rows ; own slots], queries are its slots. The kernel aligns causality and windows to the
lower right corner, where the last query meets the last key: exactly the positions of a block after its context. So a causal
block and a sliding window need no mask. Gathering copies each block's keys, which is why blocks run a bounded number of key
rows at a time. A padded query of another conversation can't exist: there is no padding.

Not tried on a GPU by us; the tests run everything but the kernel itself, for which a reference written from its documentation
stands in.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dflash.model.blocks import BlockLayout

_KEY_ROWS_AT_A_TIME = 2**20


def attend_flash(
    query: Tensor,
    block_key: Tensor,
    block_value: Tensor,
    context_key: Tensor,
    context_value: Tensor,
    layout: BlockLayout,
    window: int | None,
) -> Tensor:
    """See `dflash.model.attention.Attend`. The kernel knows half precision only; anything else runs in bfloat16."""
    from flash_attn import flash_attn_varlen_func

    half = context_key.dtype if context_key.dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    keys = torch.cat([context_key, block_key.flatten(0, 1)]).to(half)
    values = torch.cat([context_value, block_value.flatten(0, 1)]).to(half)
    # to the left: the window, the query's own position included; to the right: nothing when causal, else all of the block
    bounds = (-1 if window is None else window - 1, 0 if layout.is_causal else -1)
    parts = []
    for first, end, rows, lengths in _gathered(layout, window):
        index = torch.from_numpy(rows).to(query.device)
        parts.append(
            flash_attn_varlen_func(
                query[first:end].flatten(0, 1).to(half),
                keys[index],
                values[index],
                cu_seqlens_q=torch.arange(end - first + 1, dtype=torch.int32, device=query.device) * layout.block_size,
                cu_seqlens_k=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(query.device),
                max_seqlen_q=layout.block_size,
                max_seqlen_k=int(lengths.max()),
                causal=layout.is_causal,
                window_size=bounds,
            )
        )
    return torch.cat(parts).view(query.shape).to(query.dtype)


def _gathered(layout: BlockLayout, window: int | None) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Runs of blocks (first, end), the key rows they see in [context ; blocks], block after block, and how many each sees."""
    starts = layout.first_visible(window)
    context_lengths = layout.end_context - starts
    totals = np.cumsum(context_lengths + layout.block_size)
    first = 0
    while first < layout.blocks:
        done = totals[first - 1] if first else 0
        end = max(first + 1, int(np.searchsorted(totals, done + _KEY_ROWS_AT_A_TIME, side="right")))
        own = layout.context_rows + np.arange(first, end)[:, None] * layout.block_size + np.arange(layout.block_size)
        rows = [
            part
            for block in range(first, end)
            for part in (np.arange(starts[block], layout.end_context[block]), own[block - first])
        ]
        yield first, end, np.concatenate(rows), context_lengths[first:end] + layout.block_size
        first = end
