"""Lengths with their columns, and filters a user writes."""

import polars as pl
import pytest

from dflash.batching.explore import counted, filtered, length_frame
from dflash.errors import RefusedInput


@pytest.fixture
def frame():
    return pl.DataFrame({"length": [10, 20, 30, 40], "file": ["a", "a", "b", "c"]})


def test_a_parquet_file_keeps_the_columns_beside_the_lengths(frame, tmp_path):
    frame.write_parquet(tmp_path / "lengths.parquet")
    assert length_frame(tmp_path / "lengths.parquet").columns == ["length", "file"]
    assert length_frame(frame) is frame


def test_a_filter_is_written_as_in_sql(frame):
    assert filtered(frame, "length > 10 and file in ('a', 'b')")["length"].to_list() == [20, 30]
    assert filtered(frame, "  ") is frame
    assert counted(filtered(frame, "file = 'a'")).whole.total_tokens == 30


@pytest.mark.parametrize("condition", ["length >", "nope = 3", "drop table x", "length > 1000", "; length"])
def test_a_bad_filter_is_refused_with_its_text(frame, condition):
    with pytest.raises(RefusedInput, match="filter"):
        filtered(frame, condition)


def test_a_frame_without_lengths_is_refused():
    with pytest.raises(RefusedInput, match="length"):
        length_frame(pl.DataFrame({"tokens": [1]}))
