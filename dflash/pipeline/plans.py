"""The run's batches in order, epoch after epoch, made when they are needed and the same after a resume.

The stream asks the planner for one epoch at a time and hands out batches from the ledger's view of it: what is only planned, oldest
first, so that work given back by a lost worker, or under way when the run stopped, is done before new work. Prefetch may run into
the next epoch while the current one's last window is being trained; optimiser windows never do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.batching.boundaries import bucket_of, length_class_edges, quantile_boundaries, refuse_uncovered
from dflash.batching.plan import EpochPlan, count_batches, plan_epoch
from dflash.config import BatchingConfig, RunConfig
from dflash.errors import RefusedInput
from dflash.pipeline.jobs import PlannedBatch
from dflash.pipeline.ledger import BatchId, BatchState, Ledger
from dflash.pipeline.schedule import steps_in

LENGTH_CLASSES = 16
DEFAULT_BUCKETS = 6


class PlanStream:
    """Hands out the batches of a run.

    Args:
        lengths: tokens of every sample of the data set, int32.
        kept: ids of the samples that are trained on, ascending.
        config: the run's settings.
        ledger: where batches are; the stream opens and closes epochs in it.
        on_plan: told of each plan made: epoch, segment, the plan, its real and its padded tokens.
    """

    def __init__(
        self,
        lengths: NDArray[np.int32],
        kept: NDArray[np.int64],
        config: RunConfig,
        ledger: Ledger,
        on_plan: Callable[[int, int, EpochPlan, int, int], None] = lambda *_: None,
    ) -> None:
        self.lengths = lengths
        self.kept = kept
        self.config = config
        self.ledger = ledger
        self.on_plan = on_plan
        self.boundaries = resolve_boundaries(lengths[kept], config.batching)
        self._class_of = np.searchsorted(length_class_edges(lengths[kept], LENGTH_CLASSES)[1:-1], lengths, side="left")
        self._plans: dict[tuple[int, int], _DescribedPlan] = {}
        self._next: PlannedBatch | None = None
        self._waiting: list[BatchId] = []
        self._counts: dict[int, int] = {}
        for epoch in sorted(ledger.epochs):
            self._reopen(epoch)
            if {**ledger.epochs[epoch][-1].recipe, "lead": 0} != recipe_of(config):  # settings were changed between sessions
                self._replan_epoch(epoch, lead=0)

    def total_steps(self, step: int, window_left: int = 0) -> int:
        """Optimiser steps of the whole run, as of now.

        Args:
            step: steps taken.
            window_left: batches of an open window that are not committed yet; the step they will make is counted.
        """
        steps = min(self.full_steps(step, window_left), self.config.optim.max_steps or 2**62)
        return max(steps, step)

    def full_steps(self, step: int, window_left: int = 0) -> int:
        """`total_steps` if `optim.max_steps` did not end the run early."""
        accumulate, epochs = self.config.optim.accumulate, self.config.optim.epochs
        for epoch in range(self.ledger.epochs_done, epochs):
            if epoch in self.ledger.epochs:
                left = self.ledger.left_in_epoch(epoch)
                in_window = window_left if epoch == self.ledger.epochs_done else 0
                step += steps_in(left - in_window, accumulate) + bool(in_window)
            else:
                step += steps_in(self._count(epoch), accumulate)
        return step

    def replan(self, config: RunConfig, window_places: int) -> int:
        """Take over changed settings: what no worker has yet is planned anew, every sample still exactly once an epoch.

        Args:
            config: the run's settings from now on.
            window_places: batches the open window still has to take, 0 between windows; the new windows are aligned after it.

        Returns:
            Batches that were planned anew.

        Raises:
            RefusedInput: the settings don't fit the data; nothing has changed then.
        """
        boundaries = resolve_boundaries(self.lengths[self.kept], config.batching)
        before, self.config, self.boundaries = self.config, config, boundaries
        self._plans = {key: self._described(described.plan) for key, described in self._plans.items()}
        self._next = None
        self._counts.clear()
        if recipe_of(before) == recipe_of(config):
            return 0
        planned = 0
        for epoch in sorted(self.ledger.epochs):
            places = window_places if epoch == self.ledger.epochs_done else 0
            under_way = sum(len(segment.indices(BatchState.ISSUED, BatchState.POOLED)) for segment in self.ledger.epochs[epoch])
            ahead = under_way - places
            planned += self._replan_epoch(epoch, lead=-ahead % config.window if ahead >= 0 else -ahead)
        return planned

    def peek(self) -> PlannedBatch | None:
        """The next batch to be read, or None when the run's last one has been handed out."""
        if not self._waiting:
            epoch = max(self.ledger.epochs, default=self.ledger.epochs_done - 1) + 1
            if epoch >= self.config.optim.epochs:
                return None
            self._open(epoch)
        if self._next is None or self._next.id != self._waiting[0]:  # asked on every turn of the loop, so it is kept
            self._next = self.describe(self._waiting[0])
        return self._next

    def issue(self) -> PlannedBatch:
        """Take the batch that `peek` shows."""
        batch = self.peek()
        if batch is None:
            raise LookupError("the run has no batch left to issue")
        heapq.heappop(self._waiting)
        self.ledger.advance(batch.id, BatchState.ISSUED)
        return batch

    def give_back(self, batch: BatchId) -> None:
        """A lost batch goes back among the planned ones, ahead of all later ones."""
        self.ledger.give_back(batch)
        heapq.heappush(self._waiting, batch)

    def largest_batch_tokens(self) -> int:
        """Real tokens of the largest batch of the first epoch: what the pool must at least have room for."""
        plan = plan_epoch(self.lengths, self.config.batching, epoch=0, window=self.config.window, sample_ids=self.kept)
        return int(_batch_sums(self.lengths, plan)[0].max())

    def bucket_shares(self, epoch: int) -> list[float]:
        """Share of an epoch's batches in each length bucket (what the `deficit` policy aims at)."""
        counts = np.zeros(len(self.boundaries) - 1)
        for (plan_epoch_, _), described in self._plans.items():
            if plan_epoch_ == epoch:
                counts += np.bincount(described.bucket, minlength=len(counts))
        return [float(share) for share in counts / max(counts.sum(), 1)]

    def describe(self, batch: BatchId) -> PlannedBatch:
        """Everything the coordinator and the cost model want to know of a batch."""
        return self._plans[batch.epoch, batch.segment].describe(batch)

    def describe_plan(self, plan: EpochPlan, epoch: int = 0) -> list[PlannedBatch]:
        """`describe` for all batches of a plan that is not the stream's own (held-out batches, plans that are only weighed)."""
        described = self._described(plan)
        return [described.describe(BatchId(epoch, 0, index)) for index in range(len(plan))]

    def bucket(self, longest: int) -> int:
        """The length bucket of a batch with this longest row, by the boundaries in force."""
        return int(bucket_of(np.asarray(longest), self.boundaries))

    def close_epoch(self, epoch: int) -> None:
        """The epoch's last batch is committed: forget its plans."""
        self.ledger.close_epoch(epoch)
        self._plans = {key: plan for key, plan in self._plans.items() if key[0] != epoch}

    def _count(self, epoch: int) -> int:
        if epoch not in self._counts:
            self._counts[epoch] = count_batches(self.lengths, self.config.batching, epoch=epoch, sample_ids=self.kept)
        return self._counts[epoch]

    def _open(self, epoch: int) -> None:
        self._adopt(epoch, recipe_of(self.config), self.kept)

    def _adopt(self, epoch: int, recipe: dict[str, Any], samples: NDArray[np.int64]) -> int:
        """Plan these samples of an epoch as its next segment. Returns the number of batches."""
        plan = self._make(epoch, recipe, samples)
        segment = self.ledger.open_segment(epoch, recipe, len(plan))
        self._enter(epoch, segment, plan)
        return len(plan)

    def _make(self, epoch: int, recipe: dict[str, Any], samples: NDArray[np.int64]) -> EpochPlan:
        settings = BatchingConfig.model_validate(recipe["batching"])
        return plan_epoch(self.lengths, settings, epoch=epoch, window=recipe["window"], lead=recipe["lead"], sample_ids=samples)

    def _enter(self, epoch: int, segment: int, plan: EpochPlan) -> None:
        """Queue what is only planned of a segment."""
        described = self._plans[epoch, segment] = self._described(plan)
        planned = self.ledger.epochs[epoch][segment].indices(BatchState.PLANNED)
        self._waiting.extend(BatchId(epoch, segment, index) for index in planned)
        heapq.heapify(self._waiting)
        self.on_plan(epoch, segment, plan, int(described.tokens.sum()), int(described.padded_tokens.sum()))

    def _described(self, plan: EpochPlan) -> _DescribedPlan:
        lengths, starts = self.lengths[plan.samples].astype(np.int64), plan.offsets[:-1]
        tokens, longest = _batch_sums(self.lengths, plan)
        rows = np.diff(plan.offsets)
        classes = np.repeat(np.arange(len(plan)) * LENGTH_CLASSES, rows) + self._class_of[plan.samples]
        held = np.bincount(classes, weights=lengths, minlength=len(plan) * LENGTH_CLASSES)
        return _DescribedPlan(
            plan=plan,
            rows=rows,
            tokens=tokens,
            padded_tokens=tokens if plan.packed else longest * rows,
            longest=longest,
            length_squared=np.add.reduceat(lengths**2, starts),
            bucket=bucket_of(longest, self.boundaries),
            class_tokens=held.astype(np.int64).reshape(len(plan), LENGTH_CLASSES),
        )

    def _replan_epoch(self, epoch: int, lead: int) -> int:
        """Put the samples of the last segment's batches that are only planned into a new segment."""
        segment = len(self.ledger.epochs[epoch]) - 1
        planned = self.ledger.epochs[epoch][segment].indices(BatchState.PLANNED)
        if not planned:
            return 0
        samples = self._samples_of(epoch, segment, planned)
        self._waiting = [batch for batch in self._waiting if (batch.epoch, batch.segment) != (epoch, segment)]
        return self._adopt(epoch, {**recipe_of(self.config), "lead": lead}, samples)

    def _reopen(self, epoch: int) -> None:
        """Make the plans of an epoch again, from the recipes in the ledger."""
        samples = self.kept
        for number, segment in enumerate(self.ledger.epochs[epoch]):
            plan = self._make(epoch, segment.recipe, samples)
            if len(plan) != segment.batches:
                raise RefusedInput(
                    f"checkpoint: its plan of epoch {epoch} has {segment.batches} batches, this data gives {len(plan)}; "
                    "resume with the data set the run was started on"
                )
            self._enter(epoch, number, plan)
            samples = self._samples_of(epoch, number, segment.indices(BatchState.DROPPED))

    def _samples_of(self, epoch: int, segment: int, indices: list[int]) -> NDArray[np.int64]:
        plan = self._plans[epoch, segment].plan
        return np.sort(np.concatenate([plan.batch(index) for index in indices])) if indices else self.kept[:0]


