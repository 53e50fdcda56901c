"""The objective against the frozen head, a bounded number of logits at a time, gradient included.

The head has no gradient, so the gradient of the hidden states is all that backward needs, and it can be made from the same
logits the loss is made from: one pass, nothing recomputed, and never more than `logits_chunk` logits alive. (Checkpointed
chunks compute the logits twice; full logits of 8192 slots over 248,320 tokens take 8 GB in float32.) Whether the
most likely token is the label falls out of the same pass: the maximum is needed for a stable softmax anyway.

A mix of objectives is one pass too: an objective is a function of a few measures of each slot (`objectives.objective`), its derivative by
them is taken on those few numbers, and the measures' gradients by the logits are known (`objectives.measures`).

The target's own distribution comes from its last state through the same head. Slots of neighbouring blocks often predict the same
token; a chunk computes the target's logits once for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.model.objectives.measures import ChunkMeasures, TargetDistribution, capped, target_distribution
from dflash.model.objectives.objective import Measure, Slots
from dflash.model.objectives.registry import CROSS_ENTROPY, Mix


@dataclass(frozen=True)
class HeadLoss:
    """Outcome of the vocabulary head.

    Attributes:
        loss_sum: scalar, float32 at least: sum of the objective; backward goes to the hidden states.
        cross_entropy_sum: the same of plain cross entropy, sum over slots of weight x negative log-likelihood; no gradient.
        hits: [slots] bool, whether the most likely token is the label; empty when not asked for.
    """

    loss_sum: Tensor
    cross_entropy_sum: Tensor
    hits: Tensor


@dataclass(frozen=True)
class Places:
    """Where the slots stand in their blocks.

    Attributes:
        slots: [slots], ascending; block * block_size + k of each.
        block_size: slots a block, the anchor included.
        block_weight: sum of the weights of a full block.
    """

    slots: NDArray[np.int64]
    block_size: int
    block_weight: float


@dataclass(frozen=True)
class TargetStates:
    """The target's last states, as its head reads them.

    Attributes:
        states: [positions, hidden size], after the final norm.
        of_slot: [slots]; the position whose state predicts the slot's label.
    """

    states: Tensor
    of_slot: NDArray[np.int64]


def head_loss(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    logits_chunk: int,
    with_hits: bool = False,
    mix: Mix = CROSS_ENTROPY,
    places: Places | None = None,
    target: TargetStates | None = None,
    softcap: float | None = None,
) -> HeadLoss:
    """A mix of objectives on the logits hidden @ head.T.

    Args:
        hidden: [slots, hidden size]; multiplied in the dtype of `head`, softmax in float32 at least.
        head: [vocabulary, hidden size], frozen.
        labels: [slots] int64.
        weights: [slots].
        logits_chunk: logits computed at a time, at most, the target's included; one slot's always are, one block's where blocks are coupled.
        with_hits: whether to compare the most likely token with the label.
        mix: what is summed.
        places: needed when the mix couples the slots of a block.
        target: needed when the mix compares with the target's own distribution.
        softcap: logits are softcap x tanh(raw / softcap), the drafter's and the target's; None: as they are.

    Raises:
        ValueError: places or target are missing.
    """
    if (mix.by_block and places is None) or (mix.needs_target and target is None):
        raise ValueError("this objective needs " + ("the target's states" if mix.needs_target and target is None else "places"))
    ask = _Ask(mix, logits_chunk, with_hits, places if mix.by_block else None, target if mix.needs_target else None, softcap)
    return HeadLoss(*_HeadLoss.apply(hidden, head, labels, weights, ask))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Ask:
    """What is asked of the head, besides its tensors."""

    mix: Mix
    logits_chunk: int
    with_hits: bool
    places: Places | None
    target: TargetStates | None
    softcap: float | None

    def chunks(self, slots: int, vocabulary: int) -> Iterator[slice]:
        """Consecutive slots within `logits_chunk`: whole blocks where there are places, at least one slot or block."""
        rows = max(1, self.logits_chunk // (vocabulary * (1 if self.target is None else 2)))
        if self.places is None:
            for start in range(0, slots, rows):
                yield slice(start, start + rows)
            return
        block = self.places.slots // self.places.block_size
        ends = np.append(np.flatnonzero(np.diff(block)) + 1, slots)
        start = 0
        while start < slots:
            whole = np.searchsorted(ends, start + rows, side="right") - 1  # the last block that ends within the chunk
            end = int(ends[whole]) if whole >= 0 else start
            if end <= start:
                end = int(ends[np.searchsorted(ends, start, side="right")])
            yield slice(start, end)
            start = end

    def priced(self, values: dict[Measure, Tensor], weights: Tensor, part: slice) -> tuple[Tensor, dict[Measure, Tensor]]:
        """The mix's sum over a chunk, and its derivative by each measure it uses."""
        leaves = {name: values[name].detach().requires_grad_() for name in sorted(self.mix.uses)}
        with torch.enable_grad():
            total = self.mix.total(self._slots(leaves, weights, part))
            pulls = torch.autograd.grad(total, list(leaves.values()))
        return total.detach(), dict(zip(leaves, pulls, strict=True))

    def _slots(self, measures: dict[Measure, Tensor], weights: Tensor, part: slice) -> Slots:
        if self.places is None:
            return Slots(measures, weights, torch.empty(0, dtype=torch.long), 0, 0, 0.0)
        block, k = np.divmod(self.places.slots[part], self.places.block_size)
        _, number = np.unique(block, return_inverse=True)
        steps = self.places.block_size - 1
        index = torch.from_numpy(number * steps + k - 1).to(weights.device)
        return Slots(measures, weights, index, int(number[-1]) + 1, steps, self.places.block_weight)

    def distribution(self, head: Tensor, exact: torch.dtype, part: slice) -> TargetDistribution | None:
        """The target's distribution at the slots of a chunk, each position computed once."""
        if self.target is None:
            return None
        positions, again = np.unique(self.target.of_slot[part], return_inverse=True)
        states = self.target.states[torch.from_numpy(positions).to(head.device)]
        found = target_distribution(self.logits(states, head, exact))
        if len(positions) == len(again) and (again[1:] > again[:-1]).all():
            return found
        index = torch.from_numpy(again).to(head.device)
        return TargetDistribution(found.p[index], found.negative_entropy[index])

    def logits(self, states: Tensor, head: Tensor, exact: torch.dtype) -> Tensor:
        """Capped logits in `exact` of states [rows, hidden size]."""
        return capped((states.to(head.dtype) @ head.T).to(exact), self.softcap)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, ask: _Ask
    ) -> tuple[Tensor, Tensor, Tensor]:
        slots = len(labels)
        wants_gradient = ctx.needs_input_grad[0]
        exact = torch.promote_types(hidden.dtype, torch.float32)
        weights = weights.to(exact)
        loss_sum, cross_entropy_sum = (torch.zeros((), dtype=exact, device=hidden.device) for _ in range(2))
        gradient = torch.empty(hidden.shape, dtype=exact, device=hidden.device) if wants_gradient else None
        hits = torch.empty(slots if ask.with_hits else 0, dtype=torch.bool, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for part in ask.chunks(slots, head.shape[0]):
                chunk = ChunkMeasures(
                    ask.logits(hidden[part], head, exact),
                    labels[part],
                    ask.distribution(head, exact, part),
                    softcap=ask.softcap,
                    with_gradient=wants_gradient,
                    with_hits=ask.with_hits,
                )
                if chunk.hits is not None:
                    hits[part] = chunk.hits
                total, by = ask.priced(chunk.values, weights[part], part)
                loss_sum += total
                cross_entropy_sum += (weights[part] * chunk.values["nll"]).sum()
                if gradient is not None:
                    pull, factor = chunk.pull(by)
                    pulled = (pull.to(head.dtype) @ head).to(exact)
                    gradient[part] = pulled if factor is None else pulled * factor
        if gradient is not None:
            ctx.save_for_backward(gradient.to(hidden.dtype))
        ctx.mark_non_differentiable(cross_entropy_sum, hits)
        return loss_sum, cross_entropy_sum, hits

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_outputs[0].to(gradient.dtype), None, None, None, None
