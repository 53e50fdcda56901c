"""The run's batches in order, epoch after epoch, made when they are needed and the same after a resume.

The stream asks the planner for one epoch at a time and hands out batches from the ledger's view of it: what is only planned, oldest
first, so that work given back by a lost worker, or under way when the run stopped, is done before new work. Prefetch may run into
the next epoch while the current one's last window is being trained; optimiser windows never do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.batching.boundaries import bucket_of, length_class_edges, quantile_boundaries
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
        self._plans: dict[tuple[int, int], EpochPlan] = {}
        self._waiting: list[BatchId] = []
        self.steps_per_epoch = [steps_in(self._count(epoch), config.optim.accumulate) for epoch in range(config.optim.epochs)]
        for epoch in sorted(ledger.epochs):
            self._reopen(epoch)

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run, the epochs' short windows counted as steps."""
        steps = sum(self.steps_per_epoch)
        return min(steps, self.config.optim.max_steps or steps)

    def peek(self) -> PlannedBatch | None:
        """The next batch to be read, or None when the run's last one has been handed out."""
        if not self._waiting:
            epoch = max(self.ledger.epochs, default=self.ledger.epochs_done - 1) + 1
            if epoch >= self.config.optim.epochs:
                return None
            self._open(epoch)
        return self.describe(self._waiting[0])

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

    def largest_batch_tokens(self, epoch: int = 0) -> int:
        """Real tokens of the largest batch of an epoch: what the pool must at least have room for."""
        plan = plan_epoch(self.lengths, self.config.batching, epoch=epoch, window=self.config.window, sample_ids=self.kept)
        return int(_batch_sums(self.lengths, plan)[0].max())

    def bucket_shares(self, epoch: int) -> list[float]:
        """Share of an epoch's batches in each length bucket (what the `deficit` policy aims at)."""
        counts = np.zeros(len(self.boundaries) - 1)
        for (plan_epoch_, _), plan in self._plans.items():
            if plan_epoch_ == epoch:
                _, longest = _batch_sums(self.lengths, plan)
                counts += np.bincount(bucket_of(longest, self.boundaries), minlength=len(counts))
        return [float(share) for share in counts / max(counts.sum(), 1)]

    def describe(self, batch: BatchId) -> PlannedBatch:
        """Everything the coordinator and the cost model want to know of a batch."""
        return self.describe_from(self._plans[batch.epoch, batch.segment], batch)

    def describe_from(self, plan: EpochPlan, batch: BatchId) -> PlannedBatch:
        """`describe` for a batch of a plan that is not the stream's own (held-out batches)."""
        samples = plan.batch(batch.index)
        lengths = self.lengths[samples].astype(np.int64)
        tokens, longest = int(lengths.sum()), int(lengths.max())
        shares = np.bincount(self._class_of[samples], weights=lengths, minlength=LENGTH_CLASSES)
        return PlannedBatch(
            id=batch,
            samples=samples,
            rows=len(samples),
            tokens=tokens,
            padded_tokens=tokens if plan.packed else longest * len(samples),
            longest=longest,
            length_squared=int((lengths**2).sum()),
            bucket=int(bucket_of(longest, self.boundaries)),
            class_tokens=tuple(int(share) for share in shares),
            packed=plan.packed,
        )

    def close_epoch(self, epoch: int) -> None:
        """The epoch's last batch is committed: forget its plans."""
        self.ledger.close_epoch(epoch)
        self._plans = {key: plan for key, plan in self._plans.items() if key[0] != epoch}

    def _count(self, epoch: int) -> int:
        return count_batches(self.lengths, self.config.batching, epoch=epoch, sample_ids=self.kept)

    def _open(self, epoch: int) -> None:
        plan = plan_epoch(self.lengths, self.config.batching, epoch=epoch, window=self.config.window, sample_ids=self.kept)
        segment = self.ledger.open_segment(epoch, recipe_of(self.config), len(plan))
        self._adopt(epoch, segment, plan)

    def _adopt(self, epoch: int, segment: int, plan: EpochPlan) -> None:
        self._plans[epoch, segment] = plan
        planned = self.ledger.epochs[epoch][segment].indices(BatchState.PLANNED)
        self._waiting.extend(BatchId(epoch, segment, index) for index in planned)
        heapq.heapify(self._waiting)
        tokens, longest = _batch_sums(self.lengths, plan)
        rows = np.diff(plan.offsets)
        self.on_plan(epoch, segment, plan, int(tokens.sum()), int((tokens if plan.packed else longest * rows).sum()))

    def _reopen(self, epoch: int) -> None:
        """Make the plans of an epoch again, from the recipes in the ledger."""
        samples = self.kept
        for number, segment in enumerate(self.ledger.epochs[epoch]):
            settings = BatchingConfig.model_validate(segment.recipe["batching"])
            plan = plan_epoch(self.lengths, settings, epoch=epoch, window=segment.recipe["window"], sample_ids=samples)
            if len(plan) != segment.batches:
                raise RefusedInput(
                    f"checkpoint: its plan of epoch {epoch} has {segment.batches} batches, this data gives {len(plan)}; "
                    "resume with the data set the run was started on"
                )
            self._adopt(epoch, number, plan)
            dropped = segment.indices(BatchState.DROPPED)
            samples = np.sort(np.concatenate([plan.batch(index) for index in dropped])) if dropped else samples[:0]


def resolve_boundaries(lengths: NDArray[np.int32], settings: BatchingConfig) -> list[int]:
    """The length buckets of a run: those given, else six that hold equally many samples.

    Raises:
        RefusedInput: those given end below the longest row.
    """
    if settings.boundaries is None:
        return quantile_boundaries(lengths, DEFAULT_BUCKETS)
    longest = int(lengths.max())
    if longest > settings.boundaries[-1]:
        over = int(np.count_nonzero(lengths > settings.boundaries[-1]))
        raise RefusedInput(
            f"batching.boundaries={settings.boundaries}: they end below {over} of {lengths.size} rows, the longest {longest} tokens; "
            f"make the last boundary {longest} or more"
        )
    return list(settings.boundaries)


def _batch_sums(lengths: NDArray[np.int32], plan: EpochPlan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Real tokens and the longest row of each batch of a plan."""
    ordered = lengths[plan.samples].astype(np.int64)
    return np.add.reduceat(ordered, plan.offsets[:-1]), np.maximum.reduceat(ordered, plan.offsets[:-1])


def recipe_of(config: RunConfig) -> dict[str, Any]:
    """What, with (epoch, samples), makes a plan again."""
    return {"batching": config.batching.model_dump(mode="json"), "window": config.window}


def split_holdout(samples: int, holdout: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sample ids to train on and ids held out, both ascending; which ones is decided by the seed alone.

    Raises:
        RefusedInput: nothing would be left to train on.
    """
    if holdout >= samples:
        raise RefusedInput(f"data.holdout={holdout} leaves nothing of {samples} samples to train on; lower it")
    order = np.random.default_rng([seed, 0x401D]).permutation(samples)
    return np.sort(order[holdout:]).astype(np.int64), np.sort(order[:holdout]).astype(np.int64)
