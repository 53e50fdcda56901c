"""What boundaries are worth, at once: padding, batches a bucket and Ktok/s from counts of lengths, for a hand that drags a line.

The rate is a bound that a well-fed pipeline comes near: the slower of all targets and all drafters (or of the cores they share) by the
costs a simulation takes, when nothing ever waits. `simulate` runs the pipeline itself and takes seconds; this takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from dflash.batching.analysis import LengthCounts
from dflash.batching.estimate import estimate_buckets, estimated_efficiency
from dflash.config import RunConfig, build_config
from dflash.pipeline.engines.simulated import CostModel
from dflash.predict.costs import ResolvedCosts, resolve_costs


@dataclass(frozen=True)
class BoundaryFigures:
    """Boundaries and what a bucketed plan with them costs.

    Attributes:
        boundaries: K + 1 numbers from 0.
        buckets: one row a bucket, as from `estimate_buckets`, with batch_share and efficiency.
        padding_efficiency: of the whole.
        batches: an epoch.
        ktok_s: thousand real tokens a second if nothing waits.
    """

    boundaries: list[int]
    buckets: pl.DataFrame
    padding_efficiency: float
    batches: float
    ktok_s: float


def record_config(*settings: str) -> RunConfig:
    """The field record's topology and costs, for exploring lengths without a config, with `section.key=value` changed.

    Raises:
        RefusedInput: no such setting, or a bad value.
    """
    pipeline = {"engine": "simulated", "targets": 5, "drafters": 3, "prefetch": 64, "prefetch_workers": 4}
    return build_config({"data": {"path": "-"}, "target": {"path": "-"}, "pipeline": pipeline}, list(settings))


def boundary_figures(
    counts: LengthCounts, boundaries: Sequence[int], config: RunConfig, costs: ResolvedCosts | None = None
) -> BoundaryFigures:
    """Figures of a bucketed plan.

    Raises:
        RefusedInput: boundaries or budget that don't cover the longest row; costs that can't be read.
    """
    buckets = estimate_buckets(counts, boundaries, config.batching.token_budget, config.batching.max_rows)
    buckets = buckets.with_columns(
        (pl.col("batches") / pl.col("batches").sum()).alias("batch_share"),
        (pl.col("tokens") / pl.col("padded_tokens")).alias("efficiency"),
    )
    return BoundaryFigures(
        boundaries=[int(each) for each in boundaries],
        buckets=buckets,
        padding_efficiency=estimated_efficiency(buckets),
        batches=float(buckets["batches"].sum()),
        ktok_s=bound_ktok_s(buckets, config, costs or resolve_costs(config)),
    )


def bound_ktok_s(buckets: pl.DataFrame, config: RunConfig, costs: ResolvedCosts) -> float:
    """Thousand real tokens a second when targets and drafters never wait."""
    model, pipeline = costs.model, config.pipeline
    batches, samples = float(buckets["batches"].sum()), int(buckets["samples"].sum())
    tokens, padded = int(buckets["tokens"].sum()), float(buckets["padded_tokens"].sum())
    squares = float((buckets["padded_tokens"] ** 2 / buckets["samples"]).sum())
    target = (
        model.target_fixed * batches
        + model.target_per_row * samples
        + model.target_per_padded_token * padded
        + model.target_per_length_squared * squares
    )
    drafter = _drafter_seconds(model, config, batches, samples, tokens)
    steps = batches / config.optim.accumulate * (model.step_fixed + model.step_per_drafter * (pipeline.drafters - 1))
    slowest = max(target / pipeline.targets, drafter / pipeline.drafters + steps)
    if costs.cores:
        slowest = max(slowest, (target + drafter + steps * pipeline.drafters) / costs.cores)
    return tokens / slowest / 1_000 if slowest > 0 else float("inf")


def _drafter_seconds(model: CostModel, config: RunConfig, batches: float, samples: int, tokens: int) -> float:
    anchors = min(config.drafter.anchors * samples, tokens)
    return (
        model.drafter_fixed * batches
        + model.drafter_per_row * samples
        + model.drafter_per_token * tokens
        + model.drafter_per_anchor * anchors
        + model.drafter_per_anchor_token * anchors * tokens / samples
        + model.drafter_metrics * batches / config.telemetry.metrics_every
    )
