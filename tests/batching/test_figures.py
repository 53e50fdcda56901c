"""Figures of a plan against definitions written another way: brute force, Monte Carlo, and the measured reference table."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching.boundaries import length_class_edges
from dflash.batching.figures import membership_reuse, plan_figures
from dflash.batching.plan import EpochPlan, plan_epoch
from dflash.config import BatchingConfig

FIELD_BOUNDARIES = [0, 770, 1216, 1728, 2432, 3296, 8192]


def field_like(samples: int, sigma: float = 0.65, seed: int = 0) -> np.ndarray:
    """Lengths like the reference data's, mean about 2,040."""
    draws = np.random.default_rng(seed)
    return draws.lognormal(math.log(2060) - sigma**2 / 2, sigma, samples).clip(16, 8192).astype(np.int32)


def plan_of(batches: list[list[int]], *, packed: bool = True) -> EpochPlan:
    offsets = np.cumsum([0, *(len(batch) for batch in batches)])
    return EpochPlan(np.array(list(itertools.chain(*batches)), np.int64), offsets, packed)


def random_plan(samples: int, rows: int, draws: np.random.Generator) -> EpochPlan:
    order = draws.permutation(samples)
    return EpochPlan(order, np.minimum(np.arange(0, samples + rows, rows), samples), packed=True)


partitions = st.lists(st.integers(0, 5), min_size=1, max_size=40).map(
    lambda labels: [[i for i, label in enumerate(labels) if label == which] for which in sorted(set(labels))]
)


@given(partitions, partitions)
def test_membership_reuse_counts_pairs_like_brute_force(now, before):
    def pairs(batches: list[list[int]]) -> set[tuple[int, int]]:
        return {pair for batch in batches for pair in itertools.combinations(batch, 2)}

    ours = pairs(now)
    expected = len(ours & pairs(before)) / len(ours) if ours else 0.0
    assert membership_reuse(plan_of(now), plan_of(before)) == pytest.approx(expected)


@pytest.mark.parametrize("packed", [False, True])
def test_padding_figures_of_a_plan_by_hand(packed):
    lengths = np.array([3, 5, 4, 1])
    figures = plan_figures(plan_of([[1, 0], [2, 3]], packed=packed), lengths, BatchingConfig(token_budget=20))
    assert figures.batches == 2
    assert figures.max_padded_tokens == (8 if packed else 10)
    assert figures.padding_efficiency == pytest.approx(1.0 if packed else 13 / 18)
    assert figures.fill == pytest.approx(13 / 40 if packed else 18 / 40)
    assert figures.membership_reuse is None


def literal_evenness(plan: EpochPlan, lengths: np.ndarray, window: int) -> tuple[float, float]:
    """vr and chi with loops, from the definitions: token-weighted means, shares, and the moments of one sample."""
    total = sum(int(lengths[i]) for i in plan.samples)
    mean = sum(lengths[i] * math.log(lengths[i]) for i in plan.samples) / total
    edges = length_class_edges(lengths[plan.samples])
    classes = list(itertools.pairwise(edges.tolist()))
    share = [sum(int(n) for n in lengths[plan.samples] if low < n <= high) / total for low, high in classes]
    finite = plan.samples.size / (plan.samples.size - 1)
    one_log = sum((lengths[i] * (math.log(lengths[i]) - mean)) ** 2 for i in plan.samples) / total
    one_class = sum(
        (lengths[i] * ((low < lengths[i] <= high) - q)) ** 2 / q
        for i in plan.samples
        for (low, high), q in zip(classes, share, strict=True)
    )
    log_sum = class_sum = weight = 0.0
    for start in range(0, len(plan) - window + 1, window):
        rows = [int(lengths[i]) for b in range(start, start + window) for i in plan.batch(b)]
        tokens = sum(rows)
        window_mean = sum(n * math.log(n) for n in rows) / tokens
        window_share = [sum(n for n in rows if low < n <= high) / tokens for low, high in classes]
        log_sum += tokens**2 * (window_mean - mean) ** 2
        class_sum += tokens**2 * sum((p - q) ** 2 / q for p, q in zip(window_share, share, strict=True))
        weight += tokens * (1 - tokens / total)
    return log_sum / (one_log * weight * finite), class_sum / (one_class / total * weight * finite)


@pytest.mark.parametrize("strategy", ["sorted", "shuffled", "jittered", "packed"])
def test_vr_and_chi_equal_the_definition_written_with_loops(strategy):
    lengths = field_like(1500, seed=1)
    settings = BatchingConfig(strategy=strategy, order="random", token_budget=16384)
    plan = plan_epoch(lengths, settings, epoch=0, window=8)
    figures = plan_figures(plan, lengths, settings)
    for window in (1, 8, 16, 32):
        vr, chi = literal_evenness(plan, lengths, window)
        assert figures.vr[str(window)] == pytest.approx(vr)
        assert figures.chi[str(window)] == pytest.approx(chi)


