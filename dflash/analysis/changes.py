"""`dflash changes`: did the rate of a run change, when, by how much, how sure; what stalled; what could not have been seen.

Phases that are no training are left out of the search (`rates`), the search is `changepoints`, and when the boundary is known (a step given by
the user) nothing is searched for: both sides are compared by a t-interval (`noise`).

Verdicts: `steady`, `drop`, `rise`, `mixed` (several changes that don't agree), `drift`, or `too little data`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from dflash.analysis.changepoints import SHORTEST, Drift, find_steps
from dflash.analysis.eventlog import EventLog
from dflash.analysis.noise import Noise, Ratio, compare_rates, measure_noise
from dflash.analysis.rates import RateSeries, rate_series

STALL_FACTOR = 1.5
MOST_STALLS = 50


@dataclass(frozen=True)
class RateChange:
    """One change of the rate.

    Attributes:
        at_seconds: when, in seconds since the run's first event; the change lies between this row and the one before it.
        step: optimiser step under way then.
        source_line: line of the imported log, or None.
        ratio: before, after, change, 95% interval, p, provisional.
        detection_seconds: how long after it the change could have been told from noise.
    """

    at_seconds: float
    step: int | None
    source_line: int | None
    ratio: Ratio
    detection_seconds: float | None


@dataclass(frozen=True)
class Stall:
    """A row that took more than 1.5 times as long as it should have."""

    at_seconds: float
    step: int | None
    phase: str
    lost_seconds: float


@dataclass(frozen=True)
class Changes:
    """What was found in a run's rate. `sentence` says it in words."""

    verdict: str
    sentence: str
    unit: str
    source: str
    rows: int
    masked: dict[str, int]
    changes: list[RateChange]
    drift: Drift | None
    stalls: list[Stall]
    stalled_seconds: float
    noise: Noise
    detectable: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: percentages, seconds."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "unit": self.unit,
            "source": self.source,
            "rows": self.rows,
            "masked": self.masked,
            "changes": [
                {"at_seconds": change.at_seconds, "step": change.step, "source_line": change.source_line,
                 "detection_seconds": change.detection_seconds, **ratio_dict(change.ratio)} for change in self.changes
            ],
            "drift": None if self.drift is None else drift_dict(self.drift),
            "stalls": [vars(stall) for stall in self.stalls],
            "stalled_seconds": self.stalled_seconds,
            "noise_percent": 100 * self.noise.sigma,
            "autocorrelation": self.noise.phi,
            "detectable_percent": 100 * self.detectable,
        }  # fmt: skip


def drift_dict(drift: Drift) -> dict[str, Any]:
    """A drift as plain values, in percent."""
    return {"change_percent": 100 * drift.change, "interval_percent": [100 * drift.low, 100 * drift.high]}


def ratio_dict(ratio: Ratio) -> dict[str, Any]:
    """A ratio as plain values, changes in percent."""
    return {
        "before": ratio.before, "after": ratio.after, "change_percent": 100 * ratio.change,
        "interval_percent": [100 * ratio.low, 100 * ratio.high], "p": ratio.p,
        "points": [ratio.points_before, ratio.points_after], "provisional": ratio.provisional,
    }  # fmt: skip


def find_changes(log: EventLog, series: RateSeries | None = None) -> Changes:
    """Search a run for changes of its rate."""
    series = series or rate_series(log)
    kept = series.kept
    rates = kept["rate"].to_numpy()
    masked = {
        str(phase): count for phase, count in series.frame.filter(pl.col("phase") != "train")["phase"].value_counts().iter_rows()
    }
    stalls, stalled = find_stalls(series)
    if len(rates) < 2 * SHORTEST:
        noise = measure_noise(np.log(rates))
        words = f"{len(rates)} rows of plain training are too few to search ({2 * SHORTEST} are needed)"
        return Changes(
            "too little data", words, series.unit, series.source, len(rates), masked, [], None, stalls, stalled, noise, 1.0
        )
    found = find_steps(rates)
    changes = [_located(kept, step.index, step.ratio) for step in found.steps]
    verdict = _verdict(changes, found.drift)
    sentence = _sentence(verdict, changes, found.drift, series.unit, found.detectable)
    return Changes(
        verdict, sentence, series.unit, series.source, len(rates), masked, changes, found.drift, stalls, stalled, found.noise, found.detectable
    )  # fmt: skip


def change_at(series: RateSeries, at_seconds: float) -> Ratio | None:
    """The change at a known moment; None if a side has no row."""
    kept = series.kept
    before = kept.filter(pl.col("at") <= at_seconds)["rate"].to_numpy()
    after = kept.filter(pl.col("at") > at_seconds)["rate"].to_numpy()
    return compare_rates(before, after) if len(before) and len(after) else None


def find_stalls(series: RateSeries) -> tuple[list[Stall], float]:
    """Rows slower than 1.5 times the median around them (phases included), the costliest first, and all seconds lost."""
    frame = series.frame.filter(pl.col("seconds").is_not_null() & (pl.col("phase") != "warm-up"))
    if len(frame) < SHORTEST:
        return [], 0.0
    usual = frame["rate"].rolling_median(101, min_samples=1, center=True).to_numpy()
    rate, seconds = frame["rate"].to_numpy(), frame["seconds"].to_numpy()
    lost = seconds * (1 - np.minimum(rate / np.maximum(usual, 1e-12), 1.0))
    slow = np.flatnonzero(rate < usual / STALL_FACTOR)
    order = slow[np.argsort(-lost[slow])][:MOST_STALLS]
    at, steps, phases = frame["at"].to_list(), frame["step"].to_list(), frame["phase"].to_list()
    stalls = [Stall(at[row], steps[row], phases[row], float(lost[row])) for row in order]
    return stalls, float(lost[slow].sum())


def _located(kept: pl.DataFrame, index: int, ratio: Ratio) -> RateChange:
    row = kept.row(index, named=True)
    return RateChange(row["at"] - (row["seconds"] or 0.0), row["step"], row["source_line"], ratio, _detection_seconds(kept, index))


def _detection_seconds(kept: pl.DataFrame, index: int) -> float | None:
    """Time until the rows since the change, held against all before it, first gave p < 0.001."""
    rates, at = kept["rate"].to_numpy(), kept["at"].to_numpy()
    before = rates[:index]
    for count in range(3, min(len(rates) - index, 200) + 1):
        if compare_rates(before, rates[index : index + count]).p < 1e-3:
            return float(at[index + count - 1] - at[index - 1])
    return None


def _verdict(changes: list[RateChange], drift: Drift | None) -> str:
    if drift is not None:
        return "drift"
    if not changes:
        return "steady"
    kinds = {"drop" if change.ratio.change < 0 else "rise" for change in changes}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _sentence(verdict: str, changes: list[RateChange], drift: Drift | None, unit: str, detectable: float) -> str:
    unseen = f"A lasting change below {detectable:.0%} could not have been told from the noise."
    if verdict == "steady":
        return f"The rate did not change. {unseen}"
    if drift is not None:
        return f"The rate drifts by {drift.change:+.0%} [{drift.low:+.0%}, {drift.high:+.0%}] from the first row to the last, without a step."
    parts = []
    for change in changes:
        ratio = change.ratio
        where = f"at step {change.step}" if change.step is not None else f"{change.at_seconds:,.0f} s in"
        parts.append(
            f"{where} from {ratio.before:.3g} to {ratio.after:.3g} {unit} ({ratio.change:+.0%} [{ratio.low:+.0%}, {ratio.high:+.0%}]"
            f"{', provisional' if ratio.provisional else ''})"
        )
    return f"The rate changed {'; '.join(parts)}."
