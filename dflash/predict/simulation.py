"""Simulate a run: the coordinator, pool, policies and planner as they are, on the simulated engine.

**Ktok/s** is what it is everywhere: real tokens committed by optimiser steps per second, here between the end of the first step (the pipeline is
full by then) and the end of the last one simulated. Its interval is the 95% one of the mean of ten blocks of consecutive steps (batch means,
Student's t): what another seed of the noise, or another hour of the run, would give. It holds none of the doubt about costs.

Only the first `hours` are simulated, since a run is alike all along; a run that ends sooner is simulated whole. Held-out evaluation takes
place every `evaluation.every` steps, as it does in a run, and its time counts.
A deadlock is a result, not an error: Ktok/s is 0 then, and `deadlock` says which worker waits for what.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dflash.batching.figures import plan_figures
from dflash.batching.plan import EpochPlan
from dflash.config import RunConfig
from dflash.pipeline.coordinator import Coordinator, Deadlock
from dflash.pipeline.engines.simulated import CostModel, SimulatedEngine
from dflash.pipeline.evaluation import plan_holdout
from dflash.pipeline.jobs import PlannedBatch, Save
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reports import EvaluationReport, StepReport, Trained
from dflash.predict.costs import ResolvedCosts, resolve_costs
from dflash.predict.workload import Workload, load_workload

BLOCKS = 10
FEWEST_STEPS = 8
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t, two-sided 95%, for 1 to 9 degrees of freedom."""


@dataclass(frozen=True)
class Simulation:
    """What a simulated run did.

    Attributes:
        ktok_s: real tokens committed per second, thousands; 0 after a deadlock.
        interval: its 95% interval [low, high]; None when fewer than three steps were simulated.
        eta_days: whole run, all epochs, at that rate; None after a deadlock.
        deadlock: which worker waits for what; None when there was none.
        bottleneck: `targets`, `drafters`, `prefetch`, or `deadlock`: the workers busy the largest part of the time.
        workers: per worker, the share of time in each state.
        pool: items (mean), by_bucket (mean items), boundaries, empty and full (shares of time), residence_seconds (mean), peak_bytes,
            capacity_items, capacity_bytes.
        prefetch: items (mean), empty and full (shares of time).
        mix: vr and chi of the batches in the order they were committed, keyed by batches a window.
        padding_efficiency: real over padded tokens of the batches committed.
        hours, steps, batches, tokens: what was simulated.
        stages: seconds a batch takes (mean): prefetch, target, drafter; and step, and evaluation (each, when there was one).
        events_per_minute: batch events (a batch read, produced, trained) simulated per minute of this machine.
        lengths, costs: where they are from, in words.
        warnings: what to doubt.
    """

    ktok_s: float
    interval: list[float] | None
    eta_days: float | None
    deadlock: str | None
    bottleneck: str
    workers: dict[str, dict[str, float]]
    pool: dict[str, Any]
    prefetch: dict[str, float]
    mix: dict[str, dict[str, float | None]]
    padding_efficiency: float | None
    hours: float
    steps: int
    batches: int
    tokens: int
    stages: dict[str, float]
    events_per_minute: float
    lengths: str
    costs: str
    warnings: tuple[str, ...] = ()


@dataclass
class Watcher:
    """The coordinator's listener: keeps what the figures need, and stops the run when its hours are over."""

    stop_at_seconds: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    """End of each step in seconds, and the real tokens it committed."""
    windows: list[list[PlannedBatch]] = field(default_factory=list)
    evaluations: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    coordinator: Coordinator | None = None

    def trained(self, trained: Trained) -> None:
        """A drafter finished a batch."""
        for stage, spent in trained.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent

    def stepped(self, report: StepReport) -> None:
        """An optimiser step was taken."""
        assert self.coordinator is not None
        now = self.coordinator.engine.now()
        batches = [trained.batch for trained in report.batches]
        self.steps.append((now, sum(batch.tokens for batch in batches)))
        self.windows.append(batches)
        self.seconds["step"] = self.seconds.get("step", 0.0) + report.step_seconds
        if now >= self.stop_at_seconds and len(self.steps) >= FEWEST_STEPS:
            self.coordinator.stop_requested = True

    def evaluated(self, report: EvaluationReport) -> None:
        """A held-out evaluation ended."""
        self.evaluations += 1
        self.seconds["evaluation"] = self.seconds.get("evaluation", 0.0) + report.seconds["evaluation"]

    def lost(self, worker: str, reason: str, step: int) -> None:
        """No worker is lost in a simulation."""

    def turned(self, coordinator: Coordinator) -> None:
        """One turn of the loop is over."""
        self.peak_bytes = max(self.peak_bytes, coordinator.stock.pool.held_bytes)


