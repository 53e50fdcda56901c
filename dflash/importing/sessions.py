"""Tell runs and restarts of one log apart, part by part.

A session ends where the session's clock goes back, where a line says that one begins, or, in logs without a clock, where the step goes back.
A session that begins at step 0 or 1 is a new run; any other goes on with the run before it (a restart). Where several processes print into
one log with a label before each line, each label is a log of its own.

The log is gone through twice: `survey_runs` finds the runs and what must be known of each before its first reading can be placed,
`placed_readings` gives the readings of all runs with their times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.importing.clocks import Clock, ElapsedClock, OrderClock, StepClock, WallClock
from dflash.importing.readings import Readings, by_stream

FIRST_STEP_OF_A_RUN = 1
MOST_FOR_A_MEDIAN = 2**17
_CLOCKS = {"time": "wall", "elapsed": "elapsed", "step_seconds": "step_seconds"}
_Key = tuple[str, int]


class Sample:
    """Values for a median: all while they are few, then every second, fourth, eighth ..., so that they never fill the memory."""

    def __init__(self, most: int = MOST_FOR_A_MEDIAN) -> None:
        self._kept = np.zeros(0)
        self._most, self._every, self._seen = most, 1, 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Add values in order."""
        first = -self._seen % self._every
        self._seen += len(values)
        self._kept = np.append(self._kept, values[first :: self._every])
        while len(self._kept) > self._most:
            self._kept, self._every = self._kept[::2], 2 * self._every

    def median(self, otherwise: float) -> float:
        """The median; `otherwise` if there are no values."""
        return float(np.median(self._kept)) if len(self._kept) else otherwise


@dataclass
class ImportedRun:
    """One run of a log.

    Attributes:
        label: what the log puts before the run's lines, if anything.
        first_line: in the log.
        began: seconds since 1970 of its first time, 0 when the log has no wall clock.
        readings, sessions: how many.
        first_step, last_step, most_step: optimiser steps.
        told: columns of training readings that hold anything.
        gauges, buckets: training readings with a histogram of the pool, and the most buckets in one.
        seconds: from its first reading to its last; known when all were placed.
        jumps: of its clock, known likewise.
    """

    label: str
    first_line: int
    began: float = 0.0
    readings: int = 0
    sessions: int = 0
    first_step: int = 0
    last_step: int = 0
    most_step: int = 0
    told: set[str] = field(default_factory=set)
    gauges: int = 0
    buckets: int = 0
    seconds: float = 0.0
    jumps: int = 0
    _timed_by: set[str] = field(default_factory=set)
    _times: Sample = field(default_factory=Sample)
    _step_seconds: Sample = field(default_factory=Sample)
    _steps_between: Sample = field(default_factory=Sample)
    _last_time: float = np.nan
    _last_session: int = -1

    @property
    def clock(self) -> str:
        """What its times are got from: "wall", "elapsed", "step_seconds" or "order" (a line a second, where a log has no time at all)."""
        return next((clock for column, clock in _CLOCKS.items() if column in self._timed_by), "order")

    @property
    def notes(self) -> list[str]:
        """What was odd, in sentences."""
        if not self.jumps:
            return []
        usual = self._times.median(0.0)
        return [f"the clock jumps {self.jumps} time(s) (back, or ahead by more than an hour); such a step counts as {usual:.3g} s"]

    def describe(self) -> dict[str, Any]:
        """What `dflash import` says of it."""
        return {
            "readings": self.readings,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "restarts": self.sessions - 1,
            "seconds": self.seconds,
            "clock": self.clock,
            "label": self.label,
        }

    def survey(self, frame: pl.DataFrame) -> None:
        """Take note of readings, in order."""
        self.readings += len(frame)
        steps = frame["step"].to_numpy()
        between = np.diff(steps, prepend=self.last_step).astype(np.float64)
        self._steps_between.add(between[between > 0])
        self.last_step, self.most_step = int(steps[-1]), max(self.most_step, int(steps.max()))
        sessions = frame["session"].to_numpy()
        self.sessions += int((np.diff(sessions, prepend=self._last_session) != 0).sum())
        self._last_session = int(sessions[-1])
        self._timed_by.update(name for name in _CLOCKS if name in frame.columns and frame[name].null_count() < len(frame))
        if "time" in frame.columns:
            self._survey_times(frame["time"].drop_nulls().to_numpy())
        if "step_seconds" in frame.columns:
            self._step_seconds.add(frame["step_seconds"].drop_nulls().to_numpy())
        training = training_readings(frame)
        self.told.update(name for name in training.columns if training[name].null_count() < len(training))
        if "pool_histogram" in training.columns:
            self.gauges += len(training) - training["pool_histogram"].null_count()
            self.buckets = max(self.buckets, int(training["pool_histogram"].list.len().max() or 0))  # type: ignore[arg-type]

    def _survey_times(self, times: NDArray[np.float64]) -> None:
        if not len(times):
            return
        if np.isnan(self._last_time):
            self.began = self._last_time = float(times[0])
        steps = np.diff(times, prepend=self._last_time)
        self._times.add(steps[steps > 0])
        self._last_time = float(times[-1])

    def make_clock(self) -> Clock:
        """A clock for its readings."""
        match self.clock:
            case "wall":
                return WallClock(self.began, self._times.median(0.0))
            case "elapsed":
                return ElapsedClock()
            case "step_seconds":
                return StepClock(self._step_seconds.median(0.0), self._steps_between.median(1.0))
            case _:
                return OrderClock()


