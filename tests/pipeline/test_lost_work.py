"""Workers that die or hang at any moment: what they held is made again, there is room for it, and every sample is trained once."""

import random
from dataclasses import replace

import numpy as np
import pytest

from dflash.config import PipelineConfig
from dflash.errors import RunFailed
from dflash.pipeline.coordinator import DrafterLost
from dflash.pipeline.engines.simulated import NO_BLOCKS, CostModel, SimulatedEngine
from dflash.pipeline.jobs import Evaluate, Prefetch, Produce, Save, Step, Train
from dflash.pipeline.ledger import BatchId
from dflash.pool.policies import POLICIES
from tests.pipeline.kept_states import Store

TOPOLOGY = ("pipeline.targets=5", "pipeline.drafters=3")
RECORD_COSTS = CostModel(target_per_padded_token=16 / 45_000, drafter_per_token=13 / 45_000, noise=0.1)
LENGTHS = np.clip(np.random.default_rng(0).lognormal(np.log(1728), 0.6, 2_000), 16, 8192).astype(np.int32)


def held_out(simulate, batches):
    """Held-out batches of a hundred tokens."""
    run, _ = simulate([100], "batching.token_budget=100")
    return [replace(run.stream.peek(), id=BatchId(-1, 0, number)) for number in range(batches)]


class LosingWorkers(SimulatedEngine):
    """An engine whose workers die now and then; `lose(job)` says whether this job is lost with its worker."""

    def __init__(self, engine, lose):
        super().__init__(PipelineConfig(engine="simulated", targets=engine.targets, drafters=engine.drafters), engine.costs)
        self.lose = lose

    def wait(self, patience_seconds):
        return [
            replace(completion, result=None, fault="killed") if self.lose(completion.job) else completion
            for completion in super().wait(patience_seconds)
        ]


@pytest.mark.parametrize("kind", [Prefetch, Produce])
def test_a_lost_reader_or_target_costs_its_batch_once_more_and_nothing_else(simulate, kind):
    draws = random.Random(1)
    run, seen = simulate(LENGTHS, *TOPOLOGY, "optim.epochs=2", "batching.token_budget=16384", costs=RECORD_COSTS)
    run.engine = run.crew.engine = run.stock.engine = LosingWorkers(
        run.engine, lambda job: isinstance(job, kind) and draws.random() < 0.1
    )
    assert run.run() == "finished"
    assert len(seen.losses) > 10
    assert set(seen.trained_samples.values()) == {1}
    assert len(seen.trained_samples) == 2 * 2_000
    assert run.stock.pool.held_bytes == 0


def test_a_target_that_dies_every_time_stops_the_run_by_name(simulate):
    run, _ = simulate(LENGTHS[:500], costs=RECORD_COSTS)
    run.engine = run.crew.engine = run.stock.engine = LosingWorkers(run.engine, lambda job: isinstance(job, Produce))
    with pytest.raises(RunFailed, match=r"11 workers lost since the last step, now target-0: killed"):
        run.run()


@pytest.mark.parametrize("kind", [Train, Step, Save, Evaluate])
def test_a_lost_drafter_ends_the_session_for_a_return_to_the_checkpoint(simulate, kind):
    chosen = ("batching.token_budget=1000", "optim.accumulate=2", "evaluation.every=1")
    run, _ = simulate([100] * 200, *chosen, checkpointer=Store(), holdout=held_out(simulate, 1))
    run.engine = run.crew.engine = run.stock.engine = LosingWorkers(run.engine, lambda job: isinstance(job, kind))
    with pytest.raises(DrafterLost, match="drafter-0"):
        run.run()


class DoomedEngine(SimulatedEngine):
    """An engine that loses the jobs of readers and targets with these ordinals; it is told so many seconds late (a hang)."""

    def __init__(self, config, doomed, late_seconds=0.0):
        self._told_late, self.doomed, self.given, self._lost = late_seconds, doomed, 0, []
        super().__init__(config.pipeline, self)
        self.noise = 0.0

    def seconds(self, job, blocks=NO_BLOCKS):
        return CostModel().seconds(job, blocks) + (self._told_late if self._is_lost(job) else 0.0)

    def copy_seconds(self, job, feature_bytes):
        return 0.0

    def submit(self, job):
        if isinstance(job, Prefetch | Produce):
            if self.given in self.doomed:
                self._lost.append(job)
            self.given += 1
        super().submit(job)

    def wait(self, patience_seconds):
        return [
            replace(completion, result=None, fault="killed") if self._is_lost(completion.job) else completion
            for completion in super().wait(patience_seconds)
        ]

    def _is_lost(self, job):
        return any(job is lost for lost in self._lost)


