"""The post-mortem of a run: everything the analyses say about one change, gathered; `sections` puts it into words.

Three questions can be asked: of two runs (which must have been alike before), of one run and a step, and of one run alone, where the largest
drop that change detection finds is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from dflash.analysis.attribution import Attribution, attribute
from dflash.analysis.changes import Changes, change_at, find_changes
from dflash.analysis.comparison import Comparison, compare_runs
from dflash.analysis.eventlog import Event, EventLog, load_events
from dflash.analysis.gauges import Gauges, Suspicion, read_gauges, suspect
from dflash.analysis.jumpiness import Jumpiness, judge_jumpiness
from dflash.analysis.noise import Ratio, compare_rates
from dflash.analysis.rates import RateSeries, rate_series
from dflash.analysis.suspects import Suspect, rank_suspects
from dflash.errors import RefusedInput
from dflash.runs.control import settings_changed
from dflash.runs.folder import RunFolder, write_text

NOTES_FILE = "postmortem.md"
NEAR_SECONDS = 600.0
WARM_UP_ROWS = 3


@dataclass(frozen=True)
class PostMortem:
    """What is known about a change. `before` and `after` are the stretches, (begin, end) in seconds since each run's first event.

    Attributes:
        run, log, series, changes: the run in question.
        baseline...: the run it is held against; None for a change inside one run.
        at_seconds: the boundary inside one run; None between two.
        at_step: the first step after it, as asked for or as found; None between two.
        ratio: the rates of plain training before and after; None if a side has none.
        attribution: from accounts of time; None where there are none, as in imported logs.
        suspicion: from gauges, for imported logs.
    """

    run: RunFolder
    log: EventLog
    series: RateSeries
    changes: Changes
    baseline: RunFolder | None
    baseline_log: EventLog | None
    baseline_series: RateSeries | None
    before: tuple[float, float]
    after: tuple[float, float]
    at_seconds: float | None
    at_step: int | None
    ratio: Ratio | None
    attribution: Attribution | None
    gauges: tuple[Gauges | None, Gauges] | None
    suspicion: Suspicion | None
    comparison: Comparison | None
    suspects: list[Suspect]
    jumpiness: Jumpiness
    notes: str

    @property
    def before_log(self) -> EventLog:
        """Events of the side before."""
        return self.baseline_log or self.log

    @property
    def confirmed(self) -> bool:
        """Whether the cause rests on accounts of time and enough rows."""
        proved = self.attribution is not None and self.attribution.verdict == "regression"
        return proved and self.ratio is not None and not self.ratio.provisional


def investigate(run: RunFolder, *, baseline: RunFolder | None = None, at_step: int | None = None) -> PostMortem:
    """Gather everything about a change.

    Args:
        run: the run that is slow.
        baseline: a run that was not.
        at_step: the optimiser step from which on it was slow; not together with `baseline`.

    Raises:
        RefusedInput: both a baseline and a step, a step the run never reached, or no rates to speak of.
    """
    if baseline is not None and at_step is not None:
        raise RefusedInput("give --baseline or --at, not both: a change is between two runs, or inside one")
    log = load_events(run)
    series = rate_series(log)
    if series.kept.is_empty():
        raise RefusedInput(
            f"{run.path}: no throughput in its events yet; it comes with the first optimiser steps, or with log lines that have a rate"
        )
    changes = find_changes(log, series)
    other = load_events(baseline) if baseline is not None else None
    other_series = rate_series(other) if other is not None else None
    at, step = (None, None) if other is not None else _boundary(run, series, changes, at_step)
    before, after = _stretches(log, other, at)
    ratio = _ratio(series, other_series, at)
    attribution = _attribution(other or log, before, log, after)
    gauges = None if attribution is not None else _gauges(other, log, before, after)
    comparison = None
    if baseline is not None and other is not None:
        comparison = compare_runs(baseline, run, logs=(other, log))
    near = [event for event in settings_changed(log.rare["change"]) if at is None or abs(event["at"] - at) <= NEAR_SECONDS]
    causes = attribution.causes if attribution else []
    return PostMortem(
        run, log, series, changes, baseline, other, other_series, before, after, at, step, ratio, attribution, gauges,
        suspect(*gauges) if gauges else None, comparison, rank_suspects(comparison, near, causes),
        judge_jumpiness(log, other if comparison is not None and _same_order(comparison) else None), read_notes(run),
    )  # fmt: skip


def read_notes(run: RunFolder) -> str:
    """The author's notes, kept in the run's folder; empty if there are none."""
    try:
        return (run.path / NOTES_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def write_notes(run: RunFolder, text: str) -> None:
    """Keep the author's notes in the run's folder; empty text takes them away.

    Raises:
        RunFailed: the folder can't be written.
    """
    if text.strip() or (run.path / NOTES_FILE).exists():
        write_text(run.path / NOTES_FILE, text.strip() + "\n")


def log_lines(post: PostMortem, count: int = 6) -> list[str]:
    """Raw lines around the change, each as file:line: text. Of an imported log the lines themselves, of our own run its console's."""
    sources = [Path(name) for name in post.log.imported.get("sources", [])] or [post.run.console_log]
    rows = post.series.frame.filter(pl.col("source_line").is_not_null())
    if len(rows) and len(sources) == 1:
        at = post.at_seconds if post.at_seconds is not None else rows["at"][0]
        middle = int(np.searchsorted(rows["at"].to_numpy(), at))
        wanted = rows["source_line"][max(middle - count // 2, 0) : middle + count // 2 + 1].to_list()
        return _numbered(sources[0], set(wanted))
    return []


def _numbered(path: Path, wanted: set[int]) -> list[str]:
    from dflash.importing.lines import LineReader

    if not path.is_file() or not wanted:
        return []
    found: list[str] = []
    for chunk in LineReader(path).chunks():
        rows = chunk.filter(pl.col("line").is_in(list(wanted)))
        found += [
            f"{path.name}:{line}: {text[:300]}" for line, text in zip(rows["line"].to_list(), rows["text"].to_list(), strict=True)
        ]
    return found


def _boundary(run: RunFolder, series: RateSeries, changes: Changes, at_step: int | None) -> tuple[float | None, int | None]:
    """When the change was, and the first step after it."""
    if at_step is None:
        drops = [change for change in changes.changes if change.ratio.change < 0]
        if not drops:
            return None, None
        worst = min(drops, key=lambda change: change.ratio.change)
        return worst.at_seconds, worst.step
    frame = series.frame
    later = frame.filter(pl.col("step") >= at_step)
    if later.is_empty() or len(later) == len(frame):
        first, last = frame["step"][0], frame["step"][-1]
        raise RefusedInput(f"--at {at_step}: {run.path} has steps {first} to {last}; choose one with steps on both sides")
    row = later.row(0, named=True)
    return float(row["at"] - (row["seconds"] or 0.0)), at_step


def _stretches(log: EventLog, other: EventLog | None, at: float | None) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both sides, without the warm-up of their sessions."""
    if other is not None:
        return (_warm(other), other.seconds), (_warm(log), log.seconds)
    if at is None:
        return (_warm(log), log.seconds), (_warm(log), log.seconds)
    return (min(_warm(log), at), at), (at, log.seconds)


def _warm(log: EventLog) -> float:
    """When the first rows are over."""
    rows = rate_series(log).kept["at"]
    return float(rows[min(WARM_UP_ROWS, len(rows)) - 1]) if len(rows) > 2 * WARM_UP_ROWS else 0.0


def _ratio(series: RateSeries, other: RateSeries | None, at: float | None) -> Ratio | None:
    if other is not None:
        sides = other.kept["rate"].to_numpy(), series.kept["rate"].to_numpy()
        if other.unit != series.unit:
            raise RefusedInput(
                f"the runs' rates have different units ({other.unit} and {series.unit}); import them with a mapping that agrees"
            )
        return compare_rates(*sides) if min(map(len, sides)) else None
    return None if at is None else change_at(series, at)


def _attribution(
    before_log: EventLog, before: tuple[float, float], log: EventLog, after: tuple[float, float]
) -> Attribution | None:
    if not any(sample.get("workers") for sample in log.rare["sample"]) or (before == after and before_log is log):
        return None
    found = attribute(before_log, before, log, after)
    return None if found.verdict == "too little data" else found


def _gauges(
    other: EventLog | None, log: EventLog, before: tuple[float, float], after: tuple[float, float]
) -> tuple[Gauges | None, Gauges] | None:
    if not len(log.lines):
        return None
    sides = [_between(other if other is not None else log, before), _between(log, after)]
    return (read_gauges(sides[0]) if len(sides[0]) and (other is not None or before != after) else None), read_gauges(sides[1])


def _between(log: EventLog, stretch: tuple[float, float]) -> pl.DataFrame:
    if not len(log.lines):
        return log.lines
    inside = log.lines.filter((pl.col("at") >= stretch[0]) & (pl.col("at") <= stretch[1]))
    return inside if len(inside) else log.lines


def _same_order(comparison: Comparison) -> bool:
    """Whether both runs saw the same data in the same order, as far as their configs and manifests say."""
    return not any(
        each.key.startswith(("batching.", "data.", "optim.seed", "fingerprint")) for each in (*comparison.config, *comparison.data)
    )


__all__ = ["Event", "PostMortem", "investigate", "log_lines", "read_notes", "write_notes"]
