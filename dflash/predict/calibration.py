"""Calibrate: fit the cost model to the events of real runs.

Each batch's event tells the seconds that reading, target and drafter took and what they worked on; `regression` makes terms of them.
Runs that differ in what a term is multiplied by (anchors, boundaries, strategies) are what tells terms apart; a term that the runs at
hand can't tell is left out and named, with the term that hides it.

Workers that share CPU cores slow each other down, and their seconds with them. The events give the mean number of jobs under way, so the
seconds of a run whose jobs outnumber its cores are divided by that ratio, and the cores go into the file; the simulator shares them out
again. Runs that fit their cores (one target and one drafter on two cores, say) need no such correction and calibrate best.

The first optimiser window of each run is left out: compilers, caches and allocators are still warming up.

Where a run evaluated and its data set is at hand, its held-out batches count too: smaller than those trained on, they tell a target's fixed
seconds from those a token takes. Of drafters they tell the share of a training batch's seconds that evaluating one takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.config import RunConfig
from dflash.errors import RefusedInput
from dflash.pipeline.engines.simulated import CostModel, padded_squares
from dflash.pipeline.evaluation import plan_holdout
from dflash.pipeline.jobs import PlannedBatch, Train
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.plans import PlanStream
from dflash.predict.costs import UNKNOWN_EVALUATION, About, CostsFile, Term, cost_model, device_name, drafter_summary
from dflash.predict.regression import Fit, FittedTerm, fit_terms
from dflash.predict.workload import Workload, load_workload
from dflash.runs.folder import RunFolder
from dflash.telemetry.accounts import STATES
from dflash.telemetry.reader import event_frame, read_events

FEWEST_BATCHES = 20
Array = NDArray[np.float64]


@dataclass(frozen=True)
class RunCosts:
    """What one run's events say of costs.

    Attributes:
        name: the run's.
        config: its settings.
        machine: its manifest's machine.
        batches: its batch events without the first window, with the columns `anchor_tokens`, `padded_squares`, `packed_tokens`,
            `metrics` and `was_read` (features from a cache) added.
        step_seconds: of each optimiser step but the first [steps].
        copy_seconds: a job's messages and copies, mean.
        checkpoint_seconds: of a checkpoint, mean; None when none was written.
        evaluations: seconds of targets and of drafters in each evaluation but the first (it warms up).
        workload: its samples; None when the data set isn't at hand.
        sharing: jobs under way per core, at least 1; its seconds are divided by it already.
    """

    name: str
    config: RunConfig
    machine: dict[str, Any]
    batches: pl.DataFrame
    step_seconds: Array
    copy_seconds: float
    checkpoint_seconds: float | None
    evaluations: list[dict[str, float]]
    workload: Workload | None
    sharing: float


@dataclass(frozen=True)
class Calibration:
    """Costs with how well they fit.

    Attributes:
        file: ready to be written.
        stages: per stage: batches, relative_error (median), spread (robust standard deviation), explained (share of the variance).
        unknown: a sentence for each term the runs can't tell.
        warnings: what to doubt.
    """

    file: CostsFile
    stages: dict[str, dict[str, float]]
    unknown: list[str]
    warnings: list[str]


def calibrate(runs: Sequence[RunFolder]) -> Calibration:
    """Fit the cost model to real runs.

    Raises:
        RefusedInput: a run without enough batches, or runs of different targets, drafters, engines or devices.
    """
    read = [read_run(run) for run in runs]
    _refuse_mixtures(read)
    fits = {"prefetch": _fit_prefetch(read), "drafter": _fit_drafter(read), "step": _fit_step(read)}
    computed, from_cache = (_where(read, was_read=was_read) for was_read in (False, True))
    fits |= {"target": _fit_target(computed)} if computed else {}
    fits |= {"target reads": _fit_reads(from_cache)} if from_cache else {}
    terms = {term.name: _term(term) for fit in fits.values() for term in fit.terms}
    terms["copy_fixed"] = _measured([run.copy_seconds for run in read])
    checkpoints = [run.checkpoint_seconds for run in read if run.checkpoint_seconds is not None]
    if checkpoints:
        terms["checkpoint_seconds"] = _measured(checkpoints)
    shares = _evaluation_shares(read, cost_model({name: term.value for name, term in terms.items()}, 0.0))
    if shares:
        terms["evaluation_share"] = _measured(shares)
    spread = float(np.mean([fits[stage].spread for stage in ("target", "drafter") if stage in fits]))
    first = read[0]
    device = device_name(_device(first), first.machine)
    about = About(
        target=first.config.target.path,
        device=device,
        engine=first.config.pipeline.engine,
        drafter=drafter_summary(first.config),
        runs=[run.name for run in read],
    )
    cores = int(first.machine.get("cpus", 0)) if device.startswith("cpu") else 0
    file = CostsFile(about=about, cores=cores, noise=min(spread, 1.0), terms=terms)
    stages = {
        stage: {"batches": fit.batches, "relative_error": fit.relative_error, "spread": fit.spread, "explained": fit.explained}
        for stage, fit in fits.items()
    }
    shared = [f"{run.name}: {run.sharing:.1f} jobs a core; its seconds were divided by that" for run in read if run.sharing > 1.05]
    unknown = [_why_unknown(term) for fit in fits.values() for term in fit.terms if not term.known]
    if not shares:
        unknown.append(
            f"evaluation_share can't be told (no run evaluated twice with its data at hand); {UNKNOWN_EVALUATION:.2f} is taken"
        )
    if not computed:
        unknown.append("the target's terms can't be told: these runs read all features from a filled cache")
    return Calibration(file, stages, unknown, shared)


def read_run(run: RunFolder) -> RunCosts:
    """What a run's events say of costs.

    Raises:
        RefusedInput: it was simulated, or has too few batches.
    """
    config, machine = run.config(), run.manifest().get("sessions", [{}])[-1].get("machine", {})
    events = read_events(run.events, "batch", "step", "sample", "checkpoint", "evaluation", "feature_cache")
    batches, steps = event_frame(events, "batch"), event_frame(events, "step")
    if steps.height > 1:
        batches = batches.filter(pl.col("time") > steps["time"].min())
    if batches.height < FEWEST_BATCHES or steps.height < 2:
        raise RefusedInput(
            f"{run.path}: {batches.height} batches after the first optimiser step, at least {FEWEST_BATCHES} are needed; run it longer"
        )
    samples = [event for event in events if event["event"] == "sample"]
    copy_seconds, active, checkpoint_seconds = _from_samples(samples)
    cores = machine.get("cpus") if _device_of(config, machine) == "cpu" and config.pipeline.engine == "ray" else None
    sharing = max(1.0, active / cores) if cores else 1.0
    workload = _workload(config)
    packed = config.batching.strategy == "packed"
    squares = pl.col("length_squared") if packed else pl.col("rows") * pl.col("longest").cast(pl.Int64) ** 2
    batches = batches.with_columns(
        squares.cast(pl.Float64).alias("padded_squares"),
        _anchor_tokens(batches, config, workload).alias("anchor_tokens"),
        (pl.col("tokens") * packed).alias("packed_tokens"),
        pl.col("accuracy").is_not_null().cast(pl.Float64).alias("metrics"),
        _was_read(config, events).alias("was_read"),
        *(pl.col(f"{stage}_seconds") / sharing for stage in ("prefetch", "target", "drafter")),
    )
    saved = sum(1 for event in events if event["event"] == "checkpoint")
    return RunCosts(
        name=run.name,
        config=config,
        machine=machine,
        batches=batches,
        step_seconds=steps.sort("step")["step_seconds"].to_numpy()[1:].astype(np.float64),
        copy_seconds=copy_seconds if config.pipeline.engine == "ray" else 0.0,
        checkpoint_seconds=checkpoint_seconds / saved if saved and checkpoint_seconds else None,
        evaluations=[_busy(event, sharing) for event in events if event["event"] == "evaluation" and "target_seconds" in event][1:],
        workload=workload,
        sharing=sharing,
    )


def _was_read(config: RunConfig, events: list[dict[str, Any]]) -> pl.Expr:
    """Whether a batch's features were read from a cache: of a run that filled it, from the second epoch on."""
    if config.target.features == "live":
        return pl.lit(value=False)
    first = next((event for event in events if event["event"] == "feature_cache"), {})
    if first and first["samples"] == first["of_samples"]:
        return pl.lit(value=True)
    return pl.col("batch").str.split(".").list.first() != "0"