def training_readings(frame: pl.DataFrame) -> pl.DataFrame:
    """Readings that are no evaluation's."""
    return frame.filter(pl.col("phase") != "evaluation") if "phase" in frame.columns else frame


def survey_runs(readings: Readings) -> dict[_Key, ImportedRun]:
    """The runs of a log, in order of their first lines."""
    runs: dict[_Key, ImportedRun] = {}
    for key, part in _cut(readings):
        if key not in runs:
            runs[key] = ImportedRun(key[0], int(part["line"][0]), first_step=int(part["step"][0]))
        runs[key].survey(part)
    return dict(sorted(runs.items(), key=lambda item: item[1].first_line))


def placed_readings(readings: Readings, runs: dict[_Key, ImportedRun]) -> Iterator[tuple[ImportedRun, pl.DataFrame]]:
    """All readings, run by run and part by part, with `at` (seconds since the run's first one, never going back) and `session`."""
    clocks = {key: run.make_clock() for key, run in runs.items()}
    for key, part in _cut(readings):
        yield from _timed(runs[key], clocks[key], clocks[key].place(part))
    for key, run in runs.items():
        yield from _timed(run, clocks[key], clocks[key].finish())


def _timed(run: ImportedRun, clock: Clock, frame: pl.DataFrame | None) -> Iterator[tuple[ImportedRun, pl.DataFrame]]:
    run.jumps = clock.jumps
    if frame is not None and len(frame):
        run.seconds = float(frame["at"][-1])
        yield run, frame


def _cut(readings: Readings) -> Iterator[tuple[_Key, pl.DataFrame]]:
    """Parts of one run each, with `step` filled and `session`; rows that are only marks are left out."""
    cutters = {stream: _Cutter(told) for stream, told in readings.clocks.items()}
    for frame in readings.parts():
        for stream, part in by_stream(frame):
            for run, rows in cutters[stream].cut(part):
                yield (stream, run), rows


class _Cutter:
    """Cuts one stream's readings into sessions and runs.

    A step that is missing is the last one seen, or the row's number where no step is ever told.
    """

    def __init__(self, told: set[str]) -> None:
        self._told = told
        self._rows = self._step = self._session = self._run = 0
        self._clock = np.nan
        self._after_mark = False

    def cut(self, frame: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
        if "step" in self._told:
            frame = frame.with_columns(step=pl.col("step").forward_fill().fill_null(self._step))
        else:
            frame = frame.with_columns(step=pl.int_range(self._rows + 1, self._rows + 1 + pl.len(), dtype=pl.Int64))
        starts = self._session_starts(frame)
        mark, steps = frame["mark"], frame["step"].to_numpy()
        said_new, said_resumed = ((mark == word).fill_null(False).to_numpy() for word in ("new", "resumed"))
        new_runs = starts & (said_new | (~said_resumed & (steps <= FIRST_STEP_OF_A_RUN)))
        sessions, runs = self._session + np.cumsum(starts), self._run + np.cumsum(new_runs)
        self._rows, self._step = self._rows + len(frame), int(steps[-1])
        self._session, self._run = int(sessions[-1]), int(runs[-1])
        frame = frame.with_columns(session=pl.Series(sessions, dtype=pl.Int64))
        edges = [0, *np.flatnonzero(new_runs).tolist(), len(frame)]
        for begin, end in pairwise(edges):
            rows = frame[begin:end]
            if "phase" in rows.columns:
                rows = rows.filter(pl.col("phase").is_not_null())
            if len(rows):
                yield int(runs[begin]), rows

    def _session_starts(self, frame: pl.DataFrame) -> NDArray[np.bool_]:
        """Rows at which a session begins; never the first one of all."""
        marks = frame["mark"].is_not_null().to_numpy()
        clock = frame["elapsed" if "elapsed" in self._told else "step"].cast(pl.Float64).to_numpy()
        known = np.flatnonzero(np.isfinite(clock))
        starts = marks.copy()
        starts[known[np.diff(clock[known], prepend=self._clock) < 0]] = True
        marked = np.flatnonzero(marks)
        after = np.searchsorted(known, marked, side="right")
        first_after = known[after[after < known.size]]
        if self._after_mark:
            first_after = np.append(known[:1], first_after)
        starts[first_after] &= marks[first_after]  # the first time after a mark is no second start
        if known.size:
            self._clock = float(clock[known[-1]])
        self._after_mark = bool(after[-1] == known.size) if marked.size else self._after_mark and not known.size
        if not self._rows:
            starts[:1] = False
        return starts
