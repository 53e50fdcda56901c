"""Simulated runs: what is reported, and the properties every run keeps."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash.cli.output import plain
from dflash.errors import RefusedInput
from dflash.pool.policies import POLICIES, PolicyState
from dflash.pool.pool import PoolItem
from dflash.predict.lifts import explain_bottleneck, simulate_lifts
from dflash.predict.simulation import BLOCKS, rate, simulate
from dflash.predict.workload import draw_lengths, load_workload


def test_a_small_run_is_simulated_whole_and_its_time_adds_up(small):
    config = small()
    run = simulate(config)
    assert run.tokens == 2 * int(draw_lengths(config.simulation).sum())
    for shares in run.workers.values():
        assert sum(shares.values()) == pytest.approx(1, abs=2e-3)
    assert run.interval[0] <= run.ktok_s <= run.interval[1]
    assert json.dumps(plain(vars(run)))


def test_the_rate_equals_what_its_slower_side_allows(small):
    run = simulate(small("simulation.drafter_per_token=1e-3", "simulation.noise=0", "simulation.step_fixed=0"))
    assert run.bottleneck == "drafters"
    assert run.ktok_s == pytest.approx(1.0, rel=0.02)


def test_the_same_seed_gives_the_same_run(small):
    first, second, other = simulate(small()), simulate(small()), simulate(small("simulation.seed=1"))
    assert first.ktok_s == second.ktok_s
    assert first.mix == second.mix
    assert first.ktok_s != other.ktok_s


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    policy=st.sampled_from(sorted(set(POLICIES) - {"round_robin_wait"})),
    strategy=st.sampled_from(["sorted", "shuffled", "bucketed", "jittered", "packed"]),
    topology=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)),
    capacity=st.integers(1, 5),
    cores=st.integers(0, 3),
    engine=st.sampled_from(["simulated", "inline", "ray"]),
    samples=st.integers(1, 60),
)
def test_no_policy_topology_or_machine_deadlocks_or_breaks_the_pools_bounds(
    small, policy, strategy, topology, capacity, cores, engine, samples
):
    targets, drafters, prefetch = topology
    config = small(
        f"pool.policy={policy}", f"batching.strategy={strategy}", f"pipeline.targets={targets}", f"pipeline.drafters={drafters}",
        f"pipeline.prefetch={prefetch}", f"pool.capacity_items={capacity}", f"simulation.cores={cores}", f"pipeline.engine={engine}",
        f"simulation.samples={samples}", "batching.token_budget=2048", "simulation.copy_fixed=0.01", "pool.capacity_bytes=300000000",
        "simulation.checkpoint_seconds=0.1",
    )  # fmt: skip
    run = simulate(config)
    assert run.deadlock is None
    assert run.tokens == 2 * int(draw_lengths(config.simulation).sum())
    assert run.pool["peak_bytes"] <= 300_000_000
    assert run.pool["items"] <= capacity


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(["oldest", "round_robin"]),
    buckets=st.lists(st.integers(0, 4), min_size=30, max_size=120),
    capacity=st.integers(1, 9),
)
def test_no_item_is_overtaken_more_often_than_its_policys_bound(policy, buckets, capacity):
    """oldest: never by a batch after it; round robin: by its bucket's earlier items, each in at most `buckets` pulls of one drafter."""
    state, waiting, ahead, overtaken = PolicyState(5), [], {}, {}
    arrivals = [PoolItem(number, bucket, 1, 1, 0.0) for number, bucket in enumerate(buckets)]
    while arrivals or waiting:
        while arrivals and len(waiting) < capacity:
            item = arrivals.pop(0)
            ahead[item.key] = sum(other.bucket == item.bucket for other in waiting)
            overtaken[item.key] = 0
            waiting.append(item)
        pulled = POLICIES[policy](waiting, 0, state)
        waiting.remove(pulled)
        for item in waiting:
            overtaken[item.key] += pulled.key > item.key if policy == "oldest" else 1
    for key, times in overtaken.items():
        assert times <= (0 if policy == "oldest" else 5 * (ahead[key] + 1))


