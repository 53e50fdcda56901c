"""Direct acceptance: minus the expected number of drafted tokens that speculative sampling accepts.

With alpha_j = 1 - tv_j, the probability that place j is accepted once it is reached (Leviathan et al. 2023, arXiv 2211.17192), a block's
expected accepted length is sum over k of alpha_1 x ... x alpha_k, between 0 and block_size - 1; the target's own token comes on top. A
block ends at its first place that is not supervised. (The same quantity was proposed as an optional loss in DeepSpec's pull request 58.)

Places behind one that is refused teach nothing, so it starts slowly: mix in cross entropy or KL, or begin with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.model.objectives.objective import Objective, Slots

if TYPE_CHECKING:
    from torch import Tensor


def _total(slots: Slots) -> Tensor:
    accepted = slots.by_place(1 - slots.measures["tv"]).cumprod(-1)
    return -slots.block_weight * accepted.sum()


OBJECTIVE = Objective(uses=frozenset({"tv"}), total=_total, by_block=True)