class _NoCheckpoint:
    """Takes the time of a checkpoint and writes none."""

    def begin(self, step: int, *, weights_only: bool = False) -> Save:
        """The job that takes the time."""
        return Save(Path())

    def commit(self, step: int, state: dict[str, Any]) -> None:
        """Nothing is kept."""


def simulate(
    config: RunConfig,
    *,
    hours: float | None = None,
    workload: Workload | None = None,
    costs: ResolvedCosts | None = None,
) -> Simulation:
    """Simulate a run.

    Args:
        config: the run, its `simulation` section included.
        hours: simulated at most; None: `simulation.hours`.
        workload: its samples, when they are at hand already; None: as the config says.
        costs: likewise.

    Raises:
        RefusedInput: lengths or costs that can't be used, settings that don't fit them.
    """
    workload = workload or load_workload(config)
    costs = costs or resolve_costs(config)
    hours = hours or config.simulation.hours
    watcher = Watcher(hours * 3_600)
    coordinator = build(shortened(config, workload, costs.model, hours), workload, costs, watcher)
    deadlock = None
    started = time.process_time()
    try:
        coordinator.run()
    except Deadlock as error:
        deadlock = str(error)
    spent = time.process_time() - started
    return _summary(config, workload, costs, coordinator, watcher, deadlock, spent)


def build(
    config: RunConfig, workload: Workload, costs: ResolvedCosts, watcher: Watcher, engine: SimulatedEngine | None = None
) -> Coordinator:
    """The coordinator of a run on the simulated engine (on `engine` when one is given)."""
    ledger = Ledger()
    engine = engine or SimulatedEngine(
        config.pipeline,
        costs.model,
        config.simulation.seed,
        blocks=workload.blocks,
        evaluation=config.evaluation,
        feature_bytes_per_token=workload.feature_bytes_per_token,
        cores=costs.cores,
        serial=config.pipeline.engine == "inline",
    )
    stream = PlanStream(workload.lengths, workload.kept, config, ledger)
    watcher.coordinator = coordinator = Coordinator(
        config,
        stream,
        ledger,
        engine,
        watcher,
        feature_bytes_per_token=workload.feature_bytes_per_token,
        checkpointer=_NoCheckpoint() if costs.model.checkpoint_seconds else None,
        holdout=plan_holdout(stream, workload.supervised, workload.held_out),
    )
    return coordinator


def shortened(config: RunConfig, workload: Workload, costs: CostModel, hours: float) -> RunConfig:
    """The config with no more epochs than the hours can reach, so that no more are planned (a plan of a million samples takes a while)."""
    pipeline = config.pipeline
    least = max(costs.target_per_padded_token / pipeline.targets, costs.drafter_per_token / pipeline.drafters)
    epoch_hours = workload.tokens * least / 3_600
    if epoch_hours <= 0:
        return config
    within = math.ceil(hours / epoch_hours * 1.3)
    epochs = max(1, min(config.optim.epochs, within))
    return config.model_copy(update={"optim": config.optim.model_copy(update={"epochs": epochs})})


def rate(steps: list[tuple[float, int]]) -> tuple[float, list[float] | None]:
    """Ktok/s between the first step's end and the last one's, and its 95% interval; see the module's docstring.

    Args:
        steps: end of each step in seconds, and the real tokens it committed.
    """
    if len(steps) < 2:
        return (steps[0][1] / steps[0][0] / 1_000 if steps and steps[0][0] > 0 else 0.0), None
    ends = np.array([end for end, _ in steps])
    tokens = np.array([count for _, count in steps[1:]], np.float64)
    mean = float(tokens.sum() / (ends[-1] - ends[0])) / 1_000
    blocks = min(BLOCKS, len(tokens))
    if blocks < 2:
        return mean, None
    cuts = np.linspace(0, len(tokens), blocks + 1).round().astype(int)
    rates = np.add.reduceat(tokens, cuts[:-1]) / np.diff(ends[cuts]) / 1_000
    half = _T95[blocks - 2] * float(rates.std(ddof=1)) / math.sqrt(blocks)
    return mean, [max(mean - half, 0.0), mean + half]


