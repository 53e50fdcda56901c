"""Lengths with the columns beside them, filtered by an expression, for whoever explores a data set by hand."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from dflash.batching.analysis import LengthTable, table_of
from dflash.data.lengths import read_lengths
from dflash.errors import RefusedInput

_HEAVY = ("input_ids", "loss_mask")


def length_frame(source: str | Path | pl.DataFrame) -> pl.DataFrame:
    """One row a sample: `length` (tokens), and what other columns the source has.

    Args:
        source: a prepared data set, a Parquet file with a column `length`, another file of lengths, or a frame.

    Raises:
        RefusedInput: it can't be read, or has no lengths.
    """
    if isinstance(source, pl.DataFrame):
        if "length" not in source.columns or source.is_empty():
            raise RefusedInput(f"the frame has no column `length` with rows in it; its columns: {', '.join(source.columns)}")
        return source
    place = Path(source)
    frame = pl.DataFrame({"length": read_lengths(place)})
    try:
        if place.is_dir():
            from dflash.data.manifest import SHARDS_NAME

            shards = pl.scan_parquet(place / SHARDS_NAME / "*.parquet")
            others = [name for name in shards.collect_schema().names() if name not in (*_HEAVY, "length")]
            return frame.hstack(shards.select(others).collect()) if others else frame
        if place.suffix.lower() == ".parquet":
            table = pl.read_parquet(place)
            return frame.hstack(table.drop("length", strict=False)) if table.width > 1 else frame
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RefusedInput(f"{place}: can't be read ({str(error).splitlines()[0]})") from error
    return frame


def filtered(frame: pl.DataFrame, condition: str) -> pl.DataFrame:
    """The rows a condition holds for, written as in SQL: "length < 4096 and file = 'a.jsonl'". Empty: all rows.

    Raises:
        RefusedInput: the condition can't be read, names a column that isn't there, or leaves nothing.
    """
    if not condition.strip():
        return frame
    try:
        kept = frame.filter(pl.sql_expr(condition))
    except Exception as error:  # polars raises many kinds for a bad expression, all of them the writer's to mend
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RefusedInput(f"filter {condition!r}: {reason}; columns: {', '.join(frame.columns)}") from error
    if kept.is_empty():
        raise RefusedInput(f"filter {condition!r} leaves none of {frame.height:,} samples; widen it")
    return kept


def counted(frame: pl.DataFrame) -> LengthTable:
    """The table of a frame's lengths."""
    return table_of(frame["length"].to_numpy())
