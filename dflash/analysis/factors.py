"""The rate of a pipeline as a product of factors, so that a change of the rate can be shared out among its causes.

A pipeline that never idles commits tokens as fast as its slowest stage allows; whatever it falls short of that is waiting. With n workers of a
stage, u seconds a real token on a usual worker, and s the mean speed of the workers over the usual one's (1 without a straggler):

    rate = waiting x pauses x min over stages (n s / u)

    u(target)  = speed x padding x length mix x hand-over       u(drafter) = speed x metrics x length mix x hand-over / (1 - step)
    pauses     = (1 - evaluation)(1 - checkpoint)(1 - compile)  u(prefetch) = speed

The inline engine does one job at a time, so there the stages' seconds add up instead: rate = waiting x pauses / sum of u.

What a batch would have cost a target or drafter "before" comes from a cost model fitted to the batches of before (non-negative least squares on
padded tokens and their squares; on tokens and rows). With it

    length mix = modelled seconds a real token without padding; padding = modelled with / without padding; speed = real / modelled.

Each factor is measured in each of `BLOCKS` equal parts of a stretch, so that it has a standard error.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import nnls

from dflash.analysis.bottleneck import STRAGGLES_BELOW
from dflash.analysis.eventlog import EventLog
from dflash.analysis.flow import Flow, measure_flow

BLOCKS = 5
FEWEST_BATCHES = 5
FACTORS = (
    "target speed", "padding", "length mix", "drafter speed", "metrics", "prefetch speed", "hand-over", "target straggler",
    "drafter straggler", "optimiser step", "evaluation", "checkpoint", "compile", "workers", "waiting",
)  # fmt: skip
PARTS = {"length mix": ("target mix", "drafter mix"), "hand-over": ("target hand-over", "drafter hand-over")}
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CostFit:
    """Modelled seconds of a batch: `target` on padded tokens and squares, `drafter` on tokens and rows, `metrics` a batch that has them."""

    target: _Floats
    drafter: _Floats
    metrics: float


@dataclass(frozen=True)
class State:
    """The pipeline in a stretch, as the numbers the factors are made of; a larger one of the costs is slower."""

    ktok_s: float
    serial: bool
    counts: dict[str, int]
    costs: dict[str, float]
    """target speed, padding, length mix (target), drafter length mix, drafter speed, metrics, prefetch speed, target and drafter hand-over."""
    fleet: dict[str, float]
    """Mean speed of the workers of a kind over the usual one's; below 1 with a straggler."""
    pauses: dict[str, float]
    """Shares of wall time: evaluation, checkpoint, compile, step."""

    def capacity(self) -> float:
        """Ktok/s without any waiting."""
        return capacity(self)

    @property
    def waiting(self) -> float:
        """What is left of the capacity."""
        limit = self.capacity()
        return self.ktok_s / limit if limit > 0 else float("nan")


def capacity(state: State) -> float:
    """Ktok/s that the stages allow, pauses taken off."""
    costs, fleet, counts = state.costs, state.fleet, state.counts
    target = costs["target speed"] * costs["padding"] * costs["target mix"] * costs["target hand-over"]
    drafter = costs["drafter speed"] * costs["metrics"] * costs["drafter mix"] * costs["drafter hand-over"]
    seconds = {
        "target": target / (counts["target"] * fleet["target"]),
        "drafter": drafter / (counts["drafter"] * fleet["drafter"]) / (1 - state.pauses["step"]),
        "prefetch": costs["prefetch speed"] / counts["prefetch"],
    }
    slowest = sum(seconds.values()) if state.serial else max(seconds.values())
    running = (1 - state.pauses["evaluation"]) * (1 - state.pauses["checkpoint"]) * (1 - state.pauses["compile"])
    return running / slowest / 1_000 if slowest > 0 else 0.0


def fit_costs(before: pl.DataFrame, after: pl.DataFrame) -> CostFit:
    """The cost model of the batches of before; what before can't tell of the metrics' cost is taken from after."""
    target = _fit(_target_terms(before, padded=True), before["target_seconds"].to_numpy())
    plain = before.filter(~_with_metrics(before))
    base = plain if len(plain) >= FEWEST_BATCHES else before
    drafter = _fit(_drafter_terms(base), base["drafter_seconds"].to_numpy())
    return CostFit(target, drafter, _metrics_cost(before, drafter) or _metrics_cost(after, drafter) or 0.0)


