"""The inline engine: this process, one device, deterministic. The embedded default, and what a debugger wants.

`wait` runs one job. Drafters go first: on one device there is nothing to gain from features waiting in the pool, so the pool holds one
item at most, memory is smallest, batches are trained in plan order under every policy, and a run that was stopped and resumed does the
same arithmetic in the same order as one that was not. Targets and drafters beyond the first are further hands on the same device:
they share one model.
"""

from __future__ import annotations

import heapq
import time
from typing import Any

from dflash.config import PipelineConfig
from dflash.pipeline.jobs import Completion, Decode, Evaluate, Job, Prefetch, Produce, Save, Step, Train
from dflash.pipeline.ledger import BatchId
from dflash.pipeline.stages import Stages

_PRIORITY: dict[type[Job], int] = {Save: 0, Step: 0, Train: 1, Evaluate: 1, Decode: 1, Produce: 2, Prefetch: 3}


class InlineEngine:
    """Runs every job in the caller's thread."""

    longest_wait_seconds: float | None = 1.0

    def __init__(self, pipeline: PipelineConfig, stages: Stages) -> None:
        self.targets, self.drafters, self.prefetch_workers = pipeline.targets, pipeline.drafters, pipeline.prefetch_workers
        self._reader, self._target, self._drafter = stages.reader(), stages.target(0), stages.drafter(0, 1, None)
        self._queue: list[tuple[int, int, float, Job]] = []
        self._submitted = 0
        self._rows: dict[BatchId, Any] = {}
        self._features: dict[BatchId, Any] = {}

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def submit(self, job: Job) -> None:
        """Queue a job; drafters before targets before readers, else in order."""
        self._submitted += 1
        heapq.heappush(self._queue, (_PRIORITY[type(job)], self._submitted, self.now(), job))

    def wait(self, patience_seconds: float | None) -> list[Completion]:
        """Run the next job. With nothing queued it sleeps for the patience given."""
        if not self._queue:
            if patience_seconds:
                time.sleep(patience_seconds)
            return []
        _, _, submitted, job = heapq.heappop(self._queue)
        started = self.now()
        result = self._run(job)
        busy = self.now() - started
        return [Completion(job, busy, result, {"blocked": started - submitted})]

    def forget(self, batch: BatchId) -> None:
        """Drop the batch's tokens and features."""
        self._rows.pop(batch, None)
        self._features.pop(batch, None)

    def close(self) -> None:
        """Drop everything kept."""
        self._rows.clear()
        self._features.clear()

    def _run(self, job: Job) -> Any:
        match job:
            case Prefetch(batch=batch):
                self._rows[batch.id] = self._reader.read(batch.samples)
            case Produce(batch=batch):
                self._features[batch.id] = self._target.features(self._rows[batch.id], packed=batch.packed)
            case Train(batch=batch, anchors=anchors, with_metrics=with_metrics):
                rows, features = self._rows[batch.id], self._features[batch.id]
                return self._drafter.accumulate(rows, features, epoch=batch.id.epoch, anchors=anchors, with_metrics=with_metrics)
            case Evaluate(batch=batch):
                return self._drafter.evaluate(self._rows[batch.id], self._features[batch.id])
            case Step(lr=lr):
                return self._drafter.apply_step(lr)
            case Decode(sample=sample):
                return self._drafter.decode(sample)
            case Save(folder=folder, weights_only=weights_only):
                self._drafter.save(folder, weights_only=weights_only)
        return None
