"""Block attention by dense matrix products, without the products that are masked away.

The plain way scores every query against the whole context and every block's slots, under one big mask. Here neighbouring
blocks of one conversation form a small group; a group is scored against the context before its last anchor, and the slots
within blocks are scored block by block. Only the stretch between a group's first and last anchor needs a mask. Larger groups
make better matrix products, smaller ones mask less away: 4 to 8 blocks are best on a CPU.

Grouped-query heads are not copied: the query heads that share a key head are laid along the rows of one product. The
backward pass recomputes the scores of a group from the saved log-sum-exp (as flash attention does), so the memory is that of
one group, and adds key gradients in place instead of padding each group's to full length. Computed in float32 at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dflash.model.blocks import BlockLayout

_SCORES_AT_A_TIME = {"cpu": 2**18}  # elements: a group's scores should stay in a core's cache
_SCORES_ELSEWHERE = 2**26
_BLOCKS_AT_A_TIME = {"cpu": 8}
_BLOCKS_ELSEWHERE = 64


@dataclass(frozen=True)
class _Group:
    """Blocks first .. end - 1 and the context rows start .. stop - 1 any of them sees."""

    first: int
    end: int
    start: int
    stop: int
    hidden: Tensor | None  # [blocks, block_size, masked columns]: True where a slot must not see
    masked: slice  # those columns of the group's scores


def attend_dense(
    query: Tensor,
    block_key: Tensor,
    block_value: Tensor,
    context_key: Tensor,
    context_value: Tensor,
    layout: BlockLayout,
    window: int | None,
) -> Tensor:
    """See `dflash.model.attention.Attend`."""
    groups = _groups(layout, window, query.shape[2], query.device)
    result: Tensor = _DenseAttention.apply(query, block_key, block_value, context_key, context_value, groups, layout.is_causal)  # type: ignore[no-untyped-call]
    return result


class _DenseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        block_key: Tensor,
        block_value: Tensor,
        context_key: Tensor,
        context_value: Tensor,
        groups: list[_Group],
        is_causal: bool,
    ) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            kv_heads = block_key.shape[2]
            q = _query_by_key_head(query, kv_heads) * query.shape[-1] ** -0.5
            own_k, own_v = _by_head(block_key), _by_head(block_value)
            k, v = _by_head(context_key), _by_head(context_value)
            own_scores = _own_scores(q, own_k, is_causal)
            own_top = own_scores.amax(-1)
            out, log_sum = torch.empty_like(q), torch.empty_like(own_top)
            scratch = _scratch(q, groups)
            for group in groups:
                blocks = slice(group.first, group.end)
                scores = _scores(q, k, group, scratch)
                top = own_top[:, blocks].flatten(1)
                if group.stop > group.start:
                    top = torch.maximum(top, scores.amax(-1))
                weights = scores.sub_(top[..., None]).exp_()
                own = (own_scores[:, blocks].flatten(1, 2) - top[..., None]).exp_()
                total = weights.sum(-1) + own.sum(-1)
                mixed = weights @ v[:, group.start : group.stop]
                mixed += (own.view(-1, *own_scores.shape[-2:]) @ own_v[:, blocks].flatten(0, 1)).view_as(mixed)
                out[:, blocks] = (mixed / total[..., None]).view_as(out[:, blocks])
                log_sum[:, blocks] = (top + total.log()).view_as(log_sum[:, blocks])
            ctx.save_for_backward(q, own_k, own_v, k, v, out, log_sum)
            ctx.groups, ctx.is_causal, ctx.dtype = groups, is_causal, query.dtype
            return _to_query_layout(out, query.shape).to(query.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        q, own_k, own_v, k, v, out, log_sum = ctx.saved_tensors
        (grad,) = grad_outputs
        with torch.autocast(grad.device.type, enabled=False):
            grad_out = _query_by_key_head(grad, k.shape[0])
            mean = (grad_out * out).sum(-1)

            own_weights = (_own_scores(q, own_k, ctx.is_causal) - log_sum[..., None]).exp_()
            grad_own_v = own_weights.transpose(-1, -2) @ grad_out
            grad_scores = (grad_out @ own_v.transpose(-1, -2)).sub_(mean[..., None]).mul_(own_weights)
            grad_own_k = grad_scores.transpose(-1, -2) @ q
            grad_q = grad_scores @ own_k

            # one more column each: the products then come out with -log_sum and -mean already added
            q_shifted = torch.cat([q, -log_sum[..., None]], -1)
            grad_shifted = torch.cat([grad_out, -mean[..., None]], -1)
            ones = k.new_ones(*k.shape[:2], 1)
            k_one, v_one = torch.cat([k, ones], -1), torch.cat([v, ones], -1)
            grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
            scratch, scratch_grad = _scratch(q, ctx.groups), _scratch(q, ctx.groups)
            for group in ctx.groups:
                blocks, rows = slice(group.first, group.end), slice(group.start, group.stop)
                if group.stop == group.start:
                    continue
                weights = _scores(q_shifted, k_one, group, scratch).exp_()
                group_grad = grad_out[:, blocks].flatten(1, 2)
                grad_v[:, rows] += weights.transpose(1, 2) @ group_grad
                grad_scores = _product(grad_shifted[:, blocks].flatten(1, 2), v_one[:, rows], scratch_grad).mul_(weights)
                grad_k[:, rows] += grad_scores.transpose(1, 2) @ q[:, blocks].flatten(1, 2)
                grad_q[:, blocks] += (grad_scores @ k[:, rows]).view_as(grad_q[:, blocks])
            grad_q *= grad.shape[-1] ** -0.5
            return (
                _to_query_layout(grad_q, grad.shape).to(ctx.dtype),
                grad_own_k.permute(1, 2, 0, 3).to(ctx.dtype),
                grad_own_v.permute(1, 2, 0, 3).to(ctx.dtype),
                grad_k.transpose(0, 1).to(ctx.dtype),
                grad_v.transpose(0, 1).to(ctx.dtype),
                None,
                None,
            )


@lru_cache(maxsize=2)  # a pass has one layout and at most two kinds of layers
def _groups(layout: BlockLayout, window: int | None, heads: int, device: torch.device) -> list[_Group]:
    """Cut the blocks into groups of one conversation each, few enough for their scores to fit."""
    most_blocks = _BLOCKS_AT_A_TIME.get(device.type, _BLOCKS_ELSEWHERE)
    most_scores = _SCORES_AT_A_TIME.get(device.type, _SCORES_ELSEWHERE)
    visible_from = layout.first_visible(window)
    groups, first = [], 0
    while first < layout.blocks:
        end = first + 1
        while (
            end < layout.blocks
            and end - first < most_blocks
            and layout.first_context[end] == layout.first_context[first]
            and layout.end_context[end] >= layout.end_context[end - 1]
            and heads * layout.block_size * (end + 1 - first) * (layout.end_context[end] - visible_from[first]) <= most_scores
        ):
            end += 1
        groups.append(_group(layout, window, first, end, int(visible_from[first]), device))
        first = end
    return groups


def _group(layout: BlockLayout, window: int | None, first: int, end: int, start: int, device: torch.device) -> _Group:
    ends = layout.end_context[first:end]
    stop = int(ends[-1])
    masked = slice(int(ends[0]) - start if window is None else 0, stop - start)
    if masked.start >= masked.stop or (window is None and len(ends) == 1):
        return _Group(first, end, start, stop, None, masked)
    rows = np.arange(start, stop)[masked]
    seen = np.broadcast_to((rows < ends[:, None])[:, None, :], (len(ends), layout.block_size, len(rows)))
    if window is not None:
        slot_rows = ends[:, None] + np.arange(layout.block_size)  # where the slots would stand among the context rows
        seen = seen & (slot_rows[:, :, None] - rows < window)
    return _Group(first, end, start, stop, torch.from_numpy(~seen).to(device), masked)


def _scores(q: Tensor, k: Tensor, group: _Group, scratch: Tensor) -> Tensor:
    """[kv heads, blocks x shared heads x block size, context rows] of a group; -inf where a slot must not see."""
    scores = _product(q[:, group.first : group.end].flatten(1, 2), k[:, group.start : group.stop], scratch)
    if group.hidden is not None:
        blocks, block_size = group.hidden.shape[:2]
        by_slot = scores.view(scores.shape[0], blocks, -1, block_size, scores.shape[-1])
        by_slot[..., group.masked].masked_fill_(group.hidden[:, None], -torch.inf)
    return scores


def _product(left: Tensor, right: Tensor, scratch: Tensor) -> Tensor:
    """left @ right^T, head by head, written into the front of `scratch`."""
    shape = (left.shape[0], left.shape[1], right.shape[1])
    return torch.bmm(left, right.transpose(1, 2), out=scratch[: shape[0] * shape[1] * shape[2]].view(shape))


def _scratch(q: Tensor, groups: list[_Group]) -> Tensor:
    """Room for the largest group's scores: allocating them group by group costs more than the products."""
    kv_heads, _, rows_of_block, _ = q.shape
    return q.new_empty(max(kv_heads * rows_of_block * (group.end - group.first) * (group.stop - group.start) for group in groups))


