"""The simulated engine's clock: shared cores against a brute-force oracle, one hand, copies, noise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.config import EvaluationConfig, PipelineConfig
from dflash.pipeline.engines.simulated import BlockPlaces, CostModel, SimulatedEngine
from dflash.pipeline.jobs import Evaluate, PlannedBatch, Prefetch, Produce, Step, Train
from dflash.pipeline.ledger import BatchId


def batch(number=0, tokens=100, rows=1, longest=None, packed=False):
    longest = longest or tokens // rows
    padded = tokens if packed else rows * longest
    return PlannedBatch(
        BatchId(0, 0, number), np.arange(rows), rows, tokens, padded, longest, rows * longest**2, 0, (0,) * 16, packed
    )  # fmt: skip


def engine(costs, **extra):
    return SimulatedEngine(PipelineConfig(engine="simulated", targets=9, drafters=2), costs, **extra)


def ends(machine, jobs):
    """When each job started at time 0 ends."""
    for job in jobs:
        machine.submit(job)
    found = {}
    while len(found) < len(jobs):
        for completion in machine.wait(None):
            found[completion.job.worker] = machine.now()
    return [found[job.worker] for job in jobs]


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(0, 4))
def test_processor_sharing_equals_a_brute_force_clock(tokens, cores):
    machine = engine(CostModel(target_per_padded_token=1.0), cores=cores)
    found = ends(machine, [Produce(number, batch(number, each)) for number, each in enumerate(tokens)])
    left, expected, clock = [float(each) for each in tokens], [0.0] * len(tokens), 0.0
    while any(left):
        active = [at for at, each in enumerate(left) if each > 0]
        pace = min(1.0, cores / len(active)) if cores else 1.0
        step = min(left[at] for at in active)
        clock += step / pace
        for at in active:
            left[at] = 0.0 if left[at] - step < 1e-9 else left[at] - step
            expected[at] = clock if left[at] == 0.0 else expected[at]
    assert found == pytest.approx(expected)


def test_one_hand_runs_drafters_first_and_counts_the_wait_as_blocked():
    machine = engine(CostModel(target_per_padded_token=1.0, drafter_per_token=1.0, prefetch_fixed=5.0), serial=True)
    for job in (Prefetch(0, batch(0)), Produce(0, batch(1, 10)), Train(0, batch(2, 20), 1, False), Step(1, 0.1)):
        machine.submit(job)
    order = [machine.wait(None)[0] for _ in range(4)]
    assert [type(each.job).__name__ for each in order] == ["Step", "Train", "Produce", "Prefetch"]
    assert [each.extra_seconds["blocked"] for each in order] == [0, 0, 20, 30]
    assert machine.now() == 35


def test_copies_take_the_workers_time_but_no_core():
    costs = CostModel(target_per_padded_token=1.0, copy_fixed=1.0, copy_bytes_per_second=10.0)
    machine = engine(costs, cores=1, feature_bytes_per_token=2)
    machine.submit(Produce(0, batch(0, 10)))
    machine.submit(Produce(1, batch(1, 10)))
    completions = []
    while len(completions) < 2:
        completions += machine.wait(None)
    assert machine.now() == pytest.approx(20 + 1 + 2)
    assert [each.busy_seconds for each in completions] == pytest.approx([20, 20])


def test_what_ends_at_one_instant_is_told_at_once_in_the_order_it_was_started():
    machine = engine(CostModel(target_per_padded_token=1.0))
    for number, tokens in enumerate([10, 10, 11, 10]):
        machine.submit(Produce(number, batch(number, tokens)))
    assert [each.job.worker for each in machine.wait(None)] == [0, 1, 3]
    assert [each.job.worker for each in machine.wait(None)] == [2]
    assert machine.jobs_done == 4


def test_evaluation_costs_a_share_of_training_with_its_own_anchors():
    places = BlockPlaces(lengths=np.array([100, 10]), places=np.array([60, 4]))
    costs = CostModel(drafter_per_token=0.1, drafter_per_anchor=1.0, drafter_metrics=6.0, evaluation_share=0.5)
    machine = engine(costs, blocks=places, evaluation=EvaluationConfig(anchors=8, decode_tokens=7))
    machine.submit(Evaluate(0, batch(0, 110, rows=2)))
    walked = 6 + 4  # places of an answer of seven tokens; of one that has four
    assert machine.wait(None)[0].busy_seconds == pytest.approx(0.5 * (11 + 12 + walked + 6))


def test_patience_moves_the_clock_no_further():
    machine = engine(CostModel(target_per_padded_token=1.0))
    machine.submit(Produce(0, batch(0, 10)))
    assert machine.wait(4.0) == []
    assert machine.now() == 4.0
    assert len(machine.wait(None)) == 1
    assert machine.now() == 10.0


def test_blocks_are_bounded_by_budget_and_by_places():
    places = BlockPlaces(lengths=np.array([100, 10, 50]), places=np.array([60, 4, 0]))
    assert places.of(np.array([0, 1, 2]), 8) == (12, 8 * 100 + 4 * 10)
    costs = CostModel(drafter_per_token=0.0, drafter_per_anchor=1.0, drafter_per_anchor_token=0.01, drafter_metrics=100.0)
    machine = engine(costs, blocks=places)
    machine.submit(Train(0, batch(0, 160, rows=3), 8, True))
    assert machine.wait(None)[0].busy_seconds == pytest.approx(12 + 8.4 + 100)


def test_terms_add_up_and_a_faster_stage_is_faster_by_the_factor():
    costs = CostModel(target_fixed=1, target_per_row=2, target_per_padded_token=0.1, target_per_length_squared=0.01, step_fixed=3)
    job = Produce(0, batch(0, 30, rows=2, longest=20))
    assert costs.seconds(job) == pytest.approx(1 + 4 + 4 + 8)
    assert costs.faster("target", 2).seconds(job) == pytest.approx(17 / 2)
    assert costs.faster("target", 2).seconds(Step(1, 0.1)) == 3


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 0.3), st.integers(0, 5))
def test_noise_has_mean_one_and_the_same_seed_repeats_it(noise, seed):
    def times():
        machine, seconds = engine(CostModel(target_per_padded_token=1.0, noise=noise), seed=seed), []
        for number in range(400):
            machine.submit(Produce(0, batch(number, 100)))
            seconds += [each.busy_seconds for each in machine.wait(None)]
        return seconds

    first = times()
    assert first == times()
    assert np.mean(first) == pytest.approx(100, abs=100 * noise * 5 / 20)
