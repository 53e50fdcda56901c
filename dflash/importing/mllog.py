"""MLPerf logging: `:::MLLOG {json}` lines, anywhere in a line.

Losses and rates come as points (`train_loss`, `throughput`) or inside `tracked_stats`; the step is in the metadata as `step_num`, `step`,
`samples_count` or `epoch_num`. `run_start` begins a run; what lies between `eval_start` and `eval_stop` is the phase `evaluation`.
"""

from __future__ import annotations

from typing import Any

import orjson
import polars as pl

NAME = "MLPerf MLLOG"
MARK = ":::MLLOG "
DETECT = r":::MLLOG \{"
_POINTS = {
    "train_loss": "loss", "loss": "loss", "throughput": "rate", "train_throughput": "rate", "learning_rate": "lr", "lr": "lr",
    "grad_norm": "grad_norm", "train_step_time": "step_seconds", "step_time": "step_seconds", "reduced_train_loss": "loss",
}  # fmt: skip
_STEPS = ("step_num", "step", "samples_count", "epoch_num")
_SCHEMA = {
    "line": pl.Int64, "step": pl.Float64, "time": pl.Float64, "loss": pl.Float64, "rate": pl.Float64, "lr": pl.Float64,
    "grad_norm": pl.Float64, "step_seconds": pl.Float64, "phase": pl.String, "mark": pl.String,
}  # fmt: skip


def read(lines: pl.DataFrame, phase: str = "train") -> tuple[pl.DataFrame, list[int], str]:
    """Readings, the numbers of all lines understood (most MLLOG lines are settings, not readings), and the phase after them.

    `phase` is the one before them, in a log that is read in parts.
    """
    rows: list[dict[str, Any]] = []
    understood: list[int] = []
    known = lines.filter(pl.col("text").str.contains(MARK, literal=True))
    for number, text in zip(known["line"].to_list(), known["text"].to_list(), strict=True):
        message = _message(text)
        if message is None:
            continue
        understood.append(number)
        key = message.get("key")
        phase = {"eval_start": "evaluation", "eval_stop": "train"}.get(key, phase) if isinstance(key, str) else phase
        values = _values(key, message.get("value"))
        if values or key == "run_start":
            time = _number(message.get("time_ms"))
            found = {"line": number, "step": _step(message.get("metadata")), "time": None if time is None else time / 1_000}
            rows.append({**found, "phase": phase if values else None, "mark": "new" if key == "run_start" else None, **values})
    return pl.DataFrame(rows, schema=_SCHEMA, strict=False), understood, phase


def _message(text: str) -> dict[str, Any] | None:
    try:
        message = orjson.loads(text.partition(MARK)[2])
    except orjson.JSONDecodeError:
        return None
    return message if isinstance(message, dict) else None


def _values(key: Any, value: Any) -> dict[str, float]:
    points = value.items() if key == "tracked_stats" and isinstance(value, dict) else [(key, value)]
    found = {_POINTS[name]: _number(point) for name, point in points if isinstance(name, str) and name in _POINTS}
    return {name: number for name, number in found.items() if number is not None}


def _step(metadata: Any) -> float | None:
    if not isinstance(metadata, dict):
        return None
    return next((number for name in _STEPS if (number := _number(metadata.get(name))) is not None), None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
