"""What an objective is: a sum over slots or blocks, told in three measures of each slot.

The vocabulary head measures every supervised slot (see `dflash.model.loss`):

    nll   -log q(label), the drafter's cross entropy with the token of the data
    kl    sum over the vocabulary of p log(p / q), forward KL divergence from the target's own distribution p to the drafter's q
    tv    half of the sum of |p - q|: total variation; 1 - tv is the probability that sampling at temperature 1 accepts a draft of q

An objective is any differentiable function of them. It is written as its sum alone; the head takes its derivative by autograd over
these few numbers and carries it on to the logits itself, whose gradient by each measure it knows. So an objective never sees
a logit, costs nothing to speak of besides the measures it uses, and a mix of several still takes one pass over the vocabulary.

A slot's weight is exp(-(k - 1) / gamma), as laid out in `dflash.model.blocks`; a step divides the window's sum by the sum of those weights
whatever the objective. One that gives a figure to whole blocks multiplies it by the weight of a full block, so that it stands in its own
unit in the mean: exactly where every block is whole, and a little above it by what cut blocks lack in weight.

No torch is loaded here: what only counts bytes asks whether a target's state is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Measure = Literal["nll", "kl", "tv"]


@dataclass(frozen=True)
class Slots:
    """Supervised slots, ordered by block, then by place; whole blocks when the objective is `by_block`.

    Attributes:
        measures: [slots] of each measure the objective uses, by name.
        weights: [slots], of the slots.
        places: [slots] int64; block * places_a_block + k - 1, blocks counted from the first one here. Empty unless `by_block`.
        blocks: how many.
        places_a_block: drafted slots of a block, block_size - 1.
        block_weight: sum of the weights of a full block.
    """

    measures: dict[Measure, Tensor]
    weights: Tensor
    places: Tensor
    blocks: int
    places_a_block: int
    block_weight: float

    def by_place(self, values: Tensor) -> Tensor:
        """Values [slots] as [blocks, places_a_block], 0 where a slot is not supervised."""
        grid = values.new_zeros(self.blocks * self.places_a_block).index_put((self.places,), values)
        return grid.view(self.blocks, self.places_a_block)


@dataclass(frozen=True)
class Objective:
    """One objective.

    Attributes:
        uses: the measures it is told in.
        total: its sum over the slots, a scalar.
        by_block: whether it couples the slots of a block, so that blocks must come whole.
    """

    uses: frozenset[Measure]
    total: Callable[[Slots], Tensor]
    by_block: bool = False