def _summary(
    config: RunConfig,
    workload: Workload,
    costs: ResolvedCosts,
    coordinator: Coordinator,
    watcher: Watcher,
    deadlock: str | None,
    spent_seconds: float,
) -> Simulation:
    now = coordinator.engine.now()
    ktok_s, interval = (0.0, None) if deadlock else rate(watcher.steps)
    workers = {account.name: _shares(account.snapshot(now), now) for account in coordinator.crew.accounts.values()}
    batches = sum(len(window) for window in watcher.windows)
    vr, chi, efficiency = _mix(config, workload, watcher.windows)
    assert isinstance(coordinator.engine, SimulatedEngine)
    return Simulation(
        ktok_s=ktok_s,
        interval=interval,
        eta_days=workload.tokens * config.optim.epochs / ktok_s / 1_000 / 86_400 if ktok_s else None,
        deadlock=deadlock,
        bottleneck="deadlock" if deadlock else busiest(workers),
        workers=workers,
        pool=_pool(coordinator, watcher, now),
        prefetch=_queue(coordinator.stock.queues["prefetch"].snapshot(now), now),
        mix={"vr": vr, "chi": chi},
        padding_efficiency=efficiency,
        hours=now / 3_600,
        steps=len(watcher.steps),
        batches=batches,
        tokens=coordinator.progress.committed_tokens,
        stages=_stages(watcher, batches),
        events_per_minute=coordinator.engine.jobs_done / max(spent_seconds, 1e-9) * 60,
        lengths=workload.source,
        costs=costs.source,
        warnings=costs.warnings,
    )


def busiest(workers: dict[str, dict[str, float]]) -> str:
    """The kind of worker that is busy (or copying) the largest part of the time: `targets`, `drafters` or `prefetch`."""
    kinds: dict[str, list[float]] = {}
    for name, shares in workers.items():
        kinds.setdefault(name.rpartition("-")[0], []).append(shares.get("busy", 0.0) + shares.get("copy", 0.0))
    busy = {kind: sum(each) / len(each) for kind, each in kinds.items()}
    winner = max(busy, key=lambda kind: busy[kind])
    return {"target": "targets", "drafter": "drafters"}.get(winner, winner)


def _shares(snapshot: dict[str, Any], now: float) -> dict[str, float]:
    seconds = {key.removesuffix("_seconds"): value for key, value in snapshot.items() if key.endswith("_seconds")}
    return {state: round(spent / now, 4) for state, spent in seconds.items() if spent and now}


def _queue(snapshot: dict[str, Any], now: float) -> dict[str, float]:
    now = now or 1.0
    return {
        "items": sum(snapshot["depth_seconds"]) / now,
        "empty": snapshot["empty_seconds"] / now,
        "full": snapshot["full_seconds"] / now,
        "residence_seconds": snapshot["residence_seconds"] / max(snapshot["gets"], 1),
    }


def _pool(coordinator: Coordinator, watcher: Watcher, now: float) -> dict[str, Any]:
    snapshot: dict[str, Any] = coordinator.stock.queues["pool"].snapshot(now)
    return {
        **_queue(snapshot, now),
        "by_bucket": [round(each / (now or 1.0), 3) for each in snapshot["depth_seconds"]],
        "boundaries": coordinator.stream.boundaries,
        "peak_bytes": watcher.peak_bytes,
        "capacity_items": coordinator.stock.pool.capacity_items,
        "capacity_bytes": coordinator.stock.pool.capacity_bytes,
    }


def _stages(watcher: Watcher, batches: int) -> dict[str, float]:
    per = {"step": max(len(watcher.steps), 1), "evaluation": max(watcher.evaluations, 1)}
    return {stage: spent / per.get(stage, max(batches, 1)) for stage, spent in watcher.seconds.items() if stage != "residence"}


def _mix(
    config: RunConfig, workload: Workload, windows: list[list[PlannedBatch]]
) -> tuple[dict[str, float | None], dict[str, float | None], float | None]:
    """vr and chi over the batches as committed; an epoch's short window is left out, since it would shift those after it."""
    batches = [batch for window in windows if len(window) == config.optim.accumulate for batch in window]
    if not batches:
        return {}, {}, None
    offsets = np.concatenate([[0], np.cumsum([batch.rows for batch in batches])])
    plan = EpochPlan(np.concatenate([batch.samples for batch in batches]), offsets, batches[0].packed)
    figures = plan_figures(plan, workload.lengths, config.batching)
    return figures.vr, figures.chi, figures.padding_efficiency