def measure_state(flow: Flow, fit: CostFit, *, serial: bool, straggling: frozenset[str] | None = None) -> State | None:
    """The numbers of a stretch under a cost model; None if it holds too few batches.

    `straggling` are the kinds of worker of which one straggles, where that was found in a longer stretch; None: found here. Without a straggler
    workers count as alike, so that their noise is none.
    """
    batches = flow.batches
    if len(batches) < FEWEST_BATCHES:
        return None
    tokens = float(batches["tokens"].sum())
    padded = float((_target_terms(batches, padded=True) @ fit.target).sum())
    unpadded = float((_target_terms(batches, padded=False) @ fit.target).sum())
    drafted = float((_drafter_terms(batches) @ fit.drafter).sum())
    busy = float(batches["drafter_seconds"].sum())
    metrics = _metrics_seconds(batches, fit)
    speeds = worker_speeds(flow, fit)
    if straggling is None:
        straggling = frozenset(kind for kind, by_name in speeds.items() if straggles(by_name))
    fleet = {kind: _fleet(speeds[kind]) if kind in straggling else (1.0, 1.0) for kind in ("target", "drafter")}
    costs = {
        "target speed": float(batches["target_seconds"].sum()) / padded * fleet["target"][1],
        "padding": padded / unpadded,
        "target mix": unpadded / tokens,
        "drafter speed": (busy - metrics) / drafted * fleet["drafter"][1],
        "metrics": busy / (busy - metrics),
        "drafter mix": drafted / tokens,
        "prefetch speed": float(batches["prefetch_seconds"].sum()) / tokens if "prefetch_seconds" in batches.columns else 0.0,
        "target hand-over": _hand_over(flow, "target"),
        "drafter hand-over": _hand_over(flow, "drafter"),
    }
    pauses = {
        "evaluation": min(flow.evaluation_share, 0.99),
        "checkpoint": min(max((worker.shares["checkpoint"] for worker in flow.workers["drafter"]), default=0.0), 0.99),
        "compile": min(flow.share("drafter", "compile"), 0.99),
        "step": min(flow.step_share, 0.99),
    }
    counts = {kind: max(sum(1 for worker in flow.workers[kind] if worker.tokens > 0), 1) for kind in flow.workers}
    return State(flow.ktok_s, serial, counts, costs, {kind: mean for kind, (mean, _) in fleet.items()}, pauses)


def worker_speeds(flow: Flow, fit: CostFit) -> dict[str, dict[str, float]]:
    """Speed of each target and drafter for the same work, by kind and name: modelled seconds over real ones."""
    targets = {
        worker.name: float(np.array([worker.padded_tokens, worker.length_squared]) @ fit.target) / worker.busy_seconds
        for worker in flow.workers["target"]
        if worker.busy_seconds > 0 and worker.tokens > 0
    }
    modelled = _drafter_terms(flow.batches) @ fit.drafter + fit.metrics * _with_metrics(flow.batches).to_numpy()
    sums = flow.batches.select("drafter", "drafter_seconds", modelled=pl.Series(modelled)).group_by("drafter").sum()
    drafters = {f"drafter-{number}": work / max(real, 1e-12) for number, real, work in sums.sort("drafter").iter_rows()}
    return {"target": targets, "drafter": drafters}


def straggles(speeds: dict[str, float]) -> dict[str, float]:
    """Workers slower than 0.75 of the fastest, with their share of its speed."""
    fastest = max(speeds.values(), default=0.0)
    return {name: speed / fastest for name, speed in speeds.items() if speed < STRAGGLES_BELOW * fastest}


def measure_blocks(log: EventLog, flow: Flow, fit: CostFit, *, serial: bool) -> list[State]:
    """The stretch in `BLOCKS` equal parts, those that hold enough."""
    edges = np.linspace(flow.begin, flow.end, BLOCKS + 1)
    flows = [measure_flow(log, float(left), float(right)) for left, right in itertools.pairwise(edges)]
    straggling = frozenset(kind for kind, speeds in worker_speeds(flow, fit).items() if straggles(speeds))
    states = (measure_state(part, fit, serial=serial, straggling=straggling) for part in flows if part is not None)
    return [state for state in states if state is not None and state.ktok_s > 0]


def with_factor(state: State, other: State, factor: str) -> State:
    """`state` with one factor as it is in `other`."""
    costs, fleet, pauses, counts = dict(state.costs), dict(state.fleet), dict(state.pauses), dict(state.counts)
    ktok_s = state.ktok_s
    match factor:
        case "length mix" | "hand-over":
            costs |= {part: other.costs[part] for part in PARTS[factor]}
        case "target straggler" | "drafter straggler":
            kind = factor.partition(" ")[0]
            fleet[kind] = other.fleet[kind]
        case "optimiser step":
            pauses["step"] = other.pauses["step"]
        case "evaluation" | "checkpoint" | "compile":
            pauses[factor] = other.pauses[factor]
        case "workers":
            counts = dict(other.counts)
        case _:
            costs[factor] = other.costs[factor]
    return State(ktok_s, state.serial, counts, costs, fleet, pauses)