def test_expectation_under_independent_sampling_matches_monte_carlo():
    """D_W^2 of windows drawn until their tokens are reached averages to s2 x tokens (Wald), for vr and for chi."""
    lengths = field_like(400, sigma=0.7).astype(np.int64)
    draws = np.random.default_rng(5)
    total = lengths.sum()
    off = lengths * (np.log(lengths) - (lengths @ np.log(lengths)) / total)
    edges = length_class_edges(lengths)
    member = np.searchsorted(edges[1:-1], lengths)[:, None] == np.arange(edges.size - 1)
    share = lengths @ member / total
    class_off = lengths[:, None] * (member - share) / np.sqrt(share)
    log_squares, class_squares, tokens = [], [], []
    for _ in range(6000):
        drawn = draws.integers(0, lengths.size, 60)
        stop = int(np.searchsorted(np.cumsum(lengths[drawn]), 49_152)) + 1  # a stopping time, as Wald's identity asks
        drawn = drawn[:stop]
        tokens.append(lengths[drawn].sum())
        log_squares.append(off[drawn].sum() ** 2)
        class_squares.append((class_off[drawn].sum(axis=0) ** 2).sum())
    log_rate = (off @ off) / total
    class_rate = (class_off**2).sum() / total
    assert np.mean(log_squares) / (log_rate * np.mean(tokens)) == pytest.approx(1.0, abs=0.06)
    assert np.mean(class_squares) / (class_rate * np.mean(tokens)) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("samples", [96, 20_000])
def test_random_batches_score_one_in_small_and_in_large_data(samples):
    lengths = field_like(samples, sigma=0.7)
    draws = np.random.default_rng(2)
    repeats = 600 if samples < 1000 else 6
    found = [plan_figures(random_plan(samples, 4, draws), lengths, BatchingConfig()) for _ in range(repeats)]
    for window in ("1", "8"):
        assert np.mean([figures.vr[window] for figures in found]) == pytest.approx(1.0, abs=0.08)
        assert np.mean([figures.chi[window] for figures in found]) == pytest.approx(1.0, abs=0.05)


def test_evenness_is_none_where_there_is_nothing_to_measure():
    settings = BatchingConfig(token_budget=100)
    equal = np.full(400, 10)
    assert set(plan_figures(plan_epoch(equal, settings, epoch=0, window=8), equal, settings).vr.values()) == {None}
    few = np.arange(1, 31)
    figures = plan_figures(plan_epoch(few, settings, epoch=0, window=8), few, settings)
    assert figures.vr["1"] is not None
    assert figures.vr["32"] is None
    assert figures.chi["32"] is None


def test_figures_do_not_depend_on_the_dtype_of_the_lengths():
    lengths = field_like(2000)
    settings = BatchingConfig()
    plan = plan_epoch(lengths, settings, epoch=0, window=8)
    assert plan_figures(plan, lengths.astype(np.uint16), settings) == plan_figures(plan, lengths, settings)


@pytest.fixture(scope="module")
def reference_lengths() -> np.ndarray:
    return field_like(300_000)


@pytest.mark.parametrize(
    ("strategy", "order", "window", "efficiency", "vr", "chi_32", "reuse"),
    [
        ("sorted", "random", 32, 0.9999, (14, 14, 14, 14), 16, 1.0),
        ("shuffled", "random", 32, 0.46, (1.25, 1.0, 1.0, 1.0), 1.0, 3e-5),
        ("bucketed", "random", 32, 0.80, (10, 10, 10, 10), 4.3, 8e-4),
        ("jittered", "random", 32, 0.986, (14, 14, 14, 14), 15, 0.0145),
        ("packed", "random", 32, 1.0, (1, 1, 1, 1), 1.0, 8e-5),
    ],
)
def test_the_measured_table_is_reproduced(reference_lengths, strategy, order, window, efficiency, vr, chi_32, reuse):
    """Reference values for 902,000 lengths; reuse falls as samples grow in number and is scaled to the 300,000 here."""
    settings = BatchingConfig(strategy=strategy, order=order, boundaries=FIELD_BOUNDARIES if strategy == "bucketed" else None)
    plan, following = (plan_epoch(reference_lengths, settings, epoch=epoch, window=window) for epoch in (0, 1))
    figures = plan_figures(plan, reference_lengths, settings, following)
    assert figures.padding_efficiency == pytest.approx(efficiency, abs=0.02)
    assert [figures.vr[key] for key in ("1", "8", "16", "32")] == pytest.approx(list(vr), rel=0.2)
    assert figures.chi["32"] == pytest.approx(chi_32, rel=0.2)
    assert figures.membership_reuse == pytest.approx(reuse, rel=0.35)


@pytest.mark.parametrize(
    ("strategy", "efficiency", "fill", "chi_32"), [("jittered", 0.98, 0.96, 0.8), ("packed", 1.0, 0.995, 0.95)]
)
def test_stratified_windows_are_more_even_than_random_at_no_padding(reference_lengths, strategy, efficiency, fill, chi_32):
    settings = BatchingConfig(strategy=strategy, order="stratified")
    figures = plan_figures(plan_epoch(reference_lengths, settings, epoch=0, window=32), reference_lengths, settings)
    assert figures.padding_efficiency >= efficiency
    assert figures.fill >= fill
    assert figures.vr["32"] <= 0.15
    assert figures.chi["32"] <= chi_32
    assert max(figures.vr["32"], figures.vr["16"]) < figures.vr["8"] < figures.vr["1"]


def test_a_window_that_is_shifted_loses_the_evenness(reference_lengths):
    settings = BatchingConfig()
    plan = plan_epoch(reference_lengths, settings, epoch=0, window=32)
    shifted = EpochPlan(plan.samples[plan.offsets[13] :], plan.offsets[13:] - plan.offsets[13], plan.packed)
    aligned = plan_figures(plan, reference_lengths, settings).vr["32"]
    assert plan_figures(shifted, reference_lengths, settings).vr["32"] > 3 * aligned
