"""The coordinator on the simulated engine: exactly once, work-conserving, bounded, and time that adds up."""

import time
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash.errors import RefusedInput, RunFailed
from dflash.model.results import StepResult
from dflash.pipeline.coordinator import Deadlock
from dflash.pipeline.engines.simulated import NO_BLOCKS, CostModel, SimulatedEngine
from dflash.pipeline.jobs import Completion, Decode, Produce, Save, Step
from dflash.pipeline.ledger import BatchId
from dflash.pool.policies import POLICIES
from dflash.telemetry.accounts import STATES
from tests.pipeline.kept_states import Store

TOPOLOGY = ("pipeline.targets=5", "pipeline.drafters=3")
RECORD_COSTS = CostModel(target_per_padded_token=16 / 45_000, drafter_per_token=13 / 45_000, noise=0.1)


def record_lengths(samples, seed=0):
    draws = np.random.default_rng(seed).lognormal(np.log(1728), 0.6, samples)
    return np.clip(draws, 16, 8192).astype(np.int32)


POLICY_SETTINGS = {policy: (f"pool.policy={policy}", "pool.wait_seconds=5") for policy in POLICIES}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    policy=st.sampled_from(sorted(POLICIES)),
    strategy=st.sampled_from(["sorted", "shuffled", "bucketed", "jittered", "packed"]),
    order=st.sampled_from(["random", "stratified"]),
    topology=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4)),
    capacity=st.integers(1, 6),
    accumulate=st.integers(1, 7),
)
def test_every_sample_is_trained_once_an_epoch(simulate, lengths, policy, strategy, order, topology, capacity, accumulate):
    targets, drafters, prefetch = topology
    run, seen = simulate(
        lengths,
        *POLICY_SETTINGS[policy],
        f"batching.strategy={strategy}",
        f"batching.order={order}",
        "batching.token_budget=400",
        f"pipeline.targets={targets}",
        f"pipeline.drafters={drafters}",
        f"pipeline.prefetch={prefetch}",
        f"pool.capacity_items={capacity}",
        f"optim.accumulate={accumulate}",
        "optim.epochs=2",
        costs=CostModel(noise=0.3),
    )
    assert run.run() == "finished"
    expected = {(epoch, sample): 1 for epoch in range(2) for sample in range(len(lengths))}
    assert dict(seen.trained_samples) == expected
    assert run.progress.step == run.total_steps == len(seen.steps)
    assert run.progress.committed_tokens == 2 * sum(lengths)
    assert run.stock.pool.held_bytes == 0


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"round_robin_wait"}))
def test_policies_that_never_wait_have_the_same_throughput(simulate, policy):
    lengths = record_lengths(12_000)
    run, _ = simulate(lengths, *TOPOLOGY, f"pool.policy={policy}", "optim.epochs=1", costs=RECORD_COSTS)
    run.run()
    rate = run.progress.committed_tokens / run.engine.now()
    assert rate == pytest.approx(3 * 45_000 / 13, rel=0.06)  # three drafters at 13 s a full batch, less the waits for steps


def test_waiting_round_robin_deadlocks_and_says_who_waits_for_what(simulate):
    run, _ = simulate(record_lengths(6_000), *TOPOLOGY, "pool.policy=round_robin_wait", costs=RECORD_COSTS)
    with pytest.raises(Deadlock, match=r"pool.policy=round_robin_wait.*target-4 is blocked.*waits for an item of length bucket"):
        run.run()


def test_waiting_round_robin_with_a_time_out_costs_throughput(simulate):
    def rate(*policy):
        run, _ = simulate(record_lengths(12_000), *TOPOLOGY, *policy, "optim.epochs=1", costs=RECORD_COSTS)
        run.run()
        return run.progress.committed_tokens / run.engine.now()

    assert 0.75 < rate("pool.policy=round_robin_wait", "pool.wait_seconds=5") / rate("pool.policy=oldest") < 0.85


