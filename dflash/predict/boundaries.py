"""What `dflash boundaries` tells: where to cut the lengths into buckets, what that saves, and what another bucket would bring.

Three rules. `optimal` minimises what training pays (see `batching.boundaries`); `quantile` gives each bucket equally many samples;
`equal_tokens` equally many tokens. Each is measured by planning an epoch with it, so that the figure is the plan's own padding efficiency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.batching.boundaries import boundary_curves, bucket_efficiency, count_distinct
from dflash.batching.plan import planned_efficiency
from dflash.config import BatchingConfig
from dflash.errors import RefusedInput


@dataclass(frozen=True)
class BoundaryAdvice:
    """Boundaries and what they are worth.

    Attributes:
        boundaries: K + 1 numbers from 0 to the limit, by the optimal rule.
        padding_efficiency: of epoch 0, planned with them in the token budget.
        attention: as `optimal_boundaries`.
        curve: columns rule, buckets, padding_efficiency (each row padded to the longest of its bucket: the bound that is minimised).
        rules: per rule (and `by_hand`): boundaries, padding_efficiency of the plan.
    """

    boundaries: list[int]
    padding_efficiency: float
    attention: float
    curve: pl.DataFrame
    rules: dict[str, dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**vars(self), "curve": self.curve.to_dicts()}


def advise_boundaries(
    lengths: NDArray[np.int32],
    settings: BatchingConfig,
    *,
    buckets: int,
    limit: int | None = None,
    attention: float = 0.0,
    by_hand: list[int] | None = None,
    most_buckets: int | None = None,
) -> BoundaryAdvice:
    """Place boundaries and compare the rules.

    Args:
        lengths: tokens of each sample.
        settings: token budget, row limit and seed of the plans that are measured.
        buckets: K.
        limit: the last boundary; None: the longest length.
        attention: share of a token's cost that grows with its row's length, per token; 0: padding alone.
        by_hand: boundaries to compare with.
        most_buckets: where the curve ends; None: 2 K, at least 8.

    Raises:
        RefusedInput: as `optimal_boundaries`; boundaries by hand that don't cover the longest row.
    """
    distinct = count_distinct(lengths)[0].size
    most = min(most_buckets or max(2 * buckets, 8), distinct)
    curves = boundary_curves(lengths, max(most, buckets), limit, attention=attention)
    chosen = {rule: curve[buckets - 1][0] for rule, curve in curves.items()}
    if by_hand is not None:
        if by_hand[-1] < int(lengths.max()):
            over = int(np.count_nonzero(lengths > by_hand[-1]))
            raise RefusedInput(
                f"--by-hand {by_hand}: they end below {over} of {lengths.size} rows, the longest {int(lengths.max())} tokens; "
                f"make the last boundary {int(lengths.max())} or more"
            )
        chosen["by_hand"] = by_hand
    efficiency = {rule: _planned(lengths, settings, each) for rule, each in chosen.items()}
    rules = {rule: {"boundaries": each, "padding_efficiency": efficiency[rule]} for rule, each in chosen.items()}
    rows = [(rule, k + 1, curve[k][1]) for rule, curve in curves.items() for k in range(most)]
    if by_hand is not None:
        rows.append(("by_hand", len(by_hand) - 1, bucket_efficiency(lengths, by_hand)))
    frame = pl.DataFrame(rows, schema=["rule", "buckets", "padding_efficiency"], orient="row")
    return BoundaryAdvice(chosen["optimal"], efficiency["optimal"], attention, frame, rules)


def _planned(lengths: NDArray[np.int32], settings: BatchingConfig, boundaries: list[int]) -> float:
    bucketed = settings.model_copy(update={"strategy": "bucketed", "boundaries": boundaries})
    return planned_efficiency(lengths, bucketed, epoch=0)
