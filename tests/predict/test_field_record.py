"""The field record's figures, from its config alone (docs/field-record.md shows the same)."""

import pytest

from dflash.predict.simulation import simulate

SECOND_PART = ("simulation.target_per_padded_token=3.255e-4", "simulation.drafter_per_token=3.17e-4", "simulation.hours=4")
"""16 s a full target batch, 13 s a drafter batch of 41,000 tokens."""
OURS = ("batching.strategy=jittered", "batching.order=stratified", "pool.policy=oldest")


@pytest.mark.parametrize(
    ("strategy", "low", "high"), [("sorted", 31.5, 32.5), ("bucketed", 24.35, 25.85), ("shuffled", 11.9, 15.0)]
)
def test_the_first_parts_rates(field, strategy, low, high):
    run = simulate(field(f"batching.strategy={strategy}"))
    assert low <= run.ktok_s <= high
    assert run.bottleneck == "targets"


def test_padding_alone_does_not_explain_the_shuffled_rate(field):
    run = simulate(field("batching.strategy=shuffled"))
    assert run.ktok_s > 1.1 * 11.9


def test_jittered_and_stratified_is_as_fast_as_sorted_and_far_more_even(field):
    run = simulate(field(*OURS))
    assert run.ktok_s >= 31
    assert run.mix["vr"]["32"] <= 0.15


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_the_mix_holds_however_unevenly_the_workers_run(field, noise):
    run = simulate(field(*OURS, f"simulation.noise={noise}", "simulation.seed=1"))
    assert run.ktok_s >= 31
    assert run.mix["vr"]["32"] <= 0.15


@pytest.mark.slow
def test_three_drafters_bound_the_second_part_whatever_the_policy(field):
    rates = [
        simulate(field(*SECOND_PART, f"pool.policy={policy}")).ktok_s for policy in ("oldest", "random", "round_robin", "deficit")
    ]
    assert rates == pytest.approx([9.3] * 4, rel=0.03)


def test_waiting_round_robin_deadlocks_and_names_who_waits_for_what(field):
    run = simulate(field(*SECOND_PART, "pool.policy=round_robin_wait"))
    assert run.ktok_s == 0
    assert run.eta_days is None
    assert run.bottleneck == "deadlock"
    assert "target-4 is blocked" in run.deadlock
    assert "waits for an item of length bucket 0" in run.deadlock


@pytest.mark.slow
def test_with_a_time_out_it_loses_a_fifth(field):
    free = simulate(field(*SECOND_PART))
    waiting = simulate(field(*SECOND_PART, "pool.policy=round_robin_wait", "pool.wait_seconds=5"))
    assert 0.75 <= waiting.ktok_s / free.ktok_s <= 0.85


def test_skipping_round_robin_leaves_a_pool_of_the_longest(field):
    items = simulate(field(*SECOND_PART, "pool.policy=round_robin")).pool["by_bucket"]
    assert items[-1] > 0.8 * sum(items)
    assert max(items[:3]) < 1
    spread = simulate(field(*SECOND_PART, "pool.policy=oldest")).pool["by_bucket"]
    assert spread[-1] < 0.6 * sum(spread)
