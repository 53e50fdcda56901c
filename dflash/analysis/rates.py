"""The rate of a run as a series: what change detection looks at.

Ktok/s is real tokens committed by optimiser steps per second. A step is a coarse clock when steps take minutes, so a run of fewer than
`FEW_STEPS` steps is measured by its batches instead where that gives more rows, in equal stretches of time: tokens drafted, which the next
step commits. An imported log
gives its own rates, in its own unit.

Rows during which something else happened are marked with a phase and left out of the search: warm-up (the first rows of a session),
evaluation, checkpoint, compile. They are counted, and shown on charts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.analysis.eventlog import EventLog

FEW_STEPS = 60
WARM_UP_ROWS = 2
WARM_UP_SECONDS = 60.0
COMPILE_SHARE = 0.2
_BATCHES_A_BIN = 8
_MOST_BINS = 400


@dataclass(frozen=True)
class RateSeries:
    """A run's rate over time.

    Attributes:
        frame: at (end of the row, s), seconds (its length; null where unknown), step, rate, phase ("train" or what else), source_line.
        unit: of the rate.
        source: "steps", "batches" or "log lines".
    """

    frame: pl.DataFrame
    unit: str
    source: str

    @property
    def kept(self) -> pl.DataFrame:
        """Rows of plain training with a positive rate."""
        return self.frame.filter((pl.col("phase") == "train") & (pl.col("rate") > 0))


def rate_series(log: EventLog) -> RateSeries:
    """The rate of a run, by the finest honest clock it has; empty if it has none."""
    if len(log.lines) and "rate" in log.lines.columns:
        return _from_lines(log)
    if len(log.steps) < FEW_STEPS and len(log.batches) // _BATCHES_A_BIN >= max(len(log.steps), 2):
        return RateSeries(_marked(_from_batches(log), log), "Ktok/s", "batches")
    return RateSeries(_marked(_from_steps(log), log), "Ktok/s", "steps")


def _from_lines(log: EventLog) -> RateSeries:
    lines = log.lines.with_columns(seconds=pl.col("at").diff())
    if "source_line" not in lines.columns:
        lines = lines.with_columns(source_line=pl.lit(None, pl.Int64))
    starts = np.array([event["at"] for event in log.rare["run_started"]] or [0.0])
    since = lines["at"].to_numpy() - starts[np.maximum(np.searchsorted(starts, lines["at"].to_numpy(), side="right") - 1, 0)]
    paced = "drafter_batches_per_second" in lines.columns  # the console's rates are means over the last minute
    warm = (
        (since < WARM_UP_SECONDS)
        if paced and len(lines) > 10 and log.imported.get("clock") != "order"
        else np.zeros(len(lines), bool)
    )
    first = log.lines["at"][0] if len(lines) else 0.0
    warm &= np.array(first < WARM_UP_SECONDS) | (lines["at"].to_numpy() > first)
    frame = lines.select(
        "at", "seconds", "step", "rate", "source_line", phase=pl.Series(np.where(warm, "warm-up", "train"), dtype=pl.String)
    )
    unit = str(lines["rate_unit"][0]) if "rate_unit" in lines.columns else "Ktok/s"
    return RateSeries(frame.filter(pl.col("rate").is_not_null()), unit, "log lines")


def _from_steps(log: EventLog) -> pl.DataFrame:
    if not len(log.steps) or "tokens" not in log.steps.columns:
        return _empty()
    at = log.steps["at"].to_numpy()
    before = _previous(at, np.array([event["at"] for event in log.rare["run_started"]]))
    seconds = np.maximum(at - before, 1e-9)
    return log.steps.select(
        "at", "step", seconds=pl.Series(seconds), rate=pl.col("tokens").fill_null(0) / pl.Series(seconds) / 1_000
    )


def _previous(at: NDArray[np.float64], starts: NDArray[np.float64]) -> NDArray[np.float64]:
    """When each row began: at the row before it, or at the start of the session if that is later."""
    before = np.concatenate([[0.0], at[:-1]])
    if starts.size:
        began = starts[np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)]
        before = np.maximum(before, np.minimum(began, at))
    return before


def _from_batches(log: EventLog) -> pl.DataFrame:
    at = log.batches["at"].to_numpy()
    tokens = log.batches["tokens"].to_numpy().astype(np.float64)
    bins = int(np.clip(len(at) // _BATCHES_A_BIN, 2, _MOST_BINS))
    first = min((event["at"] for event in log.rare["run_started"]), default=0.0)
    edges = np.linspace(first, at[-1], bins + 1)
    sums = np.histogram(at, edges, weights=tokens)[0]
    width = max(float(edges[1] - edges[0]), 1e-9)
    steps = np.searchsorted(log.steps["at"].to_numpy() if len(log.steps) else np.zeros(0), edges[1:], side="right")
    return pl.DataFrame(
        {"at": edges[1:], "step": steps.astype(np.int64), "seconds": np.full(bins, width), "rate": sums / width / 1_000}
    )


def _empty() -> pl.DataFrame:
    return pl.DataFrame(schema={"at": pl.Float64, "step": pl.Int64, "seconds": pl.Float64, "rate": pl.Float64})


def _marked(frame: pl.DataFrame, log: EventLog) -> pl.DataFrame:
    """Rows with their phase."""
    at, seconds = frame["at"].to_numpy(), frame["seconds"].to_numpy()
    phase = np.full(len(frame), "train", dtype=object)
    for name, spans in _spans(log).items():
        for begin, end in spans:
            phase[(at > begin) & (at - seconds < end)] = name
    for event in log.rare["run_started"]:
        rows = np.flatnonzero(at > event["at"])[:WARM_UP_ROWS]
        phase[rows if len(frame) > 5 * WARM_UP_ROWS else rows[:1]] = "warm-up"
    return frame.with_columns(phase=pl.Series(phase, dtype=pl.String), source_line=pl.lit(None, pl.Int64))


def _spans(log: EventLog) -> dict[str, list[tuple[float, float]]]:
    """When something else than training happened."""
    evaluations = [(event["at"] - (event.get("evaluation_seconds") or 0.0), event["at"]) for event in log.rare["evaluation"]]
    checkpoints = [(event["at"] - 1e-6, event["at"]) for event in log.rare["checkpoint"]]
    compiles = []
    before: tuple[float, float] | None = None
    for sample in log.rare["sample"]:
        spent = sum(worker.get("compile_seconds") or 0.0 for worker in sample.get("workers") or [])
        if before is not None and spent - before[1] > COMPILE_SHARE * (sample["at"] - before[0]) > 0:
            compiles.append((before[0], sample["at"]))
        before = sample["at"], spent
    return {"compile": compiles, "checkpoint": checkpoints, "evaluation": evaluations}
