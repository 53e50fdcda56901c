"""A run's events as growing columns: what charts of a run that goes on are drawn from.

Reading costs what is new: `update` takes at most a few MiB of new lines, parses only the kinds that charts use (a run writes a `batch`
event for each batch, most of its file, and those lines are skipped unparsed) and appends to columns of float64 that double when full.
A run of a million steps is about 150 MB of columns, and nothing else grows.

Steps done again after a resume replace the ones they repeat: the step columns are cut back to the step before. Time never goes backwards
in a column, whatever the machine's clock does: a session's times are its start plus its own monotonic `seconds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.telemetry.accounts import STATES
from dflash.telemetry.reader import Tail
from dflash.telemetry.recorder import SCHEMA_VERSION

KINDS = ("step", "sample", "evaluation", "system", "change", "warning", "checkpoint", "run_started", "run_ended", "rolled_back")
READ_BYTES = 8 * 2**20
_STEP_FIELDS = (
    "step", "epoch", "tokens", "padded_tokens", "loss", "grad_norm", "lr", "accuracy", "streak", "acceptance_length", "step_seconds",
)  # fmt: skip
_EVALUATION_FIELDS = ("step", "loss", "accuracy", "acceptance_length", "evaluation_seconds")
_SYSTEM_FIELDS = ("cpu_percent", "memory_used_bytes", "run_memory_bytes", "shared_memory_used_bytes", "disk_free_bytes")
_GPU_FIELDS = ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius")


class Columns:
    """Named columns of equal length that grow by rows and can be cut back; a value a row lacks is NaN."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._cells = np.empty((8, 256))  # beyond the rows and names in use never touched, so that it takes no memory
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """The column, without a copy; all NaN if no row ever had that value."""
        index = self._index.get(name)
        return np.full(self._rows, np.nan) if index is None else self._cells[index, : self._rows]

    def append(self, row: Mapping[str, float | None]) -> None:
        """Add one row; new names become columns."""
        new = [name for name in row if name not in self._index]
        for name in new:
            self._index[name] = len(self._index)
        self._make_room()
        for name in new:
            self._cells[self._index[name], : self._rows] = np.nan
        self._cells[: len(self._index), self._rows] = np.nan
        at = [self._index[name] for name in row]
        self._cells[at, self._rows] = [np.nan if value is None else value for value in row.values()]
        self._rows += 1

    def cut(self, rows: int) -> None:
        """Forget all rows from number `rows` on."""
        self._rows = min(rows, self._rows)

    def _make_room(self) -> None:
        names, rows = self._cells.shape
        if len(self._index) <= names and self._rows < rows:
            return
        larger = np.empty((max(names, 2 * len(self._index)), 2 * rows if self._rows == rows else rows))
        used = min(names, len(self._index))
        larger[:used, : self._rows] = self._cells[:used, : self._rows]
        self._cells = larger


@dataclass(frozen=True)
class Mark:
    """Something that happened at a moment: a live change, a restart, a checkpoint, a warning, the end.

    `elapsed_seconds` since the run's first event, `step` and `tokens` (committed) as of then.
    """

    kind: str
    text: str
    elapsed_seconds: float
    step: int
    tokens: float


