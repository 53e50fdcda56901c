"""A held-out evaluation as it passes through the workers: read, run the target, run the drafter without learning.

It uses the same workers as training, at a safe point between optimiser steps, and takes precedence over new training work. Its features
never enter the pool; at most one item more than there are drafters is held.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dflash.model.results import BatchResult
from dflash.pipeline.jobs import Evaluate, PlannedBatch, Prefetch, Produce


@dataclass
class EvaluationPass:
    """The held-out batches of one evaluation, by how far each has come."""

    batches: list[PlannedBatch]
    drafters: int
    results: list[BatchResult] = field(default_factory=list)

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

    def read_again(self, batch: PlannedBatch) -> None:
        """A worker was lost with the batch: it starts anew."""
        self._unread.appendleft(batch)
        self._held -= 1

    def advance(self, ended: Prefetch | Produce | Evaluate) -> None:
        """A stage is done with a batch."""
        (self._read if isinstance(ended, Prefetch) else self._featured).append(ended.batch)
