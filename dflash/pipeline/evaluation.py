"""A held-out evaluation as it passes through the workers: read, run the target, run the drafter without learning.

It uses the same workers as training, at a safe point between optimiser steps, and takes precedence over new training work. Its features
never enter the pool; at most one item more than there are drafters is held.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dflash.batching.plan import plan_epoch
from dflash.config import BatchingConfig
from dflash.model.results import BatchResult
from dflash.pipeline.jobs import Completion, PlannedBatch, Prefetch, Produce
from dflash.pipeline.plans import PlanStream


def plan_holdout(stream: PlanStream, loss_tokens: NDArray[np.integer], held_out: NDArray[np.int64]) -> list[PlannedBatch]:
    """Held-out batches: sorted by length for little padding, small enough that one never holds up the pipeline for long.

    Args:
        stream: the run's plans; it has the lengths and the token budget.
        loss_tokens: of every sample [all samples]; one with none that can be drafted is left out.
        held_out: ids of the samples, ascending.
    """
    usable = held_out[loss_tokens[held_out] > 1]
    if not len(usable):
        return []
    budget = max(int(stream.lengths[usable].max()), stream.config.batching.token_budget // 4)
    settings = BatchingConfig(strategy="sorted", order="random", token_budget=budget)
    plan = plan_epoch(stream.lengths, settings, epoch=0, window=1, sample_ids=usable)
    return stream.describe_plan(plan, epoch=-1)


@dataclass
class EvaluationPass:
    """The held-out batches of one evaluation, by how far each has come."""

    batches: list[PlannedBatch]
    drafters: int
    results: list[BatchResult] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"target": 0.0, "drafter": 0.0})
    """That workers were busy with it, by stage."""

    def __post_init__(self) -> None:
        self._unread = deque(self.batches)
        self._read: deque[PlannedBatch] = deque()
        self._featured: deque[PlannedBatch] = deque()
        self._held = 0

    @property
    def complete(self) -> bool:
        """Whether every batch has its result."""
        return len(self.results) == len(self.batches)

    def next_to_read(self) -> PlannedBatch | None:
        """A batch for a free reader."""
        if not self._unread or self._held > self.drafters + len(self.results):
            return None
        self._held += 1
        return self._unread.popleft()

    def next_to_produce(self) -> PlannedBatch | None:
        """A batch for a free target."""
        return self._read.popleft() if self._read else None

    def next_to_evaluate(self) -> PlannedBatch | None:
        """A batch for a free drafter."""
        return self._featured.popleft() if self._featured else None

    def evaluated(self, ended: Completion) -> None:
        """A drafter is done with a batch."""
        self.results.append(ended.result)
        self.seconds["drafter"] += ended.busy_seconds

    def read_again(self, batch: PlannedBatch) -> None:
        """A worker was lost with the batch: it starts anew."""
        self._unread.appendleft(batch)
        self._held -= 1

    def advance(self, job: Prefetch | Produce, busy_seconds: float) -> None:
        """A stage before the drafter is done with a batch."""
        if isinstance(job, Prefetch):
            self._read.append(job.batch)
        else:
            self._featured.append(job.batch)
            self.seconds["target"] += busy_seconds
