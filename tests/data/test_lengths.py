"""Lengths from whatever file holds them; what is no length is refused with its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dflash.data.lengths import read_lengths
from dflash.errors import RefusedInput

_LENGTHS = [7, 8192, 1, 300]


def write(path: Path, values: list[object]) -> Path:
    if path.suffix == ".npy":
        np.save(path, np.asarray(values))
    elif path.suffix == ".parquet":
        pl.DataFrame({"length": values}, strict=False).write_parquet(path)
    else:
        lines = ["" if value is None else str(value) for value in values]
        path.write_text("\n".join((["length"] if path.stem.startswith("headed") else []) + lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.npy", "headed.csv", "bare.csv", "a.txt"])
def test_lengths_are_read_in_the_order_of_the_file(tmp_path: Path, name: str) -> None:
    found = read_lengths(write(tmp_path / name, list(_LENGTHS)))
    assert found.dtype == np.int32
    assert found.tolist() == _LENGTHS


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64, ">i4", np.float64])
def test_any_number_type_serves(tmp_path: Path, dtype: object) -> None:
    np.save(tmp_path / "a.npy", np.array([3, 200], dtype=dtype))
    assert read_lengths(tmp_path / "a.npy").tolist() == [3, 200]


@pytest.mark.parametrize(
    ("columns", "taken"),
    [
        ({"id": [9, 9], "length": [1, 2]}, [1, 2]),
        ({"tokens": [1, 2]}, [1, 2]),
        ({"name": ["a", "b"], "tokens": [1, 2], "score": [0.5, 0.6]}, [1, 2]),
    ],
)
def test_column_is_length_or_the_only_one_or_the_only_whole_numbers(
    tmp_path: Path, columns: dict[str, list[object]], taken: list[int]
) -> None:
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    assert read_lengths(tmp_path / "a.parquet").tolist() == taken
    pl.DataFrame(columns).write_csv(tmp_path / "a.csv")
    assert read_lengths(tmp_path / "a.csv").tolist() == taken


def test_ambiguous_columns_are_refused(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(RefusedInput, match="which column holds the lengths"):
        read_lengths(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ([5, None, 7, None], "2 of 4 are no lengths, first None in row"),
        ([5, 6, -1], "1 of 3 are no lengths, first -1(.0)? in row"),
        ([5, 0], "1 of 2 are no lengths, first 0(.0)? in row"),
        ([5.0, 6.5, 7.5], "2 of 3 are no lengths, first 6.5 in row"),
        ([5, 2**31], "1 of 2 are no lengths, first 2147483648(.0)? in row"),
        ([5.0, float("nan")], "1 of 2 are no lengths, first '?nan'? in row"),
    ],
)
@pytest.mark.parametrize("name", ["a.parquet", "headed.csv", "a.txt"])
def test_what_is_no_length_is_counted_and_placed(tmp_path: Path, name: str, values: list[object], fault: str) -> None:
    first = next(
        row for row, value in enumerate(values, 1) if value is None or not value >= 1 or value != int(value) or value > 2**31 - 1
    )
    row = first + (name == "headed.csv")
    with pytest.raises(RefusedInput, match=rf"{name}: {fault} {row}; lengths are whole numbers"):
        read_lengths(write(tmp_path / name, values))


def test_words_are_no_lengths(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match=r"a\.txt: 1 of 3 are no lengths, first 'seven' in row 2"):
        read_lengths(write(tmp_path / "a.txt", [6, "seven", 8]))


@pytest.mark.parametrize(
    ("name", "data", "fault"),
    [
        ("gone.csv", None, "no such file"),
        ("a.xlsx", b"x", "unknown kind"),
        ("a.txt", b"", "can't be read as lengths"),
        ("headed.csv", b"length\n", "holds no lengths"),
        ("a.npy", b"\x93NUMPY broken", "can't be read as lengths"),
        ("a.parquet", b"PAR1 broken", "can't be read as lengths"),
        ("a.txt", b"\xff\xfe1\n", "can't be read as lengths"),
    ],
)
def test_unreadable_file_is_refused_by_name(tmp_path: Path, name: str, data: bytes | None, fault: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(RefusedInput, match=f"{name}: .*{fault}"):
        read_lengths(tmp_path / name)


def test_table_of_numbers_in_two_dimensions_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((3, 2), dtype=np.int64))
    with pytest.raises(RefusedInput, match=r"shape \(3, 2\)"):
        read_lengths(tmp_path / "a.npy")