def test_a_drafter_never_waits_while_the_pool_holds_an_item_of_its_epoch(simulate):
    run, _ = simulate(record_lengths(3_000), *TOPOLOGY, "optim.epochs=2", costs=RECORD_COSTS)
    name_idle = run.crew.name_idle

    def check(reason):
        name_idle(reason)
        window = run.window
        waiting = any(True for _ in run.crew.idle("drafter"))
        if window is not None and window.taken < window.size and waiting:
            assert not [item for item in run.stock.pool.items if item.key.epoch == window.epoch]

    run.crew.name_idle = check
    run.run()


def test_oldest_keeps_the_planned_windows(simulate):
    run, seen = simulate(record_lengths(9_000), *TOPOLOGY, "optim.epochs=1", "optim.accumulate=16", costs=RECORD_COSTS)
    run.run()
    strayed = [trained.batch.id.number // 16 != report.step - 1 for report in seen.steps for trained in report.batches]
    assert np.mean(strayed) < 0.02


def test_windows_hold_one_epoch_and_the_last_one_of_an_epoch_is_short(simulate):
    run, seen = simulate([100] * 70, "batching.token_budget=1000", "optim.accumulate=4", "optim.epochs=3")
    run.run()
    assert [len(report.batches) for report in seen.steps] == [4, 3, 4, 3, 4, 3]
    assert all({trained.batch.id.epoch for trained in report.batches} == {report.epoch} for report in seen.steps)


def test_the_schedule_ends_at_max_steps(simulate):
    run, seen = simulate([100] * 70, "batching.token_budget=1000", "optim.accumulate=2", "optim.max_steps=3")
    assert run.run() == "finished"
    assert len(seen.steps) == run.total_steps == 3


def test_worker_seconds_sum_to_wall_time(simulate):
    run, _ = simulate(record_lengths(4_000), *TOPOLOGY, "optim.epochs=1", costs=RECORD_COSTS)
    run.run()
    now = run.engine.now()
    for account in run.crew.accounts.values():
        snapshot = account.snapshot(now)
        assert sum(snapshot[f"{state}_seconds"] for state in STATES) == pytest.approx(now, rel=1e-6)


def test_littles_law_holds_for_the_pool(simulate):
    run, _ = simulate(record_lengths(4_000), *TOPOLOGY, "optim.epochs=1", costs=RECORD_COSTS)
    run.run()
    queue = run.stock.queues["pool"].snapshot(run.engine.now())
    assert queue["puts"] == queue["gets"] == run.progress.committed_batches
    assert sum(queue["depth_seconds"]) == pytest.approx(queue["residence_seconds"], rel=1e-6)


def test_prefetch_and_pool_stay_within_their_bounds(simulate):
    run, _ = simulate(
        record_lengths(4_000),
        *TOPOLOGY,
        "optim.epochs=1",
        "pipeline.prefetch=3",
        "pool.capacity_items=4",
        "pool.capacity_bytes=900000",
        costs=RECORD_COSTS,
    )
    wait = run.engine.wait

    def checked_wait(patience):
        assert len(run.stock.ready) + run.crew.busy("prefetch") <= 3
        assert run.stock.pool.held_bytes <= 900_000
        assert len(run.stock.pool) + run.crew.busy("target") <= 4
        return wait(patience)

    run.engine.wait = checked_wait
    run.run()


def test_a_batch_larger_than_the_pool_is_refused_with_the_remedy(simulate):
    with pytest.raises(RefusedInput, match=r"pool.capacity_bytes=100 is smaller.*lower batching.token_budget"):
        simulate([500] * 10, "pool.capacity_bytes=100")


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("stop_after", [1, 4, 7])
def test_a_stopped_and_resumed_run_trains_each_sample_once(simulate, policy, stop_after):
    lengths = record_lengths(900)
    chosen = (*TOPOLOGY, *POLICY_SETTINGS[policy], "optim.epochs=2", "optim.accumulate=4", "batching.token_budget=16384")
    store = Store()
    run, seen = simulate(lengths, *chosen, costs=RECORD_COSTS, checkpointer=store)
    stepped = seen.stepped

    def stop_then(report):
        stepped(report)
        run.stop_requested = report.step == stop_after

    seen.stepped = stop_then
    assert run.run() == "stopped"
    seen.stepped = stepped
    rest, _ = simulate(lengths, *chosen, costs=RECORD_COSTS, checkpointer=store, state=store.states[stop_after], watcher=seen)
    assert rest.run() == "finished"
    assert [report.step for report in seen.steps] == list(range(1, rest.total_steps + 1))
    assert set(seen.trained_samples.values()) == {1}
    assert len(seen.trained_samples) == 2 * len(lengths)


@pytest.mark.parametrize("policy", ["oldest", "random", "deficit"])
@pytest.mark.parametrize(("before", "after"), [((5, 3), (2, 1)), ((2, 1), (5, 3)), ((1, 4), (7, 2))])
@pytest.mark.parametrize(("accumulate", "then"), [(4, 4), (4, 7), (5, 3)])
def test_a_run_that_crashed_goes_on_with_other_workers_and_windows(simulate, policy, before, after, accumulate, then):
    """What was under way at the checkpoint, and all after it, is done again; the last window of an epoch holds what remains."""
    lengths = record_lengths(900)
    chosen = ("optim.epochs=2", "batching.token_budget=16384", f"pool.policy={policy}", "checkpoint.every=3")
    store = Store()

    def topology(targets, drafters):
        return f"pipeline.targets={targets}", f"pipeline.drafters={drafters}"

    run, seen = simulate(
        lengths, *chosen, *topology(*before), f"optim.accumulate={accumulate}", costs=RECORD_COSTS, checkpointer=store
    )
    run.run()
    for step in (3, 6, max(step for step in store.states if step % 3 == 0)):
        rest, again = simulate(
            lengths,
            *chosen,
            *topology(*after),
            f"optim.accumulate={then}",
            costs=RECORD_COSTS,
            checkpointer=Store(),
            state=store.states[step],
        )
        assert rest.run() == "finished"
        kept = [report for report in seen.steps if report.step <= step]
        trained = Counter(
            (report.epoch, int(sample))
            for report in [*kept, *again.steps]
            for each in report.batches
            for sample in each.batch.samples
        )
        assert set(trained.values()) == {1}
        assert len(trained) == 2 * len(lengths)
        assert {len(report.batches) for report in again.steps[1:-1] if report.epoch == again.steps[-1].epoch} <= {then}


def test_resumed_windows_stay_aligned_with_the_plan(simulate):
    lengths = record_lengths(2_000)
    chosen = ("optim.epochs=1", "optim.accumulate=8", "batching.token_budget=16384")
    store = Store()
    run, seen = simulate(lengths, *chosen, "checkpoint.every=3", checkpointer=store)
    run.run()
    whole = [[trained.batch.id for trained in report.batches] for report in seen.steps]
    rest, seen = simulate(lengths, *chosen, state=store.states[3], checkpointer=store)
    rest.run()
    assert [[trained.batch.id for trained in report.batches] for report in seen.steps] == whole[3:]


def test_resuming_on_other_data_is_refused(simulate):
    store = Store()
    run, _ = simulate([100] * 50, "batching.token_budget=1000", "optim.accumulate=2", "checkpoint.every=1", checkpointer=store)
    run.run()
    with pytest.raises(RefusedInput, match="resume with the data set"):
        simulate([100] * 80, "batching.token_budget=1000", "optim.accumulate=2", state=store.states[1])


class FailingSteps(SimulatedEngine):
    """An engine whose steps from `first` on are not finite."""

    def __init__(self, engine, first):
        super().__init__(engine_pipeline(engine), engine.costs)
        self.first = first

    def wait(self, patience_seconds):
        found = super().wait(patience_seconds)
        return [self.spoil(completion) for completion in found]

    def spoil(self, completion):
        if isinstance(completion.job, Step) and completion.job.step >= self.first:
            bad = StepResult(
                loss=float("nan"), grad_norm=float("nan"), weight_sum=1.0, skipped=True, reason="loss nan", seconds=0.0
            )
            return Completion(completion.job, completion.busy_seconds, bad)
        return completion


def engine_pipeline(engine):
    from dflash.config import PipelineConfig

    return PipelineConfig(engine="simulated", targets=engine.targets, drafters=engine.drafters)


def test_three_steps_in_a_row_that_are_not_finite_stop_the_run_with_a_checkpoint(simulate):
    store = Store()
    run, seen = simulate([100] * 200, "batching.token_budget=1000", "optim.accumulate=2", checkpointer=store)
    run.engine = run.crew.engine = run.stock.engine = FailingSteps(run.engine, first=4)
    with pytest.raises(RunFailed, match=r"step 6: loss or gradient not finite 3 times in a row"):
        run.run()
    assert [report.result.skipped for report in seen.steps] == [False] * 3 + [True] * 3
    assert 6 in store.states


@dataclass(frozen=True)
class SlowDecoding(CostModel):
    """The record's costs, and twenty seconds a held-out prompt."""

    target_per_padded_token: float = RECORD_COSTS.target_per_padded_token
    drafter_per_token: float = RECORD_COSTS.drafter_per_token

    def seconds(self, job, blocks=NO_BLOCKS):
        return 20.0 if isinstance(job, Decode) else super().seconds(job, blocks)


def held_out_of(simulate, lengths, count=5):
    """The first batches of a plan, as held-out ones."""
    run, seen = simulate(lengths, *TOPOLOGY, "optim.epochs=1", costs=RECORD_COSTS)
    run.run()
    return [replace(trained.batch, id=BatchId(-1, 0, number)) for number, trained in enumerate(seen.batches[:count])]


def test_held_out_batches_are_evaluated_beside_training(simulate):
    lengths = record_lengths(2_000)
    held_out = held_out_of(simulate, lengths)
    run, seen = simulate(lengths, *TOPOLOGY, "optim.epochs=1", "evaluation.every=1", costs=RECORD_COSTS, holdout=held_out)
    run.run()
    assert [report.step for report in seen.evaluations] == list(range(len(seen.steps) + 1))
    assert all(report.simulated.tokens == sum(batch.tokens for batch in held_out) for report in seen.evaluations)
    assert set(seen.trained_samples.values()) == {1}


def test_targets_go_on_for_training_while_held_out_prompts_are_decoded_and_batches_evaluated(simulate):
    lengths = record_lengths(2_000)
    held_out = held_out_of(simulate, lengths)
    settings = ("optim.epochs=1", "data.holdout=9", "evaluation.every=1", "evaluation.decode_every=2")
    run, seen = simulate(lengths, *TOPOLOGY, *settings, costs=SlowDecoding(), holdout=held_out, prompts=[7, 8, 9])
    submit, beside, drafters = run.engine.submit, [], []

    def watched(job):
        if run.evaluation is not None:
            beside.extend([job] if isinstance(job, Produce) and job.batch.id.epoch >= 0 else [])
            drafters.extend([job] if isinstance(job, Decode) else [])
        submit(job)

    run.engine.submit = watched
    run.run()
    assert beside
    assert {job.worker for job in drafters} == {0}
    decoded = [report for report in seen.evaluations if report.decoded is not None]
    assert [report.step for report in decoded] == sorted({*range(2, len(seen.steps), 2), len(seen.steps)})
    assert all(report.decoded.answers == report.prompts == 3 for report in decoded)
    assert [job.sample for job in drafters[:3]] == [7, 8, 9]
    assert set(seen.trained_samples.values()) == {1}


def test_what_an_evaluation_found_is_offered_to_whoever_keeps_the_best(simulate):
    offered = []

    class Best:
        def offer(self, report, save):
            offered.append(report)
            assert save(Save(None, weights_only=True)).job.weights_only

    lengths = record_lengths(2_000)
    held_out = held_out_of(simulate, lengths)
    run, seen = simulate(
        lengths, *TOPOLOGY, "optim.epochs=1", "evaluation.every=2", costs=RECORD_COSTS, holdout=held_out, best=Best()
    )
    run.run()
    assert offered == seen.evaluations


def test_the_simulator_is_fast_enough_to_be_asked_often(simulate):
    run, seen = simulate(record_lengths(20_000), *TOPOLOGY, "optim.epochs=1", costs=RECORD_COSTS)
    started = time.process_time()
    run.run()
    assert time.process_time() - started < 30  # a guard against a quadratic loop, not a benchmark
    assert len(seen.batches) == run.progress.committed_batches