def factor_value(state: State, factor: str, part: str | None = None) -> float:
    """A factor as one number, a larger one slower. `part` names the component of a factor that has two."""
    match factor:
        case "length mix" | "hand-over":
            return max(state.costs[part or PARTS[factor][0]], 1e-12)
        case "target straggler" | "drafter straggler":
            return 1 / state.fleet[factor.partition(" ")[0]]
        case "optimiser step":
            return 1 / (1 - state.pauses["step"])
        case "evaluation" | "checkpoint" | "compile":
            return 1 / (1 - state.pauses[factor])
        case "workers":
            return 1 / math.prod(state.counts.values())
        case "waiting":
            return 1 / state.waiting if state.waiting > 0 else float("nan")
        case _:
            return max(state.costs[factor], 1e-12)


def worse_part(old: State, new: State, factor: str) -> str | None:
    """Of a factor that acts on targets and drafters, the component that got worse; None for the others."""
    parts = PARTS.get(factor)
    return parts and max(parts, key=lambda part: new.costs[part] / max(old.costs[part], 1e-12))


def _target_terms(batches: pl.DataFrame, *, padded: bool) -> _Floats:
    """Tokens and squared lengths [batches, 2], as the target sees them or as they would be without padding."""
    if not padded:
        return batches.select(pl.col("tokens").cast(pl.Float64), pl.col("length_squared").cast(pl.Float64)).to_numpy()
    packed = (pl.col("padded_tokens") == pl.col("tokens")) & (pl.col("rows") * pl.col("longest") != pl.col("tokens"))
    squares = pl.when(packed).then(pl.col("length_squared")).otherwise(pl.col("rows") * pl.col("longest") ** 2)
    return batches.select(pl.col("padded_tokens").cast(pl.Float64), squares.cast(pl.Float64)).to_numpy()


def _drafter_terms(batches: pl.DataFrame) -> _Floats:
    return batches.select(pl.col("tokens").cast(pl.Float64), pl.col("rows").cast(pl.Float64)).to_numpy()


def _fit(terms: _Floats, seconds: _Floats) -> _Floats:
    """Non-negative least squares; scaled columns, and the plain mean a token where nothing fits."""
    scale = np.maximum(terms.mean(axis=0), 1e-12)
    found, _ = nnls(terms / scale, seconds)
    if not found.any():
        return np.array([seconds.sum() / max(terms[:, 0].sum(), 1e-12), *np.zeros(terms.shape[1] - 1)])
    return np.asarray(found / scale)


def _with_metrics(batches: pl.DataFrame) -> pl.Series:
    """Which batches counted accuracy and streak."""
    if "accuracy" not in batches.columns:
        return pl.Series([False] * len(batches), dtype=pl.Boolean)
    return batches["accuracy"].is_not_null()


def _metrics_cost(batches: pl.DataFrame, drafter: _Floats) -> float | None:
    """Seconds a batch that its metrics cost, each drafter held against itself; None unless both kinds of batches are there."""
    frame = batches.select(
        "drafter",
        pl.col("drafter_seconds").alias("real"),
        measured=_with_metrics(batches),
        modelled=pl.Series(_drafter_terms(batches) @ drafter),
    )
    plain = frame.filter(~pl.col("measured")).group_by("drafter").agg(speed=pl.col("real").sum() / pl.col("modelled").sum())
    held = frame.filter("measured").join(plain, on="drafter")
    if min(len(held), int((~frame["measured"]).sum())) < FEWEST_BATCHES:
        return None
    return max(float((held["real"] - held["speed"] * held["modelled"]).mean()), 0.0)  # type: ignore[arg-type]


def _metrics_seconds(batches: pl.DataFrame, fit: CostFit) -> float:
    """Seconds of all metrics in these batches: told from the batches without, else by what they cost before."""
    own = _metrics_cost(batches, fit.drafter)
    count = int(_with_metrics(batches).sum())
    most = 0.95 * float(batches["drafter_seconds"].sum())
    return min((fit.metrics if own is None else own) * count, most)


def _fleet(speeds: dict[str, float]) -> tuple[float, float]:
    """Mean speed over the usual worker's, and mean seconds over the usual worker's. The usual worker is the median one, of two the faster."""
    values = np.array(list(speeds.values()))
    if values.size < 2:
        return 1.0, 1.0
    usual = float(np.median(values)) if values.size > 2 else float(values.max())
    return float(values.mean()) / usual, float(values.mean()) / usual


def _hand_over(flow: Flow, kind: str) -> float:
    """Busy and copy seconds over busy ones."""
    busy = flow.share(kind, "busy")
    return 1 + flow.share(kind, "copy") / busy if busy > 0 else 1.0
