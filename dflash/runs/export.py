"""A run's events for other tools: TensorBoard, Parquet, CSV; and a listener that logs live to trackers.

TensorBoard gets the scalars of steps, evaluations and log lines at their times, written by tensorboardX. Parquet gets one file a kind of event,
nested fields kept; CSV likewise, nested fields as JSON. Nothing of a run is changed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any, Protocol, Self

import polars as pl

from dflash.errors import RefusedInput, RunFailed
from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import read_events

FORMATS = ("tensorboard", "parquet", "csv")
SCALAR_KINDS = ("step", "evaluation", "line")
TRACKERS = ("tensorboard", "trackio", "wandb")
_NOT_SCALARS = ("time", "seconds", "step", "source_line", "event")


def export_events(run: RunFolder, out: Path, to: str) -> dict[str, Any]:
    """Write a run's events into a folder. Returns events (their number), files and format.

    Raises:
        RefusedInput: an unknown format, a folder that holds something, or a run without events.
        RunFailed: it can't be written.
    """
    if to not in FORMATS:
        raise RefusedInput(f"--to {to}: one of {', '.join(FORMATS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RefusedInput(f"{out} is there already: give another --out")
    events = read_events(run.events)
    if not events:
        raise RefusedInput(f"{run.path}: no events to export yet")
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = _write_tensorboard(events, out) if to == "tensorboard" else _write_tables(events, out, to)
    except OSError as error:
        raise RunFailed(f"{out}: can't be written ({error.strerror})") from error
    return {"run": str(run.path), "format": to, "events": len(events), "files": files}


def scalars(event: dict[str, Any]) -> dict[str, float]:
    """The numbers of an event by tag, as in step/loss."""
    kind = event["event"]
    return {
        f"{kind}/{name}": float(value)
        for name, value in event.items()
        if name not in _NOT_SCALARS and isinstance(value, int | float) and not isinstance(value, bool)
    }


class Tracker(Protocol):
    """What trackers have in common: scalars at a step."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Log scalars."""

    def close(self) -> None:
        """Write out what is held."""


class LiveTrackers:
    """Passes events on to trackers while a run goes on: call it with each event, close it at the end.

    A tracker that fails is dropped with its reason in `failures`: no tracker may stop a training.
    """

    def __init__(self, names: list[str], run: RunFolder) -> None:
        """Open the trackers named; trackio and wandb must be installed.

        Raises:
            RefusedInput: an unknown tracker, or one that is not installed.
        """
        self.failures: dict[str, str] = {}
        self._trackers = {name: _open_tracker(name, run) for name in names}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, event: dict[str, Any]) -> None:
        """Log an event's scalars, if it is of a kind that has any."""
        if event.get("event") not in SCALAR_KINDS or not isinstance(event.get("step"), int):
            return
        values = scalars(event)
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.log(values, event["step"])
            except Exception as error:
                self.failures[name] = f"{type(error).__name__}: {error}"
                del self._trackers[name]

    def close(self) -> None:
        """Close all trackers."""
        for name, tracker in self._trackers.items():
            try:
                tracker.close()
            except Exception as error:
                self.failures[name] = f"{type(error).__name__}: {error}"
        self._trackers = {}


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, values: dict[str, float], step: int, time: float | None = None) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step, walltime=time)

    def close(self) -> None:
        self._writer.close()


class _Module:
    """trackio or wandb, which share their calls."""

    def __init__(self, name: str, run: RunFolder) -> None:
        self._module: Any = importlib.import_module(name)
        self._module.init(project="dflash", name=run.name)

    def log(self, values: dict[str, float], step: int) -> None:
        self._module.log(values, step=step)

    def close(self) -> None:
        self._module.finish()


def _open_tracker(name: str, run: RunFolder) -> Tracker:
    if name not in TRACKERS:
        raise RefusedInput(f"tracker {name}: one of {', '.join(TRACKERS)}")
    if name == "tensorboard":
        return _TensorBoard(run.path / "tensorboard")
    if importlib.util.find_spec(name) is None:
        raise RefusedInput(f"tracker {name} is not installed: pip install {name}")
    return _Module(name, run)


def _write_tensorboard(events: list[dict[str, Any]], out: Path) -> list[str]:
    writer = _TensorBoard(out)
    for event in events:
        if event["event"] in SCALAR_KINDS and isinstance(event.get("step"), int):
            writer.log(scalars(event), event["step"], event["time"])
    writer.close()
    return sorted(path.name for path in out.iterdir())


def _write_tables(events: list[dict[str, Any]], out: Path, to: str) -> list[str]:
    """One file a kind of event."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event["event"], []).append(event)
    for kind, rows in by_kind.items():
        if to == "parquet":
            pl.from_dicts(rows, infer_schema_length=None, strict=False).write_parquet(out / f"{kind}.parquet")
        else:
            names = list(dict.fromkeys(name for row in rows for name in row))
            flat = {name: pl.Series(name, [_cell(row.get(name)) for row in rows], strict=False) for name in names}
            pl.DataFrame(flat).write_csv(out / f"{kind}.csv")
    return sorted(path.name for path in out.iterdir())


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