def _where(runs: list[RunCosts], *, was_read: bool) -> list[RunCosts]:
    """The runs with only those batches whose features were read, or computed; evaluations of a cached run count as neither."""
    parts = [
        replace(
            run,
            batches=run.batches.filter(pl.col("was_read") == was_read),
            evaluations=run.evaluations if run.config.target.features == "live" else [],
        )
        for run in runs
    ]
    return [part for part in parts if part.batches.height]


def _workload(config: RunConfig) -> Workload | None:
    try:
        return load_workload(config)
    except RefusedInput:
        return None


def _busy(event: dict[str, Any], sharing: float) -> dict[str, float]:
    return {stage: event[f"{stage}_seconds"] / sharing for stage in ("target", "drafter")}


def _anchor_tokens(batches: pl.DataFrame, config: RunConfig, workload: Workload | None) -> pl.Series:
    """Tokens of the blocks' conversations: exact where the data set is at hand, else as if a batch's rows were alike."""
    if workload is None:
        return batches["anchors"] * batches["tokens"] / batches["rows"]
    blocks = workload.blocks
    drawn = (blocks.of(np.asarray(samples), config.drafter.anchors) for samples in batches["samples"].to_list())
    return pl.Series([each.anchor_tokens for each in drawn], dtype=pl.Float64)


