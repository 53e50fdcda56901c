"""Sequence lengths from a file, for planning and analysis without the data itself. polars, no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.errors import RefusedInput

_KNOWN = "a folder written by `dflash prepare`, or a .parquet, .csv, .npy or .txt file of lengths"
_LARGEST = 2**31 - 1


def read_lengths(path: str | Path) -> NDArray[np.int32]:
    """Lengths in tokens, int32 [samples], in the order of the file.

    A table's column `length` is taken, else its only column, else its only column of whole numbers. A .csv file may lack a header
    when it has one column; a .txt file has one number a line.

    Raises:
        RefusedInput: the file is missing, of unknown kind, damaged or empty, has no such column, or holds something that is no length
            (null, fractional, below 1): how many, and the first place.
    """
    place = Path(path)
    if place.is_dir():
        from dflash.data.dataset import TokenDataset

        return TokenDataset.open(place).lengths
    if not place.is_file():
        raise RefusedInput(f"{place}: no such file or folder; lengths come from {_KNOWN}")
    try:
        values, first_row = _read(place)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise RefusedInput(f"{place}: can't be read as lengths ({str(error).strip().splitlines()[0]})") from error
    return _checked(values, place, first_row)


def _read(place: Path) -> tuple[pl.Series, int]:
    """The column of lengths, and the line or row number of its first value."""
    ending = place.suffix.lower()
    if ending == ".npy":
        array = np.load(place, mmap_mode="r", allow_pickle=False)
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise ValueError(f"an array of shape {array.shape} and type {array.dtype}; expected numbers in one dimension")
        return pl.Series("length", array.astype(array.dtype.newbyteorder("="))), 1
    if ending == ".parquet":
        return _column(pl.read_parquet(place), place), 1
    if ending in (".csv", ".txt"):
        return _from_text(place, ending)
    raise RefusedInput(f"{place}: of unknown kind; lengths come from {_KNOWN}")


def _from_text(place: Path, ending: str) -> tuple[pl.Series, int]:
    with place.open(encoding="utf-8") as file:
        headed = ending == ".csv" and not _is_number(file.readline())
    table = pl.read_csv(place, has_header=headed, infer_schema_length=None)
    return _column(table, place), 2 if headed else 1


def _column(table: pl.DataFrame, place: Path) -> pl.Series:
    if "length" in table.columns:
        return table["length"]
    if table.width == 1:
        return table.to_series()
    whole = [name for name, dtype in table.schema.items() if dtype.is_integer()]
    if len(whole) != 1:
        raise RefusedInput(
            f"{place}: which column holds the lengths? None is called length, and of {table.columns} {whole} hold numbers"
        )
    return table[whole[0]]


def _checked(values: pl.Series, place: Path, first_row: int) -> NDArray[np.int32]:
    if not len(values):
        raise RefusedInput(f"{place}: holds no lengths")
    numbers = values.cast(pl.Float64, strict=False) if values.dtype == pl.String else values
    if not numbers.dtype.is_numeric():
        raise RefusedInput(f"{place}: its column is of type {values.dtype}; lengths are whole numbers of tokens")
    length = pl.col(numbers.name)
    is_length = (length >= 1) & (length <= _LARGEST) & (length.floor() == length)
    fault = numbers.to_frame().select(~is_length.fill_null(False)).to_series()
    if fault.any():
        first = int(fault.arg_true()[0])
        raise RefusedInput(
            f"{place}: {fault.sum()} of {len(values)} are no lengths, first {values[first]!r} in row {first + first_row}; "
            "lengths are whole numbers of tokens, from 1"
        )
    return numbers.cast(pl.Int32).to_numpy()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text.strip()
    return True
