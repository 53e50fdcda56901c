"""Tell runs and restarts of one log apart, and give every reading a time that only goes forward.

A session ends where the session's clock goes back, where a line says that one begins, or, in logs without a clock, where the step goes back.
A session that begins at step 0 or 1 is a new run; any other goes on with the run before it (a restart). Where several processes print into
one log with a label before each line, each label is a log of its own.

Clocks of logs are coarse: the console says whole minutes, after a day whole hours. Lines that show the same time are spread evenly up to the
next time shown, so that rates over time come out right. A wall clock that jumps (back, or ahead by more than an hour) is taken as going on
at the pace it had, and that is noted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.importing.readings import Readings

FIRST_STEP_OF_A_RUN = 1
LONGEST_PAUSE_SECONDS = 3_600.0
USUAL_LINE_SECONDS = 10.0


@dataclass(frozen=True)
class ImportedRun:
    """One run of a log.

    Attributes:
        frame: its readings with `at` (seconds since its first line, never going back) and `session` (from 0).
        began: seconds since 1970, 0 when the log has no wall clock.
        clock: what `at` was got from: "wall", "elapsed", "step_seconds" or "order" (a line a second, where a log has no time at all).
        label: what the log puts before the run's lines, if anything.
    """

    frame: pl.DataFrame
    began: float
    clock: str
    label: str
    notes: tuple[str, ...]

    @property
    def sessions(self) -> int:
        """How often it was started."""
        return int(self.frame["session"].n_unique())


def split_runs(readings: Readings) -> list[ImportedRun]:
    """The runs of a log, in order of their first lines."""
    frame = readings.frame
    for name, usual in (("stream", ""), ("mark", None)):
        if name not in frame.columns:
            frame = frame.with_columns(pl.lit(usual, pl.String).alias(name))
    runs: list[ImportedRun] = []
    for stream in frame["stream"].unique(maintain_order=True):
        for part in _runs_of(_filled_steps(frame.filter(pl.col("stream") == stream))):
            runs.append(_timed(part, str(stream)))
    return sorted(runs, key=lambda run: int(run.frame["line"][0]))


def _filled_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Every reading with a step: a missing one is the last one seen, or the row's number where no step is known at all."""
    if "step" not in frame.columns or frame["step"].null_count() == len(frame):
        return frame.with_columns(step=pl.int_range(1, pl.len() + 1, dtype=pl.Int64))
    return frame.with_columns(step=pl.col("step").forward_fill().fill_null(0))


def _runs_of(frame: pl.DataFrame) -> list[pl.DataFrame]:
    """Cut where a session begins, and join sessions that go on with a run. Marker rows (without any number) are dropped after that."""
    begins = _session_starts(frame)
    frame = frame.with_columns(session=pl.Series(begins).cum_sum().cast(pl.Int64))
    first_steps = frame.group_by("session", maintain_order=True).agg(pl.col("step").first(), pl.col("mark").drop_nulls().first())
    early = first_steps["step"] <= FIRST_STEP_OF_A_RUN
    said = first_steps["mark"].replace_strict({"new": True, "resumed": False}, default=None, return_dtype=pl.Boolean)
    new_run = pl.select(pl.coalesce(said, early)).to_series().to_numpy().copy()
    new_run[:1] = False
    run_of = pl.DataFrame({"session": first_steps["session"], "run": new_run.cumsum()})
    marked = frame.join(run_of, on="session", maintain_order="left")
    if "phase" in marked.columns:
        marked = marked.filter(pl.col("phase").is_not_null())
    return [part.drop("run") for part in marked.partition_by("run", maintain_order=True)]


