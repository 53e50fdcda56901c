"""Forward KL divergence from the target's own distribution to the drafter's, at temperature 1, places near the anchor weighing more.

The gradient by the drafter's logits is q - p, where cross entropy has q - onehot(label): the whole distribution teaches, not one token of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.model.objectives.objective import Objective, Slots

if TYPE_CHECKING:
    from torch import Tensor


def _total(slots: Slots) -> Tensor:
    return (slots.weights * slots.measures["kl"]).sum()


OBJECTIVE = Objective(uses=frozenset({"kl"}), total=_total)
