"""D-PACE: cross entropy whose weights over places follow what limits acceptance now (arXiv 2605.18810, equations 7 to 9).

With q_j the drafter's probability of the label at place j, smoothed to s_j = (1 - A) q_j + A with A = 1/2, the weight of place j is

    w_j = sum over m >= j of s_1 x ... x s_m

which is the part of a smoothed expected accepted length that hangs on place j. The weights are taken as constants; a block's loss is the
sum of w_j x -log q_j, averaged over blocks and not divided by the sum of the w_j, which its authors say would cancel what they carry
(SpecForge issue 828).
A block ends at its first place that is not supervised; places behind that can't be accepted and get no weight.

The paper reports hardly any change for A between 0.3 and 0.7. The decay over places (`drafter.gamma`) plays no part in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.model.objectives.objective import Objective, Slots

if TYPE_CHECKING:
    from torch import Tensor

SMOOTHING = 0.5


def _total(slots: Slots) -> Tensor:
    nll = slots.measures["nll"]
    likely = (1 - SMOOTHING) * (-nll.detach()).exp() + SMOOTHING
    reached = slots.by_place(likely).cumprod(-1)
    weights = reached.flip(-1).cumsum(-1).flip(-1)
    return slots.block_weight * (weights * slots.by_place(nll)).sum()


OBJECTIVE = Objective(uses=frozenset({"nll"}), total=_total, by_block=True)
