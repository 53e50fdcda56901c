"""Cross entropy against the frozen head, a bounded number of logits at a time, gradient included.

The head has no gradient, so the gradient of the hidden states is all that backward needs, and it can be made from the same
logits the loss is made from: one pass, nothing recomputed, and never more than `logits_chunk` logits alive. (Checkpointed
chunks compute the logits twice; full logits of 8192 slots over 248,320 tokens take 8 GB in float32.) Whether the
most likely token is the label falls out of the same pass: the maximum is needed for a stable softmax anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeadLoss:
    """Outcome of the vocabulary head.

    Attributes:
        loss_sum: scalar, float32 at least: sum over slots of weight x negative log-likelihood; backward goes to the hidden states.
        hits: [slots] bool, whether the most likely token is the label; empty when not asked for.
    """

    loss_sum: Tensor
    hits: Tensor


def head_loss(
    hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, *, logits_chunk: int, with_hits: bool = False
) -> HeadLoss:
    """Weighted cross entropy of hidden @ head.T.

    Args:
        hidden: [slots, hidden size]; multiplied in the dtype of `head`, softmax in float32 at least.
        head: [vocabulary, hidden size], frozen.
        labels: [slots] int64.
        weights: [slots].
        logits_chunk: logits computed at a time, at most; one slot's always are.
        with_hits: whether to compare the most likely token with the label.
    """
    loss_sum, hits = _HeadLoss.apply(hidden, head, labels, weights, logits_chunk, with_hits)  # type: ignore[no-untyped-call]
    return HeadLoss(loss_sum, hits)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, logits_chunk: int, with_hits: bool
    ) -> tuple[Tensor, Tensor]:
        slots = len(labels)
        wants_gradient = ctx.needs_input_grad[0]
        exact = torch.promote_types(hidden.dtype, torch.float32)
        weights = weights.to(exact)
        loss_sum = torch.zeros((), dtype=exact, device=hidden.device)
        gradient = torch.empty(hidden.shape, dtype=exact, device=hidden.device) if wants_gradient else None
        hits = torch.empty(slots if with_hits else 0, dtype=torch.bool, device=hidden.device)
        rows = max(1, logits_chunk // head.shape[0])
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, slots, rows):
                part = slice(start, start + rows)
                target = labels[part, None]
                logits = (hidden[part].to(head.dtype) @ head.T).to(exact)
                if with_hits:
                    top, best = logits.max(-1, keepdim=True)
                    hits[part] = (best == target)[:, 0]
                else:
                    top = logits.amax(-1, keepdim=True)
                at_label = logits.gather(1, target) - top
                powers = logits.sub_(top).exp_()
                total = powers.sum(-1, keepdim=True)
                loss_sum += (weights[part, None] * (total.log() - at_label)).sum()
                if gradient is not None:
                    powers.scatter_add_(1, target, -total)  # softmax - onehot, times total
                    gradient[part] = (powers.to(head.dtype) @ head).to(exact) * (weights[part, None] / total)
        if gradient is not None:
            ctx.save_for_backward(gradient.to(hidden.dtype))
        ctx.mark_non_differentiable(hits)
        return loss_sum, hits

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_outputs[0].to(gradient.dtype), None, None, None, None, None
