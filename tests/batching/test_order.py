"""The order batches run in: the strata of a window, and what happens at its edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching.draws import generator
from dflash.batching.order import stratified_order


@given(batches=st.integers(1, 300), window=st.integers(1, 40), lead=st.integers(0, 45), seed=st.integers(0, 9))
def test_every_batch_runs_once_and_each_whole_window_holds_each_stratum_once(batches, window, lead, seed):
    order = stratified_order(np.arange(batches, dtype=float), window, generator(seed, 0, "order"), lead)
    assert sorted(order) == list(range(batches))
    left = np.setdiff1d(np.arange(batches), order[:lead])
    windows = len(left) // window
    kept = np.sort(order[lead : lead + windows * window])
    stratum = {batch: rank // windows for rank, batch in enumerate(kept)} if windows else {}
    for start in range(lead, lead + windows * window, window):
        assert sorted(stratum[batch] for batch in order[start : start + window]) == list(range(window))


def unevenness(values, window):
    """Variance of the means of windows over that of independent draws."""
    means = values[: len(values) // window * window].reshape(-1, window).mean(axis=1)
    return means.var() / (values.var() / window)


@pytest.mark.parametrize("seed", range(4))
def test_batches_that_finish_late_stray_into_the_next_window_at_little_cost(seed):
    """Five workers whose seconds vary by a tenth: what ends late runs late."""
    draws, window = np.random.default_rng(seed), 32
    lengths = np.sort(draws.lognormal(7.4, 0.7, 200 * window))
    order = stratified_order(lengths, window, generator(seed, 0, "order"))
    ends, free = [], [0.0] * 5
    for _ in order:
        worker = int(np.argmin(free))
        free[worker] += draws.normal(1, 0.1)
        ends.append(free[worker])
    trained = np.log(lengths[order][np.argsort(ends, kind="stable")])
    assert unevenness(trained, window) < 1.15 * unevenness(np.log(lengths[order]), window) < 0.02


@pytest.mark.parametrize("window", [4, 7, 8, 32])
def test_the_middle_lengths_stand_next_to_the_edges(window):
    order = stratified_order(np.arange(window * 50, dtype=float), window, generator(0, 0, "order"))
    extremity = np.abs(2 * (order.reshape(50, window) // 50) - (window - 1))
    quarter = window // 4
    assert (np.diff(extremity[:, :quarter]) >= 0).all()
    assert (np.diff(extremity[:, -quarter:]) <= 0).all()


@pytest.mark.parametrize("window", [7, 8, 32])
def test_the_batches_on_both_sides_of_an_edge_are_of_the_same_lengths(window):
    order = stratified_order(np.arange(window * 50, dtype=float), window, generator(0, 0, "order"))
    strata = order.reshape(50, window) // 50
    assert np.array_equal(strata[0::2], strata[1::2, ::-1])
    assert np.array_equal(strata[1:-1:2], strata[2::2, ::-1])
