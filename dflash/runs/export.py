"""A run's events for other tools: TensorBoard, Parquet, CSV.

TensorBoard gets the scalars of steps, evaluations and log lines at their times, written by tensorboardX. Parquet gets one file a kind of event,
nested fields kept; CSV likewise, nested fields as JSON. Nothing of a run is changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from dflash.errors import RefusedInput, RunFailed
from dflash.runs.folder import RunFolder
from dflash.runs.trackers import TensorBoard, scalars
from dflash.telemetry.reader import read_events

FORMATS = ("tensorboard", "parquet", "csv")


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


def _write_tensorboard(events: list[dict[str, Any]], out: Path) -> list[str]:
    writer = TensorBoard(out)
    for event in events:
        if isinstance(event.get("step"), int):
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