class RunSeries:
    """One run's events, read as they come.

    Attributes:
        steps: one row an optimiser step: elapsed_seconds, session, the step event's numbers, committed_tokens.
        samples: one row a sample: elapsed_seconds, session, clock_seconds, step, committed_tokens, ready, pool_bytes, `pool-<bucket>`
            (items now), `pool-<bucket>-depth_seconds`, and for each worker `<worker>-tokens`, `-padded_tokens`, `-batches` and
            `-<state>_seconds`; counters restart with each session.
        evaluations, systems: one row an event of that kind.
        marks: in order of time.
        unreadable: events of a known kind but another shape.
        newer: the run was written by a newer version of the package, whose events may be misread.
    """

    def __init__(self, events: Path, name: str = "") -> None:
        self.name = name or events.parent.name
        self.steps, self.samples, self.evaluations, self.systems = Columns(), Columns(), Columns(), Columns()
        self.marks: list[Mark] = []
        self.boundaries: list[int] = []
        self.workers: list[str] = []
        self.gpus: list[int] = []
        self.total_steps: int | None = None
        self.ended: str | None = None
        self.sessions = 0
        self.unreadable = 0
        self.newer = False
        self._tail = Tail(events, kinds=KINDS, most_bytes=READ_BYTES)
        self._origin: float | None = None
        self._session_start: dict[str, float] = {}
        self._latest: dict[str, float] = {}
        self._committed = 0.0

    @property
    def bad_lines(self) -> int:
        """Whole lines that are no events."""
        return self._tail.bad_lines

    @property
    def has_more(self) -> bool:
        """Whether the last `update` left something unread."""
        return self._tail.more

    def update(self) -> bool:
        """Read what is new, a few MiB at most. Returns whether there was anything; call again until there is nothing.

        Raises:
            OSError: a file of the run can't be read.
        """
        events = self._tail.new_events()
        for event in events:
            try:
                self._take(event)
            except (KeyError, TypeError, ValueError, AttributeError):  # an event of another shape: a newer version's, or not ours
                self.unreadable += 1
        return bool(events) or self._tail.more

    def _take(self, event: dict[str, Any]) -> None:
        elapsed = self._elapsed(event)
        match event["event"]:
            case "step":
                self._take_step(event, elapsed)
            case "sample":
                self._take_sample(event, elapsed)
            case "evaluation":
                self.evaluations.append(
                    {"elapsed_seconds": elapsed, "tokens": self._committed, **{key: event.get(key) for key in _EVALUATION_FIELDS}}
                )
            case "system":
                self._take_system(event, elapsed)
            case "run_started":
                self.sessions += 1
                self.newer = int(event.get("schema") or 0) > SCHEMA_VERSION
                self.total_steps, self.ended = event.get("total_steps"), None
                self.boundaries = list(event.get("boundaries") or self.boundaries)
                if self.sessions > 1:
                    self._mark("restart", f"resumed at step {event.get('step')}", elapsed)
            case "rolled_back":
                self._mark("restart", f"back to step {event.get('step')}: {event.get('reason')}", elapsed)
            case "run_ended":
                self.ended = str(event.get("state", "ended"))
                self._mark("end", f"{self.ended} {event.get('reason') or ''}".strip(), elapsed)
            case "change":
                self._mark("change" if event.get("accepted") else "refused", describe_change(event), elapsed)
                if event.get("accepted") and event.get("key") == "batching.boundaries" and event.get("new"):
                    self.boundaries = [int(each) for each in event["new"]]
            case "warning":
                self._mark("warning", str(event.get("message", "")), elapsed)
            case "checkpoint":
                self._mark("checkpoint", f"checkpoint at step {event.get('step')}", elapsed)

    def _take_step(self, event: dict[str, Any], elapsed: float) -> None:
        step = event["step"]
        kept = int(np.searchsorted(self.steps["step"], step))
        if kept < len(self.steps):
            self.steps.cut(kept)
            self._committed = float(self.steps["committed_tokens"][-1]) if kept else 0.0
        self._committed += event.get("tokens") or 0
        row = {
            "elapsed_seconds": elapsed,
            "session": self.sessions,
            "committed_tokens": self._committed,
            **{key: event.get(key) for key in _STEP_FIELDS},
        }
        self.steps.append(row)

    def _take_sample(self, event: dict[str, Any], elapsed: float) -> None:
        row: dict[str, float | None] = {
            "elapsed_seconds": elapsed,
            "session": self.sessions,
            **{key: event.get(key) for key in ("clock_seconds", "step", "committed_tokens", "pool_bytes", "telemetry_seconds")},
        }
        for worker in event.get("workers", ()):
            name = worker["worker"]
            if name not in self.workers:
                self.workers.append(name)
            for key in ("tokens", "padded_tokens", "batches", *(f"{state}_seconds" for state in STATES)):
                row[f"{name}-{key}"] = worker.get(key)
        for queue in event.get("queues", ()):
            if queue["queue"] == "pool":
                for bucket, (now, integral) in enumerate(zip(queue["depths"], queue["depth_seconds"], strict=True)):
                    row[f"pool-{bucket}"], row[f"pool-{bucket}-depth_seconds"] = now, integral
            else:
                row["ready"] = sum(queue["depths"])
        self.samples.append(row)

    def _take_system(self, event: dict[str, Any], elapsed: float) -> None:
        row: dict[str, float | None] = {"elapsed_seconds": elapsed, **{key: event.get(key) for key in _SYSTEM_FIELDS}}
        for gpu in event.get("gpus") or ():
            number = int(gpu.get("gpu", 0))
            if number not in self.gpus:
                self.gpus.append(number)
            row.update({f"gpu-{number}-{key}": gpu.get(key) for key in _GPU_FIELDS})
        self.systems.append(row)

    def _mark(self, kind: str, text: str, elapsed: float) -> None:
        step = int(self.steps["step"][-1]) if len(self.steps) else 0
        self.marks.append(Mark(kind, text, elapsed, step, self._committed))

    def _elapsed(self, event: dict[str, Any]) -> float:
        """Seconds since the run's first event, never less than the last one of the same kind."""
        wall, since_start = float(event["time"]), float(event.get("seconds", 0.0))
        if self._origin is None:
            self._origin = wall - since_start
        writer = "system" if event["event"] == "system" else "coordinator"
        start = self._session_start.get(writer)
        if start is None or since_start < self._latest.get(f"{writer} seconds", 0.0):
            floor = self._latest.get(writer, 0.0)
            start = self._session_start[writer] = max(wall - since_start - self._origin, floor)
        self._latest[f"{writer} seconds"] = since_start
        self._latest[writer] = start + since_start
        return start + since_start


def describe_change(event: Mapping[str, Any]) -> str:
    """A `change` event in words: who changed what from what to what, or why it was refused."""
    what = f"{event.get('key')}: {event.get('old')} → {event.get('new')}" if event.get("key") else str(event.get("action"))
    verdict = "" if event.get("accepted") else f", refused: {event.get('reason')}"
    return f"{what} (by {event.get('who', 'unknown')}{verdict})"