def _session_starts(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """Rows at which a session begins; never the first one."""
    starts = np.zeros(len(frame), bool)
    marks = frame["mark"].is_not_null().to_numpy()
    starts |= marks
    clock = "elapsed" if _has(frame, "elapsed") else "step"
    values = frame[clock].cast(pl.Float64).to_numpy()
    known = np.flatnonzero(np.isfinite(values))
    starts[known[1:][np.diff(values[known]) < 0]] = True
    after = np.searchsorted(known, np.flatnonzero(marks), side="right")
    starts[known[after[after < known.size]]] &= marks[
        known[after[after < known.size]]
    ]  # the first time after a mark is no second start
    starts[:1] = False
    return starts


def _timed(frame: pl.DataFrame, label: str) -> ImportedRun:
    notes: list[str] = []
    began, clock = 0.0, "order"
    sessions = frame.partition_by("session", maintain_order=True)
    if _has(frame, "time"):
        times = frame["time"].forward_fill().backward_fill().to_numpy()
        at, clock, began = _monotonic(times, notes), "wall", float(times[0])
    elif _has(frame, "elapsed"):
        parts = [spread(part["elapsed"].forward_fill().fill_null(0.0).to_numpy()) for part in sessions]
        at, clock = _end_to_end(parts), "elapsed"
    elif _has(frame, "step_seconds"):
        seconds = frame["step_seconds"].fill_null(frame["step_seconds"].median()).to_numpy()
        at, clock = np.cumsum(np.maximum(seconds, 0.0) * _steps_between(frame)), "step_seconds"
    else:
        at = np.arange(len(frame), dtype=np.float64)
    number = {session: index for index, session in enumerate(frame["session"].unique(maintain_order=True))}
    timed = frame.with_columns(
        at=pl.Series(at, dtype=pl.Float64), session=pl.col("session").replace_strict(number, return_dtype=pl.Int64)
    )
    return ImportedRun(timed, began, clock, label, tuple(notes))


def spread(shown: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread readings that show the same coarse time evenly up to the next time shown.

    Args:
        shown: seconds as the log shows them, never going back [n].

    Returns:
        Seconds that rise from row to row, wherever the log's resolution allows [n].
    """
    if not len(shown):
        return shown
    first = np.flatnonzero(np.diff(shown, prepend=np.nan) != 0)
    counts = np.diff(first, append=len(shown))
    values = shown[first]
    gaps = np.diff(values)
    last_pace = gaps[-1] / counts[-2] if len(gaps) else USUAL_LINE_SECONDS
    spacing = np.append(gaps / counts[:-1], last_pace)
    place = np.arange(len(shown)) - np.repeat(first, counts)
    return np.asarray(np.repeat(values, counts) + place * np.repeat(spacing, counts))


def _end_to_end(sessions: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Sessions one after the other; how long the run stood still between them is not in the log, so no time passes."""
    placed: list[NDArray[np.float64]] = []
    ended = 0.0
    for part in sessions:
        first = part[0] if not placed else 0.0
        placed.append(part - first + ended)
        ended = float(placed[-1][-1]) + USUAL_LINE_SECONDS
    return np.concatenate(placed)


def _monotonic(times: NDArray[np.float64], notes: list[str]) -> NDArray[np.float64]:
    steps = np.diff(times)
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    odd = (steps < 0) | (steps > max(LONGEST_PAUSE_SECONDS, 100 * usual))
    if odd.any():
        notes.append(
            f"the clock jumps {int(odd.sum())} time(s) (back, or ahead by more than an hour); such a step counts as {usual:.3g} s"
        )
    return np.concatenate([[0.0], np.cumsum(np.where(odd, usual, steps))])


def _steps_between(frame: pl.DataFrame) -> NDArray[np.float64]:
    """How many steps each reading stands for: those since the reading before it."""
    steps = np.diff(frame["step"].to_numpy(), prepend=0)
    usual = np.median(steps[steps > 0]) if (steps > 0).any() else 1
    return np.where(steps > 0, np.minimum(steps, 10 * usual), usual).astype(np.float64)


def _has(frame: pl.DataFrame, name: str) -> bool:
    return name in frame.columns and bool(frame[name].is_not_null().any())


def describe(run: ImportedRun) -> dict[str, Any]:
    """What `dflash import` says of a run."""
    steps = run.frame["step"]
    return {
        "readings": len(run.frame),
        "first_step": steps[0],
        "last_step": steps[-1],
        "restarts": run.sessions - 1,
        "seconds": float(run.frame["at"][-1]),
        "clock": run.clock,
        "label": run.label,
    }