def test_a_faster_bottleneck_lifts_the_rate_and_nothing_else_does(small):
    config = small("simulation.drafter_per_token=1e-3", "simulation.noise=0.02")
    now = simulate(config)
    lifts = {lift.resource: lift for lift in simulate_lifts(config, now)}
    assert lifts["drafter_speed"].gain == pytest.approx(0.2, abs=0.02)
    assert abs(lifts["target_speed"].gain) < 0.01
    assert "cores" not in lifts
    assert "drafters are busiest; each drafter 20% faster would lift" in explain_bottleneck(now, list(lifts.values()))
    assert explain_bottleneck(now, []) == "drafters are busiest; nothing was tried larger"
    weak = [replace(lift, gain=0.001) for lift in lifts.values()]
    assert "no resource alone, made 20% larger" in explain_bottleneck(now, weak)


def test_held_out_evaluation_takes_its_time_and_is_told(small):
    held = ("data.holdout=200", "simulation.noise=0", "simulation.drafter_per_token=1e-3")
    without = simulate(small(*held))
    run = simulate(small(*held, "evaluation.every=2"))
    assert run.tokens == without.tokens == 2 * load_workload(small(*held)).tokens
    assert run.stages["evaluation"] > 0
    lost = run.steps / 2 * run.stages["evaluation"]
    assert run.hours * 3_600 == pytest.approx(without.hours * 3_600 + lost, rel=0.05)
    assert run.ktok_s < without.ktok_s
    dearer = simulate(small(*held, "evaluation.every=2", "simulation.evaluation_share=1"))
    assert dearer.stages["evaluation"] > 1.5 * run.stages["evaluation"]


def test_shared_cores_are_a_resource_that_lifts(small):
    config = small("simulation.cores=1", "simulation.drafter_per_token=1e-4", "simulation.noise=0")
    now = simulate(config)
    lifts = {lift.resource: lift.gain for lift in simulate_lifts(config, now)}
    assert lifts["cores"] > 0.3


def test_an_interval_covers_the_mean_of_blocks():
    draws = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        ends = np.cumsum(draws.normal(1.0, 0.2, 101))
        mean, interval = rate([(float(end), 1_000) for end in ends])
        covered += interval[0] <= 1.0 <= interval[1]
        assert interval[0] < mean < interval[1]
    assert 0.9 <= covered / 200 <= 0.99
    assert rate([(2.0, 4_000)]) == (2.0, None)
    assert rate([]) == (0.0, None)
    assert BLOCKS == 10


def test_lengths_come_from_the_seed_or_a_file(small, tmp_path):
    drawn = load_workload(small()).lengths
    assert np.array_equal(drawn, load_workload(small()).lengths)
    assert not np.array_equal(drawn, load_workload(small("simulation.seed=3")).lengths)
    np.save(tmp_path / "lengths.npy", np.array([10, 20, 30], np.int32))
    assert load_workload(small(f"simulation.lengths={tmp_path}/lengths.npy")).tokens == 60


def test_without_a_data_set_the_message_says_how_to_do_without(small):
    with pytest.raises(RefusedInput, match=r"simulation\.lengths=lognormal"):
        simulate(small("simulation.lengths=data"))


@pytest.mark.parametrize(
    "samples", [("simulation.sigma=0",), ("simulation.samples=1",), ("simulation.shortest=2048", "simulation.longest=2048")]
)
def test_degenerate_lengths_are_simulated(small, samples):
    assert simulate(small(*samples)).ktok_s > 0


def test_predicting_needs_no_torch():
    code = (
        "import sys, dflash.cli.predict, dflash.predict.advice, dflash.predict.calibration, dflash.predict.pages, "
        "dflash.predict.plans, dflash.predict.replay; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
