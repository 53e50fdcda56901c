"""This project's console lines (see `telemetry.console`), read by the million: the same fields by vectorised regular expressions.

Rust's regular expressions take linear time, so no line, however odd, can hang the import. `telemetry.console.parse_line` is the definition
and the tests' oracle. Beside progress lines, the run's first line and its evaluation lines are understood.
"""

from __future__ import annotations

import polars as pl

from dflash.telemetry.console import parse_duration

NAME = "dflash console"
_ELAPSED = r"\[((?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?)\] step="
_STEP = r"\[(?:\d+[dhms])+\] step=(\d+)\b"
_BEGIN = r": (resumed at|from) step \d+ of \d+$"
_EVALUATION = r"^evaluation at step (\d+): "
_LABEL = r"^(\(\w+ pid=\d+(?:, ip=[\d.]+)?\)|\[(?:default|rank)\d+\]:?|[\w.-]+\s*\|)\s"
DETECT = rf"{_STEP}|{_EVALUATION}"

_NUMBER = r"[-+\d.eE]+|nan|inf|-inf"
_FLOATS = ("loss", "accuracy", "streak", "lr", "noise", "target_batches_per_second", "drafter_batches_per_second", "rate", "epoch")
_FIELDS = {
    "loss": rf"\bloss=({_NUMBER})", "accuracy": rf"\bacc=({_NUMBER})", "streak": rf"\bstreak=({_NUMBER})", "lr": rf"\blr=({_NUMBER})",
    "noise": rf"\bnoise=({_NUMBER})", "target_batches_per_second": r"\btgt=([\d.]+)b/s", "drafter_batches_per_second": r"\bdft=([\d.]+)b/s",
    "rate": r"\(([\d.]+)Ktok/s\)", "prefetched": r"\bq_pre=\[\s*(\d+)\s*\]", "pooled": r"\bq_hs=\[\s*(\d+)\s*\]",
    "pool_histogram": r"\bq_hsb=\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]",
    "epoch": r"\bepoch~([-+\d.eE]+)(?:\s|$)", "eta_seconds": r"\bETA=([\d.]+[dhms])",
}  # fmt: skip
# Each part of a whole line ends at a sign it can't hold itself, so the expression is one pass without backtracking.
_WHOLE = (
    r"^\[(?P<elapsed>(?:[0-9]+[dhms])+)\] step=(?P<step>[0-9]+) loss=(?P<loss>[^ ]+) acc=(?P<accuracy>[^ ]+) "
    r"streak=(?P<streak>[^ ]+) lr=(?P<lr>[^ ]+) noise=(?P<noise>[^ ]+) "
    r"\| tgt=(?P<target_batches_per_second>[^ b]+)b/s dft=(?P<drafter_batches_per_second>[^ b]+)b/s "
    r"\((?P<rate>[^ K]+)Ktok/s\) \| q_pre=\[(?P<prefetched>[0-9-]+)\] q_hs=\[(?P<pooled>[0-9-]+)\] "
    r"q_hsb=(?:\[(?P<pool_histogram>[0-9, ]+)\]|---) \| epoch~(?P<epoch>[^ ]+) ETA=(?P<eta_seconds>[^ ]+)$"
)


def read(lines: pl.DataFrame) -> pl.DataFrame:
    """Readings of the lines that are this console's; `line` tells which.

    Whole lines, bare or labelled, are taken apart by one expression; what is left (cut off, torn by other output, markers, evaluations) field
    by field.
    """
    bare, rest = _whole(lines.with_columns(stream=pl.lit("")))
    rest = rest.with_columns(stream=pl.col("text").str.extract(_LABEL, 1).fill_null(""))
    labelled, _ = _whole(rest.filter(pl.col("stream") != "").with_columns(text=pl.col("text").str.replace(_LABEL, "", n=1)))
    if len(labelled):
        rest = rest.join(labelled.select("line"), on="line", how="anti", maintain_order="left")
    parts = [part for part in (bare, labelled, _field_by_field(rest)) if not part.is_empty()]
    if not parts:
        return _typed(bare)
    frame = pl.concat(parts, how="diagonal")
    return _typed(frame.sort("line") if len(parts) > 1 else frame)


def _whole(lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fields, as text, of the lines that are whole; and the other lines."""
    found = lines.with_columns(fields=pl.col("text").str.extract_groups(_WHOLE))
    is_whole = pl.col("fields").struct.field("step").is_not_null()
    whole = found.filter(is_whole).select("line", "stream", "fields").unnest("fields")
    marked = whole.with_columns(mark=pl.lit(None, pl.String), phase=pl.lit("train"))
    return marked, found.filter(~is_whole).select("line", "text", "stream")


def _field_by_field(lines: pl.DataFrame) -> pl.DataFrame:
    """The same columns, as text, of lines that are not whole."""
    text = pl.col("text")
    known = lines.filter(text.str.contains(rf"{DETECT}|{_BEGIN}"))
    progress, evaluation = text.str.contains(_STEP), text.str.contains(_EVALUATION)
    return known.select(
        "line",
        "stream",
        mark=text.str.extract(_BEGIN).replace_strict({"resumed at": "resumed", "from": "new"}, default=None),
        phase=pl.when(evaluation).then(pl.lit("evaluation")).when(progress).then(pl.lit("train")),
        step=pl.coalesce(text.str.extract(_STEP), text.str.extract(_EVALUATION)),
        elapsed=text.str.extract(_ELAPSED),
        **{name: text.str.extract(pattern) for name, pattern in _FIELDS.items()},
    )


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    numbers = [pl.col(name).cast(pl.Float64, strict=False) for name in _FLOATS]
    counts = [pl.col(name).cast(pl.Int64, strict=False) for name in ("step", "prefetched", "pooled")]
    histogram = pl.col("pool_histogram").str.replace_all(" ", "", literal=True).str.split(",").cast(pl.List(pl.Int64), strict=False)
    unit = pl.col("eta_seconds").str.slice(-1).replace_strict({"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}, default=None)
    eta = pl.col("eta_seconds").str.head(-1).cast(pl.Float64, strict=False) * unit
    return frame.with_columns(*numbers, *counts, elapsed=_seconds(frame["elapsed"]), pool_histogram=histogram, eta_seconds=eta)


def _seconds(texts: pl.Series) -> pl.Series:
    """Durations as seconds; few differ in a log, so each is parsed once."""
    unique = texts.drop_nulls().unique()
    seconds = pl.Series([parse_duration(text) for text in unique], dtype=pl.Float64)
    return texts.replace_strict(unique, seconds, default=None, return_dtype=pl.Float64)
