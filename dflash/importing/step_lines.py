"""`step:N/M train_loss:.. train_time:..ms step_avg:..ms` lines, as speed-run scripts print them.

`train_time` is cumulative and leaves validation out, so it is the session's clock. The rate is steps a second between two lines.
"""

from __future__ import annotations

import polars as pl

NAME = "step:N/M lines"
DETECT = r"\bstep:\d+/\d+\b.*\b(?:train|val)_(?:loss|time):"
_NUMBER = r"([-+\d.eE]+|nan|inf|-inf)"


def read(lines: pl.DataFrame) -> pl.DataFrame:
    """Readings of the lines that have this form; the training loss, or where a line has none, the validation's."""
    text = pl.col("text")
    train = text.str.extract(rf"\btrain_loss:{_NUMBER}")
    validation = text.str.extract(rf"\bval_loss:{_NUMBER}")
    return lines.filter(text.str.contains(DETECT)).select(
        "line",
        step=text.str.extract(r"\bstep:(\d+)/").cast(pl.Int64, strict=False),
        loss=pl.coalesce(train, validation).cast(pl.Float64, strict=False),
        phase=pl.when(train.is_null() & validation.is_not_null()).then(pl.lit("evaluation")).otherwise(pl.lit("train")),
        elapsed=text.str.extract(r"\btrain_time:([\d.]+)ms").cast(pl.Float64, strict=False) / 1_000,
    )


class Pace:
    """Adds `rate`: steps a second since the line before, also across the parts of a log."""

    def __init__(self) -> None:
        self._last = pl.DataFrame(schema={"step": pl.Int64, "elapsed": pl.Float64})

    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with its rates."""
        told = frame.select("step", "elapsed")
        both = pl.concat([self._last, told])
        steps, seconds = pl.col("step").diff(), pl.col("elapsed").diff()
        rate = both.select(rate=pl.when((steps > 0) & (seconds > 0)).then(steps / seconds))["rate"]
        self._last = both.tail(1)
        return frame.with_columns(rate.tail(len(frame)))
