"""Megatron-LM: console lines with pipes, wrapped ones too, and golden-values JSON.

    [2024-05-01 12:00:00] iteration 10/ 500 | consumed samples: 2560 | elapsed time per iteration (ms): 1234.5 | learning rate: 1.0E-04 |
    global batch size: 256 | lm loss: 5.1E+00 | grad norm: 1.2 | number of nan iterations: 0 |

A terminal or a scheduler may have wrapped a line anywhere: pieces that follow a line without its closing pipe are joined to it, and a blank
lost at the break is forgiven. The rate is tokens a second where the log also printed `seq_length ... N`, samples a second otherwise.
"""

from __future__ import annotations

import re
from typing import Any

import polars as pl

NAME = "Megatron console"
GOLDEN_NAME = "Megatron golden values"
DETECT = r"\biteration\s+\d+/\s*\d+\s*\|"
SEQUENCE_LENGTH = r"^\s*(?:\d+: )?seq_length\s?\.{3,}\s*(\d+)\s*$"
MAX_PIECES = 12
_NUMBER = r"([-+\d.eE]+|nan|inf|-inf)"
_FIELDS = {
    "milliseconds": r"elapsed time per iteration \(ms\)", "lr": "learning rate",
    "batch": "global batch size", "loss": "lm loss", "grad_norm": "grad norm",
}  # fmt: skip
_GOLDEN = {
    "loss": ("lm loss", "loss"), "step_seconds": ("iteration-time", "iteration_timing_avg"), "grad_norm": ("grad-norm", "grad norm"),
    "lr": ("learning-rate", "learning rate"),
}  # fmt: skip
_START = re.compile(DETECT)
_LAST_FIELD = re.compile(r"number\s*of\s*nan\s*iterations:")


def join_wrapped(lines: pl.DataFrame) -> tuple[pl.DataFrame, list[int]]:
    """Iteration lines made whole (`line` is their first), and the numbers of all lines that went into them."""
    text = pl.col("text")
    whole = text.str.strip_chars_end().str.ends_with("|") & text.str.contains(_LAST_FIELD.pattern)
    found = lines.with_row_index("at").filter(text.str.contains(DETECT)).with_columns(whole=whole)
    joined = found.filter("whole").select("line", "text")
    used = joined["line"].to_list()
    torn = found.filter(~pl.col("whole"))
    if torn.is_empty():
        return joined, used
    texts, numbers = lines["text"].to_list(), lines["line"].to_list()
    pieces: list[tuple[int, str]] = []
    for at in torn["at"].to_list():
        whole_text, ahead = texts[at], at + 1
        while not _is_whole(whole_text) and ahead < len(texts) and ahead - at <= MAX_PIECES and _goes_on(whole_text, texts[ahead]):
            whole_text, ahead = whole_text + texts[ahead], ahead + 1
        used.extend(numbers[at:ahead])
        pieces.append((numbers[at], whole_text))
    return pl.concat([joined, pl.DataFrame(pieces, schema=joined.schema, orient="row")]).sort("line"), used


def read(joined: pl.DataFrame) -> pl.DataFrame:
    """Readings of whole iteration lines; `rate` in samples a second, `batch` samples an iteration."""
    text = pl.col("text")
    fields = {
        name: text.str.extract(rf"{_loose(label)}:\s*{_NUMBER}").cast(pl.Float64, strict=False) for name, label in _FIELDS.items()
    }
    stamp = text.str.extract(r"\[([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})")
    step_seconds = pl.col("milliseconds") / 1_000
    return (
        joined.select(
            "line",
            step=text.str.extract(r"\biteration\s+([0-9]+)/").cast(pl.Int64, strict=False),
            time=stamp.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False).dt.epoch("ms").cast(pl.Float64) / 1_000,
            **fields,
        )
        .with_columns(step_seconds=step_seconds, rate=pl.col("batch") / pl.when(step_seconds > 0).then(step_seconds))
        .drop("milliseconds")
    )


def in_tokens(sequence_length: int) -> list[pl.Expr]:
    """Rate in Ktok/s, and tokens an iteration, from samples."""
    return [pl.col("rate") * sequence_length / 1_000, (pl.col("batch") * sequence_length).alias("tokens")]


def sequence_length(lines: pl.DataFrame) -> tuple[int | None, list[int]]:
    """The first length that is printed among the settings; and all lines that tell one."""
    found = lines.select("line", tokens=pl.col("text").str.extract(SEQUENCE_LENGTH).cast(pl.Int64, strict=False))
    known = found.filter(pl.col("tokens") > 0)
    return (int(known["tokens"][0]) if len(known) else None), known["line"].to_list()


def read_golden(tree: Any) -> pl.DataFrame | None:
    """Readings of a golden-values object: {"iteration-time": {"values": {"5": 17.15, "1": "nan"}}, ...}; None if it is none."""
    if not isinstance(tree, dict):
        return None
    frames = []
    for name, labels in _GOLDEN.items():
        values = next((points for label in labels if (points := _golden_points(tree.get(label)))), None)
        if values:
            frames.append(
                pl.DataFrame({"step": list(values), name: list(values.values())}, schema={"step": pl.Int64, name: pl.Float64})
            )
    if not frames:
        return None
    joined = frames[0]
    for frame in frames[1:]:
        joined = joined.join(frame, on="step", how="full", coalesce=True)
    joined = joined.sort("step")
    if "step_seconds" in joined.columns:
        joined = joined.with_columns(rate=1 / pl.when(pl.col("step_seconds") > 0).then(pl.col("step_seconds")))
    return joined.with_row_index("line", 1).with_columns(pl.col("line").cast(pl.Int64))


def _golden_points(metric: Any) -> dict[int, float | None]:
    """{step: value}, from {"values": {...}} or the older {"start_step", "step_interval", "values": [...]}."""
    values = metric.get("values") if isinstance(metric, dict) else None
    if isinstance(values, list):
        start, every = _whole(metric.get("start_step", 0)), _whole(metric.get("step_interval", 1))
        pairs: Any = [] if start is None or every is None else [(start + at * every, value) for at, value in enumerate(values)]
    else:
        pairs = values.items() if isinstance(values, dict) else []
    return {step: _float(value) for key, value in pairs if (step := _whole(key)) is not None}


def _whole(text: Any) -> int | None:
    try:
        number = int(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < 2**53 else None


def _float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _is_whole(text: str) -> bool:
    return text.rstrip().endswith("|") and _LAST_FIELD.search(text) is not None


def _goes_on(text: str, piece: str) -> bool:
    """Whether a line can be the rest of a wrapped one: it has a pipe, or ends a field that was begun, and starts no line of its own."""
    return (
        bool(piece.strip())
        and not piece.startswith("[")
        and _START.search(piece) is None
        and ("|" in piece or not text.rstrip().endswith("|"))
    )


def _loose(label: str) -> str:
    """The label, blanks optional: a break may have swallowed one."""
    return label.replace(" ", r"\s*")
