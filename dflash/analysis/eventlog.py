"""The events of a run, as the analyses want them: frames of steps, batches and lines, and lists of the rarer kinds.

Only the kinds asked for are decoded (a line begins with its kind), so a log of a million lines is read in seconds. Times are seconds since the
first event; the run's clock is wall time, a simulated run's its virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from dflash.runs.folder import RunFolder, read_json

Event = dict[str, Any]
_COLUMNS: dict[str, tuple[str, ...]] = {
    "step": (
        "at", "step", "epoch", "loss", "grad_norm", "tokens", "padded_tokens", "batches", "step_seconds", "skipped", "class_tokens",
        "batch_ids", "lr",
    ),
    "batch": (
        "at", "batch", "drafter", "rows", "tokens", "padded_tokens", "longest", "length_squared", "bucket", "accuracy", "loss",
        "prefetch_seconds", "target_seconds", "drafter_seconds",
    ),
    "line": (
        "at", "source_line", "step", "loss", "grad_norm", "rate", "rate_unit", "target_batches_per_second", "drafter_batches_per_second",
        "prefetched", "pooled", "pool_histogram",
    ),
}  # fmt: skip
_RARE = ("run_started", "run_ended", "sample", "evaluation", "checkpoint", "change", "plan", "system", "warning", "worker_lost")


@dataclass
class EventLog:
    """What a run wrote down.

    Attributes:
        run: its folder.
        steps, batches, lines: frames with `at`, seconds since the first event, ascending; columns an event lacks are absent.
        rare: events of the other kinds, by kind, each with `at`.
        origin: seconds since 1970 of the first event.
        imported: the import's manifest; empty for a run of our own.
    """

    run: RunFolder
    steps: pl.DataFrame
    batches: pl.DataFrame
    lines: pl.DataFrame
    rare: dict[str, list[Event]] = field(default_factory=dict)
    origin: float = 0.0
    imported: Event = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds from the first event to the last."""
        ends = [float(frame["at"][-1]) for frame in (self.steps, self.batches, self.lines) if len(frame)]
        ends += [events[-1]["at"] for events in self.rare.values() if events]
        return max(ends, default=0.0)

    @property
    def engine(self) -> str | None:
        """The engine the run is on, if it is known."""
        started = self.rare["run_started"]
        return started[-1].get("engine") if started else None

    @property
    def boundaries(self) -> list[int]:
        """Length buckets; empty if unknown."""
        started = self.rare["run_started"]
        return list(started[-1].get("boundaries") or []) if started else []


def load_events(run: RunFolder) -> EventLog:
    """Read all of a run's events."""
    wanted = {**dict.fromkeys(_COLUMNS, ()), **dict.fromkeys(_RARE, ())}
    found: dict[str, list[Event]] = {kind: [] for kind in wanted}
    for kind, event in _decoded(run.events, tuple(wanted)):
        found[kind].append(event)
    origin = min((event["time"] for events in found.values() for event in events[:1]), default=0.0)
    for events in found.values():
        events.sort(key=_time)
        for event in events:
            event["at"] = event["time"] - origin
    frames = {kind: _frame(found[kind], columns) for kind, columns in _COLUMNS.items()}
    rare = {kind: found[kind] for kind in _RARE}
    return EventLog(run, frames["step"], frames["batch"], frames["line"], rare, origin, read_json(run.path / "imported.json"))


def _time(event: Event) -> float:
    return float(event["time"])


def _decoded(folder: Path, kinds: tuple[str, ...]) -> Iterator[tuple[str, Event]]:
    """Whole lines of these kinds, file by file; a torn last line and lines that are no event are left out."""
    heads = tuple(f'{{"event":"{kind}"'.encode() for kind in kinds)
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                if not line.startswith(heads) or not line.endswith(b"\n"):
                    continue
                try:
                    event = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue
                if isinstance(event.get("time"), int | float):
                    yield event["event"], event


def _frame(events: list[Event], columns: tuple[str, ...]) -> pl.DataFrame:
    known = [name for name in columns if any(event.get(name) is not None for event in events)]
    if not known:
        return pl.DataFrame()
    return pl.DataFrame({name: pl.Series(name, [event.get(name) for event in events], strict=False) for name in known})
