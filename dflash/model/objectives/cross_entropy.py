"""Cross entropy with the tokens of the data, places near the anchor weighing more: sum of exp(-(k - 1) / gamma) x -log q(label).

The objective of the released DFlash drafters. It wants the drafter to give the data's token a high probability, one place at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.model.objectives.objective import Objective, Slots

if TYPE_CHECKING:
    from torch import Tensor


def _total(slots: Slots) -> Tensor:
    return (slots.weights * slots.measures["nll"]).sum()


OBJECTIVE = Objective(uses=frozenset({"nll"}), total=_total)
