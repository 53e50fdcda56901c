"""What every log format is turned into: a frame of readings, one row a line (or point) that was understood.

Columns a format does not know are absent. Numbers a log gives as nan or inf are null and counted.

    line Int64, stream String (who printed it, where a log mixes several), step Int64, elapsed Float64 (s since the session began),
    time Float64 (s since 1970), step_seconds Float64, rate Float64 (in `rate_unit`), tokens Float64, loss, accuracy, streak,
    grad_norm, lr, noise, epoch Float64, phase String (train, evaluation; null: no reading, only a mark), mark String (a session begins here:
    new, resumed, or begins where the log does not say which)

and of this project's console: target_batches_per_second, drafter_batches_per_second, prefetched, pooled, pool_histogram (list), eta_seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

LATEST_SECONDS = 1e11
RATE_UNITS = ("Ktok/s", "samples/s", "steps/s")
NUMBERS = (
    "elapsed", "time", "step_seconds", "rate", "tokens", "loss", "accuracy", "streak", "grad_norm", "lr", "noise", "epoch",
)  # fmt: skip


@dataclass
class Readings:
    """The readings of a log and what is known about them.

    Attributes:
        frame: see the module's docstring; in order of the log.
        format: name of the format.
        rate_unit: of the column `rate`.
        rate_from: how the rate was got: "logged", or derived from what.
        lines_read, lines_blank, lines_understood: counts; those that are in none of blank and understood were not understood.
        not_understood: (line, text) of the first few of them.
        mapping: columns or tags used, our name -> the log's.
        notes: what was odd, in sentences.
    """

    frame: pl.DataFrame
    format: str
    rate_unit: str = "Ktok/s"
    rate_from: str = "logged"
    lines_read: int = 0
    lines_blank: int = 0
    lines_understood: int = 0
    not_understood: list[tuple[int, str]] = field(default_factory=list)
    mapping: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def numeric(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The frame with its number columns as finite Float64 and `step` as Int64; and how many values were nan or inf."""
    casts = [pl.col(name).cast(pl.Float64, strict=False) for name in NUMBERS if name in frame.columns]
    frame = frame.with_columns(casts)
    if "step" in frame.columns:
        whole = pl.col("step").cast(pl.Float64, strict=False).round(0)
        in_range = whole.is_between(0, 2**53)
        frame = frame.with_columns(pl.when(in_range).then(whole).cast(pl.Int64, strict=False).alias("step"))
    names = [name for name in NUMBERS if name in frame.columns]
    bad = sum(int((~frame[name].is_finite()).sum()) for name in names)
    finite = [pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in names]
    frame = frame.with_columns(finite)
    times = [name for name in ("time", "elapsed", "step_seconds") if name in frame.columns]
    return frame.with_columns(
        pl.when(pl.col(name).is_between(0, LATEST_SECONDS)).then(pl.col(name)).alias(name) for name in times
    ), bad