@dataclass(frozen=True)
class _DescribedPlan:
    """A plan and, per batch, what `PlannedBatch` says of it: computed for all batches at once, a hundredth of the time of one by one."""

    plan: EpochPlan
    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    padded_tokens: NDArray[np.int64]
    longest: NDArray[np.int64]
    length_squared: NDArray[np.int64]
    bucket: NDArray[np.int16]
    class_tokens: NDArray[np.int64]

    def describe(self, batch: BatchId) -> PlannedBatch:
        """The batch of this id."""
        at = batch.number
        return PlannedBatch(
            id=batch,
            samples=self.plan.batch(at),
            rows=int(self.rows[at]),
            tokens=int(self.tokens[at]),
            padded_tokens=int(self.padded_tokens[at]),
            longest=int(self.longest[at]),
            length_squared=int(self.length_squared[at]),
            bucket=int(self.bucket[at]),
            class_tokens=tuple(self.class_tokens[at].tolist()),
            packed=self.plan.packed,
        )


def resolve_boundaries(lengths: NDArray[np.int32], settings: BatchingConfig) -> list[int]:
    """The length buckets of a run: those given, else six that hold equally many samples.

    Raises:
        RefusedInput: those given end below the longest row.
    """
    if settings.boundaries is None:
        return quantile_boundaries(lengths, DEFAULT_BUCKETS)
    refuse_uncovered(lengths, settings.boundaries)
    return list(settings.boundaries)


def recipe_of(config: RunConfig) -> dict[str, Any]:
    """What, with (epoch, samples), makes a plan again. `lead`: batches that complete a window already begun, before whole windows."""
    return {"batching": config.batching.model_dump(mode="json"), "window": config.window, "lead": 0}


def _batch_sums(lengths: NDArray[np.int32], plan: EpochPlan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Real tokens and the longest row of each batch of a plan."""
    ordered = lengths[plan.samples].astype(np.int64)
    return np.add.reduceat(ordered, plan.offsets[:-1]), np.maximum.reduceat(ordered, plan.offsets[:-1])


def split_holdout(samples: int, holdout: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sample ids to train on and ids held out, both ascending; which ones is decided by the seed alone.

    Raises:
        RefusedInput: nothing would be left to train on.
    """
    if holdout >= samples:
        raise RefusedInput(f"data.holdout={holdout} leaves nothing of {samples} samples to train on; lower it")
    order = np.random.default_rng([seed, 0x401D]).permutation(samples)
    return np.sort(order[holdout:]).astype(np.int64), np.sort(order[:holdout]).astype(np.int64)
