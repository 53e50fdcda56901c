"""An imported run on disk: a run's folder like any other, with `imported.json` in the place of what only a live run knows.

runs/<name>/imported.json       where it came from, what was understood, how time and rate were got
            events/imported-0000.jsonl
            config.yaml         only if the user gave the config the run had

Events (docs/events.md has the fields of the live ones):
- `run_started`, one a session, `imported: true`;
- `line`: a reading as the log gives it, with `rate` and `rate_unit`, gauges of the console, and `source_line`;
- `step`, one an optimiser step, the last reading of it: step, epoch, loss, grad_norm, lr, noise, accuracy, streak, and `tokens`, estimated as
  rate x time since the step before where the log has a rate in tokens;
- `sample`, for logs with gauges of queues: depths, and depth_seconds summed as depth x time since the line before; workers are unknown;
- `evaluation`, where the log has any; `run_ended`, state `imported`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dflash.errors import RefusedInput, RunFailed
from dflash.importing.sessions import ImportedRun
from dflash.runs.folder import RunFolder, write_json
from dflash.telemetry.recorder import SCHEMA_VERSION, encode

MOST_SAMPLES = 20_000
_STEP_FIELDS = ("epoch", "loss", "grad_norm", "lr", "noise", "accuracy", "streak", "step_seconds")


def write_run(path: Path, run: ImportedRun, manifest: dict[str, Any], rate_unit: str, boundaries: Sequence[int] = ()) -> RunFolder:
    """Write a run's folder; `boundaries` are its length buckets, if they are known.

    Raises:
        RefusedInput: something is there already.
        RunFailed: it can't be written.
    """
    folder = RunFolder(path)
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RefusedInput(f"{path} is there already: give another --out")
        folder.events.mkdir(parents=True)
        with (folder.events / "imported-0000.jsonl").open("wb") as file:
            file.writelines(_events(path.name, run, rate_unit, boundaries))
    except OSError as error:
        raise RunFailed(f"{path}: can't be written ({error.strerror})") from error
    write_json(path / "imported.json", manifest)
    return folder


def _events(name: str, run: ImportedRun, rate_unit: str, boundaries: Sequence[int]) -> Iterator[bytes]:
    frame = run.frame.with_columns(time=pl.col("at") + run.began, seconds=pl.col("at"))
    training = frame.filter(pl.col("phase") != "evaluation") if "phase" in frame.columns else frame
    for first in frame.group_by("session", maintain_order=True).first().iter_rows(named=True):
        yield encode({"event": "run_started", "time": first["time"], "seconds": first["seconds"], "schema": SCHEMA_VERSION, "run": name,
                      "step": first["step"], "total_steps": int(frame["step"].max()), "boundaries": list(boundaries), "imported": True})  # type: ignore[arg-type]  # fmt: skip
    yield _sample_lines(training)
    yield _json_lines("line", _line_frame(training, rate_unit))
    if "phase" in frame.columns and "loss" in frame.columns:
        yield _json_lines("evaluation", frame.filter(pl.col("phase") == "evaluation").select("time", "seconds", "step", "loss"))
    yield _json_lines("step", _step_frame(training, rate_unit))  # last, where whoever lists runs looks for the newest step
    last = frame.tail(1).row(0, named=True)
    yield encode(
        {"event": "run_ended", "time": last["time"], "seconds": last["seconds"], "state": "imported", "step": last["step"]}
    )


def _line_frame(frame: pl.DataFrame, rate_unit: str) -> pl.DataFrame:
    lines = frame.drop("at", "stream", "session", "phase", "mark", strict=False).rename({"line": "source_line"})
    return lines.with_columns(rate_unit=pl.lit(rate_unit))


def _step_frame(frame: pl.DataFrame, rate_unit: str) -> pl.DataFrame:
    """One row a step, its last reading; steps done again after a restart come again, as in a live run's events."""
    fields = [name for name in _STEP_FIELDS if name in frame.columns]
    tokens = _tokens(frame, rate_unit)
    with_tokens = frame.with_columns(tokens=tokens) if tokens is not None else frame
    fields += ["tokens"] if tokens is not None else []
    summed = [pl.col("tokens").sum()] if tokens is not None else []
    grouped = with_tokens.group_by("session", "step", maintain_order=True)
    last = [pl.col(name).last() for name in ("time", "seconds", *fields) if name != "tokens"]
    return grouped.agg(*last, *summed).drop("session")


def _tokens(frame: pl.DataFrame, rate_unit: str) -> pl.Series | None:
    """Real tokens of each reading: logged, or rate x time since the reading before."""
    if "tokens" in frame.columns:
        return frame["tokens"]
    if rate_unit != "Ktok/s" or "rate" not in frame.columns:
        return None
    since = np.diff(frame["at"].to_numpy(), prepend=frame["at"][0] if len(frame) else 0.0)
    return (frame["rate"].fill_null(0.0) * 1_000 * pl.Series(since)).round(0)


def _sample_lines(frame: pl.DataFrame) -> bytes:
    """Samples of the queues, from a console's gauges: counters over all lines, of which at most `MOST_SAMPLES` are written."""
    if "pool_histogram" not in frame.columns:
        return b""
    gauges = frame.filter(pl.col("pool_histogram").is_not_null())
    if gauges.is_empty():
        return b""
    buckets = int(gauges["pool_histogram"].list.len().max())  # type: ignore[arg-type]
    columns = [gauges["pool_histogram"].list.get(bucket, null_on_oob=True).fill_null(0).to_numpy() for bucket in range(buckets)]
    depths = np.stack(columns, axis=1)
    since = np.diff(gauges["at"].to_numpy(), prepend=gauges["at"][0])
    depth_seconds = np.cumsum(depths * since[:, None], axis=0)
    empty_seconds = np.cumsum((depths.sum(axis=1) == 0) * since)
    every = -(-len(gauges) // MOST_SAMPLES)
    out = []
    thinned = gauges.select("time", "seconds", "step", "prefetched").gather_every(every)
    for at, (time, seconds, step, prefetched) in zip(range(0, len(gauges), every), thinned.iter_rows(), strict=True):
        pool = {
            "queue": "pool",
            "depths": depths[at],
            "depth_seconds": depth_seconds[at],
            "empty_seconds": float(empty_seconds[at]),
        }
        ready = [] if prefetched is None else [{"queue": "prefetch", "depths": [prefetched]}]
        out.append(encode({"event": "sample", "time": time, "seconds": seconds, "clock_seconds": seconds, "step": step, "workers": [],
                           "queues": [pool, *ready], "estimated": True}))  # fmt: skip
    return b"".join(out)


def _json_lines(event: str, frame: pl.DataFrame) -> bytes:
    """A frame as events of one kind; columns that are empty throughout are left out."""
    if frame.is_empty():
        return b""
    known = [name for name in frame.columns if frame[name].null_count() < len(frame)]
    buffer = io.BytesIO()
    frame.select(pl.lit(event).alias("event"), *known).write_ndjson(buffer)
    return buffer.getvalue()