def train_with_losses(simulate, doomed, late_seconds, *settings):
    """A run of three epochs of four batches on a stock that is as small as settings say; returns how many jobs there were."""
    run, seen = simulate([90] * 8, *SMALL, *settings, holdout=held_out(simulate, 2))
    run.engine = run.crew.engine = run.stock.engine = DoomedEngine(run.config, doomed, late_seconds)
    wait = run.engine.wait

    def bounded_wait(patience):
        training = [job for job in run.crew.under_way.values() if isinstance(job, Prefetch | Produce) and job.batch.id.epoch >= 0]
        reading = [job for job in training if isinstance(job, Prefetch)]
        assert len(run.stock.pool) + len(training) - len(reading) <= run.config.pool.capacity_items
        assert len(run.stock.ready) + len(reading) <= run.config.pipeline.prefetch
        return wait(patience)

    run.engine.wait = bounded_wait
    assert run.run() == "finished"
    assert dict(seen.trained_samples) == {(epoch, sample): 1 for epoch in range(3) for sample in range(8)}
    assert len(seen.losses) == len([ordinal for ordinal in doomed if ordinal < run.engine.given])
    assert run.stock.pool.held_bytes == 0
    assert not run.stock.passages
    assert not run.stock.ready
    return run.engine.given


SMALL = ("batching.token_budget=200", "optim.accumulate=3", "optim.epochs=3", "pool.wait_seconds=1", "evaluation.every=4")


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("late_seconds", [0.0, 30.0])
@pytest.mark.parametrize(("targets", "items", "prefetch"), [(1, 1, 1), (2, 1, 2), (3, 2, 4)])
def test_a_worker_lost_at_any_job_costs_no_sample_and_no_deadlock(simulate, policy, late_seconds, targets, items, prefetch):
    """Every job of readers and targets in turn, died at once or hung; bounds hold all the while."""
    settings = (f"pool.policy={policy}", f"pipeline.targets={targets}", "pipeline.drafters=2", f"pipeline.prefetch={prefetch}")
    settings = (*settings, f"pool.capacity_items={items}", "pipeline.prefetch_workers=2")
    jobs = train_with_losses(simulate, (), 0.0, *settings)
    assert jobs >= 24
    for doomed in range(jobs):
        train_with_losses(simulate, (doomed,), late_seconds, *settings)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_two_workers_lost_at_any_two_jobs_cost_no_sample_and_no_deadlock(simulate, policy):
    settings = (
        f"pool.policy={policy}",
        "pipeline.targets=2",
        "pipeline.drafters=2",
        "pipeline.prefetch=2",
        "pool.capacity_items=2",
    )
    for first in range(0, 26, 4):
        for second in range(first + 1, min(first + 9, 26)):
            train_with_losses(simulate, (first, second), 30.0, *settings)


def test_what_the_drafters_wait_for_takes_the_place_of_the_next_epoch(simulate):
    """The fault as it was met: a target hung with a batch of this epoch while the pool filled up with the next one's."""
    run, _ = simulate([90] * 8, *SMALL, "pipeline.targets=2", "pool.capacity_items=2", "pipeline.prefetch=2")
    made_again = []
    give_back = run.stream.give_back
    run.stream.give_back = lambda batch: (made_again.append(batch), give_back(batch))
    run.engine = run.crew.engine = run.stock.engine = DoomedEngine(run.config, {6}, 30.0)
    assert run.run() == "finished"
    lost, *evicted = made_again
    assert lost.epoch == 0
    assert evicted
    assert {batch.epoch for batch in evicted} == {1}


@pytest.mark.parametrize("prefetch", [2, 8])
def test_a_pool_made_smaller_under_a_lost_batch_still_has_room_for_it(simulate, prefetch):
    """With two places for what was read, both are taken by the next epoch's batches when the loss is told."""
    run, seen = simulate([90] * 8, *SMALL, "pipeline.targets=3", "pool.capacity_items=3", f"pipeline.prefetch={prefetch}")
    run.engine = run.crew.engine = run.stock.engine = DoomedEngine(run.config, {6}, 30.0)
    turned, smaller = seen.turned, run.config.model_copy(update={"pool": run.config.pool.model_copy(update={"capacity_items": 1})})
    seen.turned = lambda coordinator: coordinator.change(smaller) if coordinator.stock.turn == 25 else turned(coordinator)
    assert run.run() == "finished"
    assert set(seen.trained_samples.values()) == {1}


def test_a_later_epochs_batch_larger_than_the_pool_is_made_alone(simulate):
    """The pool is held against the first epoch's batches; a later draw may make one that is larger than any of them."""
    lengths = np.random.default_rng(0).integers(10, 400, 40)
    chosen = ("batching.strategy=shuffled", "batching.token_budget=1000", "optim.epochs=12", "pool.capacity_items=8")
    run, seen = simulate(lengths, *chosen)
    largest = run.stream.largest_batch_tokens()
    run, seen = simulate(lengths, *chosen, f"pool.capacity_bytes={largest * 8}")
    assert run.run() == "finished"
    assert max(trained.batch.tokens for trained in seen.batches) > largest
    assert set(seen.trained_samples.values()) == {1}
