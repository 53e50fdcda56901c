"""Times of an imported run that only go forward, worked out as its readings come.

Clocks of logs are coarse: the console says whole minutes, after a day whole hours. Lines that show the same time are spread evenly up to the
next time shown, so that rates over time come out right. A wall clock that jumps (back, or ahead by more than an hour) is taken as going on
at the pace it had, and that is noted.

Each clock adds `at`, seconds since the run's first reading. It may hold the newest readings back until it knows what comes next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LONGEST_PAUSE_SECONDS = 3_600.0
USUAL_LINE_SECONDS = 10.0


class Clock(Protocol):
    """What clocks have in common."""

    jumps: int
    """Steps of the clock that were not believed."""

    def place(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Readings with `at`; those held back come with a later call."""

    def finish(self) -> pl.DataFrame | None:
        """What was held back."""


class _Immediate(ABC):
    """A clock that holds nothing back."""

    jumps = 0

    def place(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(at=pl.Series(self._at(frame), dtype=pl.Float64))

    def finish(self) -> None:
        return None

    @abstractmethod
    def _at(self, frame: pl.DataFrame) -> Floats:
        """Seconds since the run's first reading, one a row."""


class WallClock(_Immediate):
    """Dates. `first` is the first one told, `usual` the usual time between two."""

    def __init__(self, first: float, usual: float) -> None:
        self.usual = usual
        self._last, self._reached = first, 0.0

    def _at(self, frame: pl.DataFrame) -> Floats:
        times = frame["time"].forward_fill().fill_null(self._last).to_numpy()
        steps = np.diff(times, prepend=self._last)
        odd = (steps < 0) | (steps > max(LONGEST_PAUSE_SECONDS, 100 * self.usual))
        self.jumps += int(odd.sum())
        at = self._reached + np.cumsum(np.where(odd, self.usual, steps))
        self._last, self._reached = float(times[-1]), float(at[-1])
        return at


class StepClock(_Immediate):
    """Seconds a step. `usual_seconds` a step stand in where none are told, `usual_steps` between two readings where the step goes back."""

    def __init__(self, usual_seconds: float, usual_steps: float) -> None:
        self._seconds, self._steps = usual_seconds, usual_steps
        self._last, self._reached = 0, 0.0

    def _at(self, frame: pl.DataFrame) -> Floats:
        seconds = frame["step_seconds"].fill_null(self._seconds).to_numpy()
        numbers = frame["step"].to_numpy()
        between = np.diff(numbers, prepend=self._last)
        steps = np.where(between > 0, np.minimum(between, 10 * self._steps), self._steps).astype(np.float64)
        at = self._reached + np.cumsum(np.maximum(seconds, 0.0) * steps)
        self._last, self._reached = int(numbers[-1]), float(at[-1])
        return at


class OrderClock(_Immediate):
    """A second a reading, where a log has no time at all."""

    def __init__(self) -> None:
        self._count = 0

    def _at(self, frame: pl.DataFrame) -> Floats:
        at = np.arange(self._count, self._count + len(frame), dtype=np.float64)
        self._count += len(frame)
        return at


class ElapsedClock:
    """Time since the session began, as coarse as it may be; sessions follow one another.

    How long the run stood still between two sessions is not in the log, so no time but that of one line passes.
    """

    jumps = 0

    def __init__(self) -> None:
        self._held: pl.DataFrame | None = None
        self._spacing = USUAL_LINE_SECONDS  # of the stretch before the one held back
        self._session: int | None = None
        self._shift = self._reached = 0.0

    def place(self, frame: pl.DataFrame) -> pl.DataFrame:
        """All but the readings that show the newest time: how far to spread those is known when the next time comes."""
        last = self._held.row(-1, named=True) if self._held is not None else {"session": -1, "shown": 0.0}
        carried = pl.when(pl.col("session") == last["session"]).then(last["shown"]).otherwise(0.0)
        shown = pl.col("elapsed")
        if frame["elapsed"].null_count():
            shown = pl.coalesce(shown.forward_fill().over("session", order_by="line"), carried)
        frame = frame.with_columns(shown=shown)
        return self._placed(frame if self._held is None else pl.concat([self._held, frame]), hold=True)

    def finish(self) -> pl.DataFrame | None:
        """The readings of the newest time."""
        return None if self._held is None else self._placed(self._held, hold=False)

    def _placed(self, frame: pl.DataFrame, *, hold: bool) -> pl.DataFrame:
        session, shown = frame["session"].to_numpy(), frame["shown"].to_numpy()
        first = np.flatnonzero((np.diff(session, prepend=-1) != 0) | (np.diff(shown, prepend=np.nan) != 0))
        counts = np.diff(first, append=len(frame))
        owner, values = session[first], shown[first]
        goes_on = owner[1:] == owner[:-1]
        spacing = np.append(np.where(goes_on, np.diff(values), np.nan) / counts[:-1], np.nan)
        before = np.append(self._spacing, np.where(goes_on, spacing[:-1], USUAL_LINE_SECONDS))
        spacing = np.where(np.isnan(spacing), before, spacing)  # a session's last stretch goes on at the pace of the one before it
        rows = np.arange(len(frame)) - np.repeat(first, counts)
        local = np.repeat(values, counts) + rows * np.repeat(spacing, counts)
        final = int(first[-1]) if hold else len(frame)
        if hold:
            self._held, self._spacing = frame[final:], float(before[-1])
        return (
            frame[:final]
            .with_columns(at=pl.Series(self._end_to_end(local[:final], session[:final]), dtype=pl.Float64))
            .drop("shown")
        )

    def _end_to_end(self, local: Floats, session: NDArray[np.int64]) -> Floats:
        at = np.empty(len(local))
        edges = [*np.flatnonzero(np.diff(session, prepend=-1)).tolist(), len(local)]
        for begin, end in pairwise(edges):
            if session[begin] != self._session:
                self._shift = -float(local[begin]) if self._session is None else self._reached + USUAL_LINE_SECONDS
                self._session = int(session[begin])
            at[begin:end] = local[begin:end] + self._shift
            self._reached = float(at[end - 1])
        return at
