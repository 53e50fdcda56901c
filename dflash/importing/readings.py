"""What every log format is turned into: frames of readings, one row a line (or point) that was understood.

Columns a format does not know are absent. Numbers a log gives as nan or inf are null and counted.

    line Int64, stream String (who printed it, where a log mixes several), step Int64, elapsed Float64 (s since the session began),
    time Float64 (s since 1970), step_seconds Float64, rate Float64 (in `rate_unit`), tokens Float64, loss, accuracy, streak,
    grad_norm, lr, noise, epoch Float64, phase String (train, evaluation; null: no reading, only a mark), mark String (a session begins here:
    new, resumed, or begins where the log does not say which)

and of this project's console: target_batches_per_second, drafter_batches_per_second, prefetched, pooled, pool_histogram (list), eta_seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from dflash.importing.spool import Spool

LATEST_SECONDS = 1e11
LISTED = 20
"""Lines that were not understood, of which the text is kept."""
RATE_UNITS = ("Ktok/s", "samples/s", "steps/s")
NUMBERS = (
    "elapsed", "time", "step_seconds", "rate", "tokens", "loss", "accuracy", "streak", "grad_norm", "lr", "noise", "epoch",
)  # fmt: skip
_OPTIONAL = {"stream": "", "mark": None}


@dataclass
class Readings:
    """The readings of a log and what is known about them.

    Attributes:
        spool: the frames; see the module's docstring; in order of the log.
        format: name of the format.
        rate_unit: of the column `rate`.
        rate_from: how the rate was got: "logged", or derived from what.
        lines_read, lines_blank, lines_understood: counts; those that are in none of blank and understood were not understood.
        not_understood: (line, text) of the first few of them.
        mapping: columns or tags used, our name -> the log's.
        notes: what was odd, in sentences.
        derived: columns that could be worked out only when all was read.
        clocks: for each stream, which of `step` and `elapsed` it ever tells.
        nonfinite: how many values were nan or inf.
    """

    spool: Spool
    format: str
    rate_unit: str = "Ktok/s"
    rate_from: str = "logged"
    lines_read: int = 0
    lines_blank: int = 0
    lines_understood: int = 0
    not_understood: list[tuple[int, str]] = field(default_factory=list)
    mapping: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    derived: list[pl.Expr] = field(default_factory=list)
    clocks: dict[str, set[str]] = field(default_factory=dict)
    nonfinite: int = 0

    def add(self, frame: pl.DataFrame, nonfinite: int) -> None:
        """Add what `numeric` gave.

        Raises:
            OSError: there is no room for temporary files.
        """
        self.nonfinite += nonfinite
        for stream, part in by_stream(frame):
            told = {name for name in ("step", "elapsed") if name in part.columns and part[name].null_count() < len(part)}
            self.clocks.setdefault(stream, set()).update(told)
        self.spool.append(frame)

    def list_odd(self, odd: list[tuple[int, str]]) -> None:
        """Keep lines that were not understood, as long as there is room."""
        self.not_understood += odd[: LISTED - len(self.not_understood)]

    def parts(self) -> Iterator[pl.DataFrame]:
        """The frames, each with `stream` and `mark`."""
        for frame in self.spool:
            missing = [pl.lit(usual, pl.String).alias(name) for name, usual in _OPTIONAL.items() if name not in frame.columns]
            yield frame.with_columns(*missing, *self.derived)


def by_stream(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """The frame's rows by who printed them, in order of appearance."""
    if frame.is_empty():
        return []
    if "stream" not in frame.columns:
        return [("", frame)]
    first = frame["stream"][0]
    if (frame["stream"] == first).all():
        return [(str(first), frame)]
    return [(str(part["stream"][0]), part) for part in frame.partition_by("stream", maintain_order=True)]


def numeric(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The frame with its number columns as finite Float64 and `step` as Int64; and how many values were nan or inf."""
    casts = [pl.col(name).cast(pl.Float64, strict=False) for name in NUMBERS if name in frame.columns]
    if "step" in frame.columns:
        whole = pl.col("step").cast(pl.Float64, strict=False).round(0)
        casts.append(pl.when(whole.is_between(0, 2**53)).then(whole).cast(pl.Int64, strict=False).alias("step"))
    frame = frame.with_columns(casts)
    names = [name for name, dtype in frame.schema.items() if dtype == pl.Float64]
    if not names:
        return frame, 0
    bad = sum(frame.select((~pl.col(names).is_finite()).sum()).row(0))
    finite = []
    for name in names:
        bounded = name in ("time", "elapsed", "step_seconds")
        fine = pl.col(name).is_between(0, LATEST_SECONDS) if bounded else pl.col(name).is_finite()
        if bad or bounded:
            finite.append(pl.when(fine).then(pl.col(name)).alias(name))
    return frame.with_columns(finite), int(bad)
