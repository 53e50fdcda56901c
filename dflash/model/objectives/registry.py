"""The objectives by the names that `drafter.loss` knows, and weighted mixes of them.

Each name is that of a file beside this one, which defines `OBJECTIVE`. A further objective is one more file, and its name in `config.LossName`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, get_args

from dflash.config import LossName
from dflash.model.objectives.objective import Measure, Objective, Slots

if TYPE_CHECKING:
    from torch import Tensor

OBJECTIVES: dict[str, Objective] = {name: import_module(f"dflash.model.objectives.{name}").OBJECTIVE for name in get_args(LossName)}


@dataclass(frozen=True)
class Mix:
    """A weighted sum of objectives.

    Attributes:
        parts: weight and objective of each; weights above 0.
    """

    parts: tuple[tuple[float, Objective], ...]

    @property
    def uses(self) -> frozenset[Measure]:
        """The measures that any of them is told in."""
        return frozenset().union(*(objective.uses for _, objective in self.parts))

    @property
    def needs_target(self) -> bool:
        """Whether any of them compares the drafter with the target's own distribution."""
        return not self.uses <= {"nll"}

    @property
    def by_block(self) -> bool:
        """Whether any of them couples the slots of a block."""
        return any(objective.by_block for _, objective in self.parts)

    def total(self, slots: Slots) -> Tensor:
        """The weighted sum of their sums, a scalar."""
        first, *others = (weight * objective.total(slots) for weight, objective in self.parts)
        return sum(others, first)


def mix_of(loss: Mapping[LossName, float]) -> Mix:
    """The mix of a config's `drafter.loss`; objectives of weight 0 are left out."""
    return Mix(tuple((weight, OBJECTIVES[name]) for name, weight in loss.items() if weight))


CROSS_ENTROPY = mix_of({"cross_entropy": 1.0})
