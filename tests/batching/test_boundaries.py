"""Boundaries: the optimum against brute force, the simple rules, and which side a boundary belongs to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching.boundaries import (
    boundary_curves,
    bucket_efficiency,
    bucket_of,
    count_distinct,
    length_class_edges,
    optimal_boundaries,
    quantile_boundaries,
)
from dflash.errors import RefusedInput

few_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda values: np.array(values, np.int32))


def padding_cost(lengths: np.ndarray, boundaries: list[int], attention: float) -> float:
    cost = 0.0
    for low, high in itertools.pairwise(boundaries):
        inside = [int(n) for n in lengths if low < n <= high]
        if inside:
            cost += len(inside) * (max(inside) + attention * max(inside) ** 2)
    return cost


@given(few_lengths, st.integers(1, 5), st.sampled_from([0.0, 0.01, 0.5]), st.integers(0, 9))
def test_optimal_boundaries_cost_no_more_than_any_others(lengths, buckets, attention, beyond):
    distinct = np.unique(lengths)
    buckets = min(buckets, distinct.size)
    limit = int(distinct[-1]) + beyond
    found = optimal_boundaries(lengths, buckets, limit, attention=attention)
    assert len(found) == buckets + 1
    assert found[0] == 0
    assert found[-1] == limit
    assert all(low < high for low, high in itertools.pairwise(found))
    best = min(
        padding_cost(lengths, [0, *inner, limit], attention)
        for inner in itertools.combinations(distinct[:-1].tolist(), buckets - 1)
    )
    assert padding_cost(lengths, found, attention) == pytest.approx(best)


def test_the_curve_holds_the_optimum_of_each_number_of_buckets_and_rises():
    lengths = np.random.default_rng(0).lognormal(5, 0.7, 4000).astype(np.int32) + 1
    curves = boundary_curves(lengths, 12)
    curve = curves["optimal"]
    assert [len(found) - 1 for found, _ in curve] == list(range(1, 13))
    assert [efficiency for _, efficiency in curve] == sorted(efficiency for _, efficiency in curve)
    for buckets in (1, 5, 12):
        assert curve[buckets - 1][0] == optimal_boundaries(lengths, buckets)
    assert curves["quantile"][5] == (quantile_boundaries(lengths, 6), bucket_efficiency(lengths, quantile_boundaries(lengths, 6)))
    assert curves["equal_tokens"][5][0] == length_class_edges(lengths, 6).tolist()
    assert curve[5][1] > max(curves["quantile"][5][1], curves["equal_tokens"][5][1])


def test_the_attention_term_moves_boundaries_towards_long_rows():
    lengths = np.random.default_rng(0).lognormal(7.3, 0.7, 20_000).clip(16, 8192).astype(np.int32)
    plain, heavy = optimal_boundaries(lengths, 6, 8192), optimal_boundaries(lengths, 6, 8192, attention=1e-3)
    assert all(low < high for low, high in zip(plain[1:-1], heavy[1:-1], strict=True))


def test_as_many_buckets_as_lengths_pad_nothing():
    lengths = np.array([4, 9, 9, 2])
    assert optimal_boundaries(lengths, 3) == [0, 2, 4, 9]
    assert bucket_efficiency(lengths, [0, 2, 4, 9]) == 1.0


@given(st.lists(st.integers(-3, 90_000), max_size=50), st.sampled_from([np.int32, np.int64]))
def test_distinct_lengths_are_counted_as_numpy_counts_them(values, kind):
    lengths = np.array(values, kind)
    expected = np.unique(lengths, return_counts=True)
    assert all(np.array_equal(found, right) for found, right in zip(count_distinct(lengths), expected, strict=True))


@given(st.lists(st.integers(0, 70), min_size=40, max_size=80), st.sets(st.integers(1, 60), max_size=5))
def test_looking_buckets_up_in_a_table_is_the_same_as_searching(values, inner):
    boundaries = [0, *sorted(inner), 61]
    for kind in (np.uint8, np.uint16, np.int32, np.int64):
        lengths = np.array(values, kind)
        assert bucket_of(lengths, boundaries).tolist() == [sum(edge < each for edge in boundaries[1:-1]) for each in values]


@given(few_lengths, st.integers(1, 9))
def test_a_boundary_belongs_to_the_bucket_below_it(lengths, buckets):
    boundaries = quantile_boundaries(lengths, buckets)
    for length, bucket in zip(lengths, bucket_of(lengths, boundaries), strict=True):
        assert boundaries[bucket] < length <= boundaries[bucket + 1]
    assert bucket_of(np.array([10, 11, 20, 99]), [0, 10, 20]).tolist() == [0, 1, 1, 1]
    assert int(bucket_of(11, [0, 10, 20])) == 1


def test_quantile_boundaries_share_out_samples_and_class_edges_share_out_tokens():
    lengths = np.random.default_rng(0).lognormal(7.3, 0.7, 50_000).clip(16, 8192).astype(np.int64)
    boundaries = quantile_boundaries(lengths, 6)
    samples = np.bincount(bucket_of(lengths, boundaries)) / lengths.size
    assert samples == pytest.approx(np.full(6, 1 / 6), abs=0.001)
    edges = length_class_edges(lengths)
    tokens = np.bincount(bucket_of(lengths, edges), lengths) / lengths.sum()
    assert edges.size == 17
    assert tokens[:-1] == pytest.approx(np.full(15, 1 / 16), abs=0.002)
    assert boundaries[-1] == edges[-1] == lengths.max()


@given(few_lengths)
def test_equal_edges_are_merged(lengths):
    for edges in (length_class_edges(lengths).tolist(), quantile_boundaries(lengths, 6)):
        assert edges[0] == 0
        assert edges[-1] == lengths.max()
        assert all(low < high for low, high in itertools.pairwise(edges))
    assert length_class_edges(np.array([7, 7, 7])).tolist() == [0, 7]


@pytest.mark.parametrize(
    ("lengths", "buckets", "limit", "words"),
    [
        ([], 1, None, "none"),
        ([0, 3], 1, None, "1 are below one token"),
        ([5, 9, 12], 1, 8, "limit=8: above it are 2 of 3 lengths, the longest 12"),
        ([5, 9], 3, None, "buckets=3: there are 2 distinct"),
        ([5, 9], 0, None, "buckets=0"),
    ],
)
def test_bad_requests_are_refused(lengths, buckets, limit, words):
    with pytest.raises(RefusedInput, match=words):
        optimal_boundaries(np.array(lengths, np.int64), buckets, limit)
