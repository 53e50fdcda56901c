"""Figures of boundaries at once, and the effect of a live change, held against the simulation."""

import numpy as np
import pytest

from dflash.batching.analysis import table_of
from dflash.errors import RefusedInput
from dflash.predict.changes import changed, effect_of
from dflash.predict.plans import workload_of
from dflash.predict.quick import boundary_figures, record_config
from dflash.predict.simulation import simulate


@pytest.fixture(scope="module")
def lengths():
    return np.clip(np.random.default_rng(1).lognormal(np.log(1617), 0.7, 40_000), 64, 8192).astype(np.int32)


def with_batching(**values):
    config = record_config()
    return config.model_copy(update={"batching": config.batching.model_copy(update=values)})


@pytest.mark.parametrize("boundaries", [[0, 8192], [0, 770, 1216, 1728, 2432, 3296, 8192]])
def test_the_rate_is_what_a_simulation_comes_near_and_does_not_pass(lengths, boundaries):
    config = with_batching(strategy="bucketed", boundaries=boundaries)
    figures = boundary_figures(table_of(lengths).whole, boundaries, config)
    simulated = simulate(config, hours=1.0, workload=workload_of(lengths, config, "lengths")).ktok_s
    assert 0.93 * figures.ktok_s <= simulated <= 1.02 * figures.ktok_s


def test_shares_of_batches_sum_to_one(lengths):
    figures = boundary_figures(table_of(lengths).whole, [0, 1000, 2000, 8192], record_config())
    assert figures.buckets["batch_share"].sum() == pytest.approx(1.0)
    assert figures.batches == pytest.approx(figures.buckets["batches"].sum())


def test_a_shuffle_is_predicted_to_cost_half_the_rate(lengths):
    config = record_config()
    effect = effect_of(config, "batching.strategy", "shuffled", workload_of(lengths, config, "lengths"))
    assert (effect.old, effect.new) == ("jittered", "shuffled")
    assert 0.4 < effect.rate_ratio < 0.52
    assert effect.padding_efficiency[0] > 0.95 > 0.5 > effect.padding_efficiency[1]
    assert "rate -" in effect.sentence()


def test_a_waiting_policy_is_predicted_to_deadlock(lengths):
    config = record_config()
    effect = effect_of(config, "pool.policy", "round_robin_wait", workload_of(lengths, config, "lengths"))
    if effect.deadlock:
        assert effect.rate_ratio is None
        assert "deadlock" in effect.sentence()


@pytest.mark.parametrize(("key", "value"), [("pool.capacity_items", -1), ("pool.colour", 3), ("nowhere.x", 1)])
def test_a_setting_that_is_none_is_refused(key, value):
    with pytest.raises(RefusedInput, match=r"pool|nowhere"):
        changed(record_config(), key, value)
