"""The events of a run, as the analyses want them: frames of steps, batches and lines, and lists of the rarer kinds.

A file is read block by block, and of each line only the columns that analyses use are decoded, so memory grows with those columns and not with
the bytes of the file. Samples are counters, of which every second, fourth, ... is kept when there are very many. Times are seconds since the
first event; the run's clock is wall time, a simulated run's its virtual time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from dflash.runs.folder import RunFolder, read_json

Event = dict[str, Any]
BLOCK_BYTES = 16 * 2**20
MOST_SAMPLES = 20_000
_NUMBER, _COUNT, _TEXT = pl.Float64(), pl.Int64(), pl.String()
_COLUMNS: dict[str, dict[str, pl.DataType]] = {
    "step": {
        "step": _COUNT, "epoch": _NUMBER, "loss": _NUMBER, "grad_norm": _NUMBER, "tokens": _COUNT, "padded_tokens": _COUNT,
        "batches": _COUNT, "step_seconds": _NUMBER, "skipped": pl.Boolean(), "class_tokens": pl.List(_COUNT), "batch_ids": pl.List(_TEXT),
        "lr": _NUMBER,
    },
    "batch": {
        "batch": _TEXT, "drafter": _COUNT, "rows": _COUNT, "tokens": _COUNT, "padded_tokens": _COUNT, "longest": _COUNT,
        "length_squared": _COUNT, "bucket": _COUNT, "accuracy": _NUMBER, "loss": _NUMBER, "prefetch_seconds": _NUMBER,
        "target_seconds": _NUMBER, "drafter_seconds": _NUMBER,
    },
    "line": {
        "source_line": _COUNT, "step": _COUNT, "loss": _NUMBER, "grad_norm": _NUMBER, "rate": _NUMBER, "rate_unit": _TEXT,
        "target_batches_per_second": _NUMBER, "drafter_batches_per_second": _NUMBER, "prefetched": _COUNT, "pooled": _COUNT,
        "pool_histogram": pl.List(_COUNT),
    },
}  # fmt: skip
_RARE = ("run_started", "run_ended", "sample", "evaluation", "checkpoint", "change", "plan", "system", "warning", "worker_lost")


@dataclass
class EventLog:
    """What a run wrote down.

    Attributes:
        run: its folder.
        steps, batches, lines: frames with `at`, seconds since the first event, ascending; columns an event lacks are absent.
        rare: events of the other kinds, by kind, each with `at`; `MOST_SAMPLES` of `sample` and of `system` at most.
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
    found: dict[str, list[pl.DataFrame]] = {kind: [] for kind in _COLUMNS}
    thinned = {kind: _Thinned() for kind in ("sample", "system")}
    rare: dict[str, list[Event]] = {kind: [] for kind in _RARE}
    for lines in _blocks(run.events):
        for kind, columns in _COLUMNS.items():
            chosen = _of_kind(lines, kind)
            if len(chosen):
                found[kind].append(_decoded(chosen, columns))
        for kind in _RARE:
            keep = thinned[kind].add if kind in thinned else rare[kind].append
            for event in _parsed(_of_kind(lines, kind)):
                keep(event)
    rare |= {kind: kept.events() for kind, kept in thinned.items()}
    frames = {kind: _in_order(parts) for kind, parts in found.items()}
    for events in rare.values():
        events.sort(key=_time)
    firsts = [
        *(float(frame["time"][0]) for frame in frames.values() if len(frame)),
        *(_time(events[0]) for events in rare.values() if events),
    ]
    origin = min(firsts, default=0.0)
    for event in (event for events in rare.values() for event in events):
        event["at"] = event["time"] - origin
    steps, batches, lines_told = (_known(frames[kind], origin) for kind in ("step", "batch", "line"))
    return EventLog(run, steps, batches, lines_told, rare, origin, read_json(run.path / "imported.json"))


def _time(event: Event) -> float:
    return float(event["time"])


class _Thinned:
    """Events in order, thinned out evenly when they are too many; the last is always kept."""

    def __init__(self) -> None:
        self._kept: list[Event] = []
        self._last: Event | None = None
        self._every, self._seen = 1, 0

    def add(self, event: Event) -> None:
        self._last = event
        if self._seen % self._every == 0:
            self._kept.append(event)
        self._seen += 1
        if len(self._kept) >= MOST_SAMPLES:
            self._kept, self._every = self._kept[::2], 2 * self._every

    def events(self) -> list[Event]:
        last_is_kept = self._last is None or (self._kept and self._kept[-1] is self._last)
        return self._kept if last_is_kept else [*self._kept, self._last]  # type: ignore[list-item]


def _blocks(folder: Path) -> Iterator[pl.Series]:
    """Whole lines, file by file; a torn last line is left out."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                block += file.readline()
                text = block[: block.rfind(b"\n") + 1].decode(errors="replace")
                yield pl.Series([text], dtype=pl.String).str.split("\n").explode()


def _of_kind(lines: pl.Series, kind: str) -> pl.Series:
    """By the recorder's own writing of a line, which begins with the kind."""
    return lines.filter(lines.str.starts_with(f'{{"event":"{kind}"'))


def _decoded(lines: pl.Series, columns: dict[str, pl.DataType]) -> pl.DataFrame:
    """`time` and the columns of lines of one kind; lines that are no event are left out."""
    schema = {"time": _NUMBER, **columns}
    try:
        frame = lines.str.json_decode(pl.Struct(schema)).struct.unnest()
    except pl.exceptions.ComputeError:  # one of them is torn or odd: line by line
        events = list(_parsed(lines))
        texts = [{name: event.get(name) for name in schema} for event in events]
        frame = pl.DataFrame(
            {name: pl.Series([row[name] for row in texts], dtype=dtype, strict=False) for name, dtype in schema.items()}
        )
    return frame.filter(pl.col("time").is_not_null())


def _parsed(lines: Iterable[str]) -> Iterator[Event]:
    """The lines that are events."""
    for line in lines:
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(event.get("time"), int | float):
            yield event


def _in_order(parts: list[pl.DataFrame]) -> pl.DataFrame:
    if not parts:
        return pl.DataFrame()
    frame = pl.concat(parts)
    return frame if frame["time"].is_sorted() else frame.sort("time", maintain_order=True)


def _known(frame: pl.DataFrame, origin: float) -> pl.DataFrame:
    """The columns that hold anything, and `at`."""
    known = [name for name in frame.columns if name != "time" and frame[name].null_count() < len(frame)]
    return frame.select(pl.col("time").sub(origin).alias("at"), *known) if len(frame) else pl.DataFrame()