def _from_samples(samples: list[dict[str, Any]]) -> tuple[float, float, float]:
    """From the last sample of counters: copy seconds a job, jobs under way (mean), checkpoint seconds altogether."""
    if not samples:
        return 0.0, 0.0, 0.0
    workers = samples[-1]["workers"]
    jobs = sum(worker["batches"] for worker in workers)
    wall = sum(workers[0][f"{state}_seconds"] for state in STATES)
    return (
        sum(worker["copy_seconds"] for worker in workers) / max(jobs, 1),
        sum(worker["busy_seconds"] for worker in workers) / max(wall, 1e-9),
        sum(worker["checkpoint_seconds"] for worker in workers),
    )


def _evaluation_shares(runs: list[RunCosts], model: CostModel) -> list[float]:
    """For each evaluation, its seconds over those of training on the same batches."""
    shares: list[float] = []
    for run in runs:
        batches, budget = _held_out(run), run.config.evaluation.anchors
        if run.workload is None or not batches:
            continue
        blocks = run.workload.blocks
        jobs = [Train(0, batch, budget, with_metrics=True) for batch in batches]
        trained = sum(model.seconds(job, blocks.evaluated(job.batch.samples, run.config.evaluation)) for job in jobs)
        shares += [each["drafter"] / trained for each in run.evaluations if trained > 0]
    return shares


def _held_out(run: RunCosts) -> list[PlannedBatch]:
    """The batches of each of its evaluations."""
    if run.workload is None or not run.evaluations:
        return []
    stream = PlanStream(run.workload.lengths, run.workload.kept, run.config, Ledger())
    return plan_holdout(stream, run.workload.supervised, run.workload.held_out)


def _fit_prefetch(runs: list[RunCosts]) -> Fit:
    return fit_terms(
        _column(runs, "prefetch_seconds"), {"prefetch_fixed": _ones(runs), "prefetch_per_token": _column(runs, "tokens")}
    )


