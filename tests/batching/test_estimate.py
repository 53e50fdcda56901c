"""The estimate of a bucketed plan against plans that are really made."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.analysis import table_of
from dflash.batching.estimate import estimate_buckets, estimated_efficiency
from dflash.batching.figures import padded_tokens
from dflash.batching.plan import plan_epoch
from dflash.config import BatchingConfig
from dflash.errors import RefusedInput


def lengths_like_the_field(samples, seed=0):
    return np.clip(np.random.default_rng(seed).lognormal(np.log(1617), 0.7, samples), 16, 8192).astype(np.int32)


def planned(lengths, boundaries, budget, max_rows=None):
    config = BatchingConfig(strategy="bucketed", order="random", boundaries=boundaries, token_budget=budget, max_rows=max_rows)
    plan = plan_epoch(lengths, config, epoch=0, window=1)
    return int(lengths.sum(dtype=np.int64)) / int(padded_tokens(plan, lengths).sum()), len(plan)


@pytest.mark.parametrize("max_rows", [None, 16])
@pytest.mark.parametrize("boundaries", [[0, 8192], [0, 770, 1216, 1728, 2432, 3296, 8192], list(range(0, 8193, 512))])
def test_efficiency_and_batches_are_those_of_the_plan(boundaries, max_rows):
    lengths = lengths_like_the_field(200_000)
    buckets = estimate_buckets(table_of(lengths).whole, boundaries, 49_152, max_rows)
    efficiency, batches = planned(lengths, boundaries, 49_152, max_rows)
    assert estimated_efficiency(buckets) == pytest.approx(efficiency, rel=0.004)
    assert buckets["batches"].sum() == pytest.approx(batches, rel=0.004)
    assert buckets["samples"].sum() == lengths.size
    assert buckets["tokens"].sum() == lengths.sum(dtype=np.int64)


def test_rows_of_one_length_are_exact():
    buckets = estimate_buckets(table_of(np.full(1_000, 100)).whole, [0, 100], 1_050)
    assert buckets.select("rows", "padded_tokens", "batches").row(0) == (10.0, 100_000.0, 100.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(300, 3_000), st.integers(1, 6))
def test_padding_is_never_negative_and_a_batch_holds_at_least_a_row(lengths, budget, count):
    boundaries = [0, *sorted({300 * k // count for k in range(1, count + 1)})]
    buckets = estimate_buckets(table_of(np.array(lengths)).whole, boundaries, budget)
    assert (buckets["padded_tokens"] >= buckets["tokens"] * (1 - 1e-6)).all()
    assert (buckets["rows"] >= 1 - 1e-6).all()
    assert (buckets["padded_tokens"] <= buckets["samples"] * buckets["up_to"] * (1 + 1e-9)).all()


def test_what_does_not_cover_the_longest_row_is_refused():
    counts = table_of(np.array([10, 500])).whole
    with pytest.raises(RefusedInput, match="make the last one 500"):
        estimate_buckets(counts, [0, 400], 1_000)
    with pytest.raises(RefusedInput, match="token_budget=300"):
        estimate_buckets(counts, [0, 500], 300)
