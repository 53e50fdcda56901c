"""A plan holds every chosen sample once, no batch over the budget, one of each stratum a window, and is the same anywhere."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching.order import mean_log_lengths
from dflash.batching.plan import EpochPlan, count_batches, plan_epoch
from dflash.config import BatchingConfig
from dflash.errors import RefusedInput

STRATEGIES = ["sorted", "shuffled", "bucketed", "jittered", "packed"]
LENGTHS = np.random.default_rng(0).lognormal(5.0, 0.7, 3000).clip(2, 1200).astype(np.int32)


def padded_tokens(plan: EpochPlan, lengths: np.ndarray) -> list[int]:
    if plan.packed:
        return [int(lengths[batch].sum()) for batch in plan]
    return [len(batch) * int(lengths[batch].max()) for batch in plan]


@st.composite
def requests(draw: st.DrawFn) -> tuple[np.ndarray, BatchingConfig, int, int, np.ndarray | None]:
    lengths = np.array(draw(st.lists(st.integers(1, 60), min_size=1, max_size=80)), np.int64)
    longest = int(lengths.max())
    settings = BatchingConfig(
        strategy=draw(st.sampled_from(STRATEGIES)),
        order=draw(st.sampled_from(["random", "stratified"])),
        boundaries=draw(st.sampled_from([None, [0, longest], [0, longest + 1, longest + 9], sorted({0, 7, 20, longest + 20})])),
        token_budget=longest + draw(st.integers(0, 120)),
        jitter=draw(st.integers(0, 9)),
        max_rows=draw(st.sampled_from([None, 1, 2, 5])),
        seed=draw(st.integers(0, 2**40)),
    )
    ids = draw(st.none() | st.sets(st.integers(0, lengths.size - 1), min_size=1).map(lambda chosen: np.array(list(chosen))))
    return lengths, settings, draw(st.integers(0, 7)), draw(st.integers(1, 9)), ids


@given(requests())
def test_every_chosen_sample_is_planned_exactly_once_within_budget_and_rows(request_):
    lengths, settings, epoch, window, ids = request_
    plan = plan_epoch(lengths, settings, epoch=epoch, window=window, sample_ids=ids)
    assert sorted(plan.samples.tolist()) == sorted(range(lengths.size) if ids is None else ids.tolist())
    assert plan.offsets[0] == 0
    assert plan.offsets[-1] == plan.samples.size
    assert np.all(np.diff(plan.offsets) > 0)
    assert np.all(np.diff(plan.offsets) <= (settings.max_rows or lengths.size))
    assert max(padded_tokens(plan, lengths)) <= settings.token_budget
    again = plan_epoch(lengths, settings, epoch=epoch, window=window, sample_ids=None if ids is None else ids[::-1])
    assert np.array_equal(plan.samples, again.samples)
    assert np.array_equal(plan.offsets, again.offsets)
    assert count_batches(lengths, settings, epoch=epoch, sample_ids=ids) == len(plan)


@given(requests())
def test_no_two_packed_batches_could_have_been_one(request_):
    lengths, settings, epoch, window, ids = request_
    settings = settings.model_copy(update={"strategy": "packed", "max_rows": None})
    plan = plan_epoch(lengths, settings, epoch=epoch, window=window, sample_ids=ids)
    sizes = sorted(padded_tokens(plan, lengths))
    assert len(sizes) == 1 or sizes[0] + sizes[1] > settings.token_budget


@given(requests(), st.integers(0, 8))
def test_each_whole_window_holds_one_batch_of_each_stratum_after_those_that_complete_a_begun_one(request_, lead):
    lengths, settings, epoch, window, ids = request_
    settings = settings.model_copy(update={"order": "stratified"})
    plan = plan_epoch(lengths, settings, epoch=epoch, window=window, lead=lead, sample_ids=ids)
    assert sorted(plan.samples.tolist()) == sorted(range(lengths.size) if ids is None else ids.tolist())
    means = mean_log_lengths(lengths[plan.samples].astype(np.int32), plan.offsets)[lead:]
    whole = means.size // window
    per_window = np.sort(means[: whole * window].reshape(whole, window), axis=1)
    for stratum in range(window - 1):
        assert whole == 0 or per_window[:, stratum].max() <= per_window[:, stratum + 1].min()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("order", ["random", "stratified"])
def test_next_epoch_and_other_seed_differ(strategy, order):
    settings = BatchingConfig(strategy=strategy, order=order, token_budget=4096, seed=3)
    first = plan_epoch(LENGTHS, settings, epoch=0, window=8)
    for other in (
        plan_epoch(LENGTHS, settings, epoch=1, window=8),
        plan_epoch(LENGTHS, settings.model_copy(update={"seed": 4}), epoch=0, window=8),
    ):
        assert not np.array_equal(first.samples, other.samples)
        same_members = {frozenset(batch.tolist()) for batch in first} & {frozenset(batch.tolist()) for batch in other}
        assert len(same_members) == len(first) if strategy == "sorted" else len(same_members) < 0.1 * len(first)


def test_the_plan_is_the_same_on_every_machine():
    plan = plan_epoch(LENGTHS[:12], BatchingConfig(token_budget=600, seed=7), epoch=2, window=2)
    assert [batch.tolist() for batch in plan] == [[9, 10, 8, 1], [6], [2, 7], [4, 3, 11], [5, 0]]


def test_bucketed_batches_stay_inside_their_bucket():
    boundaries = [0, 90, 180, 400, 1200, 1300]
    plan = plan_epoch(LENGTHS, BatchingConfig(strategy="bucketed", boundaries=boundaries, token_budget=4096), epoch=0, window=4)
    for batch in plan:
        rows = LENGTHS[batch]
        assert any(low < rows.min() and rows.max() <= high for low, high in itertools.pairwise(boundaries))


def test_jitter_bounds_the_spread_of_a_batch_and_zero_still_redraws_ties():
    for jitter in (0, 5, 40):
        settings = BatchingConfig(jitter=jitter, token_budget=4096)
        plan = plan_epoch(LENGTHS, settings, epoch=0, window=4)
        bounds = [(int(LENGTHS[batch].min()), int(LENGTHS[batch].max())) for batch in plan]
        for one, other in itertools.combinations(bounds, 2):
            assert min(one[1] - other[0], other[1] - one[0]) <= 2 * jitter
    equal = np.full(500, 10)
    settings = BatchingConfig(jitter=0, token_budget=100)
    first, second = (plan_epoch(equal, settings, epoch=epoch, window=4) for epoch in (0, 1))
    assert not {frozenset(b.tolist()) for b in first} & {frozenset(b.tolist()) for b in second}


def test_remainder_is_a_systematic_sample_over_the_lengths():
    settings = BatchingConfig(token_budget=2048, jitter=0)
    count = count_batches(LENGTHS, settings, epoch=0)
    window = next(size for size in range(20, 60) if count % size > size // 2)
    plan = plan_epoch(LENGTHS, settings, epoch=0, window=window)
    means = mean_log_lengths(LENGTHS[plan.samples], plan.offsets)
    rest = np.sort(np.argsort(np.argsort(means, kind="stable"))[-(count % window) :])
    assert np.all(np.abs(np.diff(rest) - count / rest.size) <= 1)


@pytest.mark.parametrize(
    ("lengths", "settings", "words"),
    [
        ([], {}, ["lengths", "no samples"]),
        ([3, 0, 4, 0], {}, ["2 of 4", "sample 1"]),
        ([3, -5], {}, ["sample 1", "-5"]),
        ([3.0, 4.0], {}, ["whole numbers", "float64"]),
        ([[1, 2]], {}, ["one column"]),
        ([2**31], {"token_budget": 2**40}, ["32 bits"]),
        ([5, 90, 80], {"token_budget": 64}, ["batching.token_budget=64", "2 of 3", "longest 90", "batching.token_budget=90"]),
        ([5, 90], {"strategy": "bucketed", "boundaries": [0, 10, 64]}, ["batching.boundaries", "1 of 2", "90 or more"]),
    ],
)
def test_input_that_can_not_be_planned_is_refused_by_name_with_a_remedy(lengths, settings, words):
    for call in (
        lambda: plan_epoch(np.array(lengths), BatchingConfig(**settings), epoch=0, window=4),
        lambda: count_batches(np.array(lengths), BatchingConfig(**settings), epoch=0),
    ):
        with pytest.raises(RefusedInput) as caught:
            call()
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_bad_sample_ids_and_window_are_refused():
    settings = BatchingConfig()
    for ids, word in (([1, 1], "twice"), ([-1], "from 0"), ([3000], "to 2999"), ([], "no samples")):
        with pytest.raises(RefusedInput, match=word):
            plan_epoch(LENGTHS, settings, epoch=0, window=4, sample_ids=np.array(ids, np.int64))
    with pytest.raises(RefusedInput, match=r"batching.window=0"):
        plan_epoch(LENGTHS, settings, epoch=0, window=0)


def test_a_sample_left_out_may_be_longer_than_the_budget():
    lengths = np.array([5, 9999, 7])
    plan = plan_epoch(lengths, BatchingConfig(token_budget=20), epoch=0, window=4, sample_ids=[0, 2])
    assert sorted(plan.samples.tolist()) == [0, 2]


def test_batch_refuses_a_number_outside_the_plan():
    plan = plan_epoch(LENGTHS, BatchingConfig(), epoch=0, window=4)
    with pytest.raises(IndexError):
        plan.batch(len(plan))
    with pytest.raises(IndexError):
        plan.batch(-1)


def test_importing_the_room_does_not_import_torch():
    code = "import dflash.batching.plan, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