def _own_scores(q: Tensor, own_k: Tensor, is_causal: bool) -> Tensor:
    """[kv heads, blocks, shared heads x block size, block size]: the slots of a block against its slots."""
    scores = q @ own_k.transpose(-1, -2)
    if is_causal:
        block_size = scores.shape[-1]
        later = torch.ones(block_size, block_size, dtype=torch.bool, device=scores.device).triu(1)
        scores.view(*scores.shape[:2], -1, block_size, block_size).masked_fill_(later, -torch.inf)
    return scores


def _query_by_key_head(query: Tensor, kv_heads: int) -> Tensor:
    """[blocks, block size, heads, d] -> [kv heads, blocks, shared heads x block size, d], float32 at least."""
    blocks, block_size, heads, width = query.shape
    split = query.view(blocks, block_size, kv_heads, heads // kv_heads, width).permute(2, 0, 3, 1, 4)
    return _at_least_float32(split).reshape(kv_heads, blocks, heads // kv_heads * block_size, width)


def _to_query_layout(by_head: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `_query_by_key_head`."""
    blocks, block_size, heads, width = shape
    kv_heads = by_head.shape[0]
    split = by_head.view(kv_heads, blocks, heads // kv_heads, block_size, width)
    return split.permute(1, 3, 0, 2, 4).reshape(shape)


def _by_head(keys: Tensor) -> Tensor:
    """[..., kv heads, d] -> [kv heads, ..., d], contiguous, float32 at least."""
    return _at_least_float32(keys.movedim(-2, 0)).contiguous()


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
