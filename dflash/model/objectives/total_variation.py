"""Total variation from the target's own distribution, half the L1 distance, places near the anchor weighing more.

1 - tv is the probability that speculative sampling at temperature 1 accepts a drafted token (Leviathan et al. 2023, arXiv 2211.17192). The
gradient by a logit has the factor q, so it is faint while the drafter is still far away: mix in cross entropy or KL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.model.objectives.objective import Objective, Slots

if TYPE_CHECKING:
    from torch import Tensor


def _total(slots: Slots) -> Tensor:
    return (slots.weights * slots.measures["tv"]).sum()


OBJECTIVE = Objective(uses=frozenset({"tv"}), total=_total)
