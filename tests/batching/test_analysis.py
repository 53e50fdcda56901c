"""Length analysis against numpy, streaming, and what can't be a length."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.analysis import (
    count_lengths,
    default_classes,
    difference,
    histogram,
    outliers,
    shares_by_class,
    summary,
    table_of,
)
from dflash.errors import RefusedInput

LENGTHS = st.lists(st.integers(1, 3_000), min_size=1, max_size=200)


def counts(lengths):
    return table_of(np.asarray(lengths, np.int32)).whole


@settings(deadline=None)
@given(LENGTHS)
def test_figures_equal_numpys(lengths):
    found, array = summary(counts(lengths)), np.asarray(lengths)
    assert found["samples"] == array.size
    assert found["tokens"] == array.sum()
    assert found["mean"] == pytest.approx(array.mean())
    assert (found["shortest"], found["longest"]) == (array.min(), array.max())
    for percent, length in found["percentiles"].items():
        assert length == np.percentile(array, float(percent), method="inverted_cdf")


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 8))
def test_classes_hold_every_sample_once(lengths, classes):
    each, array = counts(lengths), np.asarray(lengths)
    boundaries = default_classes(each, classes)
    frame = shares_by_class(each, boundaries)
    for row in frame.to_dicts():
        inside = array[(array > row["above"]) & (array <= row["up_to"])]
        assert (row["samples"], row["tokens"]) == (inside.size, inside.sum())
    assert frame["sample_share"].sum() == pytest.approx(1)
    assert frame["token_share"].sum() == pytest.approx(1)
    assert histogram(each)["samples"].sum() == array.size


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 50))
def test_thinned_lengths_stand_for_all(lengths, most):
    thin = counts(lengths).thinned(most)
    assert thin.size == min(most, len(lengths))
    assert set(thin) <= set(lengths)
    if most >= len(lengths):
        assert thin.tolist() == sorted(lengths)


@given(LENGTHS, LENGTHS)
@settings(max_examples=60, deadline=None)
def test_a_difference_is_measured_like_its_definitions(one, two):
    found = difference(counts(one), counts(two))
    grid = np.arange(0, 3_001)
    cumulative = [np.searchsorted(np.sort(each), grid, side="right") / len(each) for each in (one, two)]
    assert found["ks"] == pytest.approx(np.abs(cumulative[0] - cumulative[1]).max())
    assert found["shift"] == pytest.approx(np.abs(cumulative[0] - cumulative[1]).sum())
    assert found["mean_ratio"] == pytest.approx(np.mean(two) / np.mean(one))
    assert found["psi"] >= 0


def test_equal_data_sets_are_alike_and_longer_ones_are_not():
    draws = np.random.default_rng(0).lognormal(7, 0.6, (2, 20_000))
    first, second = (np.rint(each).astype(np.int32) + 1 for each in draws)
    assert difference(counts(first), counts(second))["verdict"] == "alike"
    assert difference(counts(first), counts(second * 2))["verdict"] == "another population"


def test_cut_samples_and_far_out_ones_are_told():
    lengths = np.concatenate([np.arange(80, 120), [100_000], [1]])
    found = outliers(counts(lengths))
    assert (found["below"], found["above"]) == (1, 1)
    assert outliers(counts([*range(50, 100), *[200] * 50]))["at_longest_share"] == pytest.approx(0.5)


def write(tmp_path, **columns):
    place = tmp_path / "lengths.parquet"
    pl.DataFrame(columns).write_parquet(place)
    return place


def test_groups_are_counted_apart_and_together(tmp_path):
    place = write(tmp_path, length=[5, 7, 7, 9], source=["a", "b", "b", None])
    table = count_lengths(place, group_by="source")
    assert {name: summary(each)["tokens"] for name, each in table.groups.items()} == {"(none)": 9, "a": 5, "b": 14}
    assert summary(table.whole)["tokens"] == 28


def test_what_is_no_length_is_counted_by_kind_and_left_out(tmp_path):
    place = write(tmp_path, length=[10.0, None, float("nan"), float("inf"), 2.5, 0.0, -3.0, 9_000.0, 20.0])
    table = count_lengths(place, limit=8_192)
    assert table.refused == {"missing": 1, "not a number": 2, "fractional": 1, "below 1": 2, "above the limit": 1}
    assert table.whole.total_samples == 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"length": [0, 0, 0]}, "3 below 1"),
        ({"length": pl.Series([], dtype=pl.Int32)}, "it is empty"),
        ({"length": [None, None]}, "missing|whole numbers"),
        ({"tokens": [1], "rows": [2]}, "which column holds the lengths"),
        ({"length": [[1, 2]]}, "lengths are whole numbers"),
    ],
)
def test_nothing_to_analyse_is_an_error(tmp_path, columns, words):
    with pytest.raises(RefusedInput, match=words):
        count_lengths(write(tmp_path, **columns))


def test_an_unknown_column_is_named_with_those_there_are(tmp_path):
    with pytest.raises(RefusedInput, match="no column sauce to group by; there is source"):
        count_lengths(write(tmp_path, length=[1], source=["a"]), group_by="sauce")


def test_a_missing_or_damaged_file_is_refused(tmp_path):
    with pytest.raises(RefusedInput, match=r"nowhere.parquet"):
        count_lengths(tmp_path / "nowhere.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(RefusedInput, match="can't be read"):
        count_lengths(tmp_path / "torn.parquet")