def _fit_target(runs: list[RunCosts]) -> Fit:
    columns = {
        "target_fixed": _ones(runs),
        "target_per_row": _column(runs, "rows"),
        "target_per_padded_token": _column(runs, "padded_tokens"),
        "target_per_length_squared": _column(runs, "padded_squares"),
    }
    packed = _column(runs, "packed_tokens")
    if packed.any():
        columns["target_per_packed_token"] = packed
    evaluated = [
        (each["target"], sums) for run in runs for sums in [_target_sums(_held_out(run))] for each in run.evaluations if sums
    ]
    seconds = np.concatenate([_column(runs, "target_seconds"), [spent for spent, _ in evaluated]])
    columns = {name: np.concatenate([column, [sums.get(name, 0.0) for _, sums in evaluated]]) for name, column in columns.items()}
    return fit_terms(seconds, columns)


def _fit_reads(runs: list[RunCosts]) -> Fit:
    return fit_terms(_column(runs, "target_seconds"), {"target_read_per_token": _column(runs, "tokens")})


def _target_sums(batches: list[PlannedBatch]) -> dict[str, float]:
    """What the target's terms are multiplied by, over all held-out batches (which are padded, never packed)."""
    if not batches:
        return {}
    return {
        "target_fixed": len(batches),
        "target_per_row": sum(batch.rows for batch in batches),
        "target_per_padded_token": sum(batch.padded_tokens for batch in batches),
        "target_per_length_squared": sum(padded_squares(batch) for batch in batches),
    }


def _fit_drafter(runs: list[RunCosts]) -> Fit:
    columns = {
        "drafter_fixed": _ones(runs),
        "drafter_per_row": _column(runs, "rows"),
        "drafter_per_token": _column(runs, "tokens"),
        "drafter_per_anchor": _column(runs, "anchors"),
        "drafter_per_anchor_token": _column(runs, "anchor_tokens"),
    }
    metrics = _column(runs, "metrics")
    if 0 < metrics.mean() < 1:
        columns["drafter_metrics"] = metrics
    return fit_terms(_column(runs, "drafter_seconds"), columns)


def _fit_step(runs: list[RunCosts]) -> Fit:
    seconds = np.concatenate([run.step_seconds for run in runs])
    others = np.concatenate([np.full(run.step_seconds.size, run.config.pipeline.drafters - 1.0) for run in runs])
    columns = {"step_fixed": np.ones(seconds.size)}
    if others.any():
        columns["step_per_drafter"] = others
    return fit_terms(seconds, columns)


def _column(runs: list[RunCosts], name: str) -> Array:
    return np.concatenate([run.batches[name].cast(pl.Float64).to_numpy() for run in runs])


def _ones(runs: list[RunCosts]) -> Array:
    return np.ones(sum(run.batches.height for run in runs))


def _term(term: FittedTerm) -> Term:
    return Term(value=term.value, low=term.low, high=term.high, known=term.known)


def _measured(values: list[float]) -> Term:
    return Term(value=float(np.mean(values)), low=float(min(values)), high=float(max(values)))


def _why_unknown(term: FittedTerm) -> str:
    hidden = f"it rises and falls with {term.partner} in these runs" if term.partner else "it is too small beside their spread"
    return f"{term.name} can't be told ({hidden}); left out, at most {term.high:.3g}"


def _device(run: RunCosts) -> str:
    return _device_of(run.config, run.machine)


def _device_of(config: RunConfig, machine: dict[str, Any]) -> str:
    if config.pipeline.device != "auto":
        return config.pipeline.device
    return "cuda" if machine.get("gpus") else "cpu"


def _refuse_mixtures(runs: list[RunCosts]) -> None:
    first = runs[0]
    for run in runs[1:]:
        pairs = [
            ("the target", first.config.target.path, run.config.target.path),
            ("the drafter", drafter_summary(first.config), drafter_summary(run.config)),
            ("the engine", first.config.pipeline.engine, run.config.pipeline.engine),
            ("the device", device_name(_device(first), first.machine), device_name(_device(run), run.machine)),
        ]
        for what, here, there in pairs:
            if here != there:
                raise RefusedInput(f"{what} of {first.name} is {here}, of {run.name} {there}: costs are fitted to runs of one kind")
