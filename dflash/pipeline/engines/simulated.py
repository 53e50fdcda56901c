"""The simulated engine: a virtual clock and a cost model in the place of GPUs.

The coordinator, pool, policies and planner are the ones that train; only the seconds come from `CostModel`. So what it predicts is what the code
does, and a policy that would deadlock on eight GPUs deadlocks here in a millisecond.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

from dflash.config import PipelineConfig
from dflash.model.results import BatchResult, StepResult
from dflash.pipeline.jobs import Completion, Evaluate, Job, Prefetch, Produce, Save, Step, Train
from dflash.pipeline.ledger import BatchId


@dataclass(frozen=True)
class CostModel:
    """Seconds of a job: fixed + per padded token + per squared length, times lognormal-like noise of relative size `noise`."""

    prefetch_fixed: float = 0.0
    prefetch_per_token: float = 0.0
    target_fixed: float = 0.0
    target_per_padded_token: float = 1e-4
    target_per_length_squared: float = 0.0
    drafter_fixed: float = 0.0
    drafter_per_token: float = 1e-4
    step_seconds: float = 0.0
    noise: float = 0.0

    def seconds(self, job: Job) -> float:
        """Seconds of a job without noise."""
        match job:
            case Prefetch(batch=batch):
                return self.prefetch_fixed + self.prefetch_per_token * batch.tokens
            case Produce(batch=batch):
                padded_squares = batch.length_squared if batch.packed else batch.rows * batch.longest**2
                per_token = self.target_per_padded_token * batch.padded_tokens
                return self.target_fixed + per_token + self.target_per_length_squared * padded_squares
            case Train(batch=batch) | Evaluate(batch=batch):
                return self.drafter_fixed + self.drafter_per_token * batch.tokens
            case Step():
                return self.step_seconds
            case Save():
                return 0.0


class SimulatedEngine:
    """Jobs end when the cost model says, on a clock of its own."""

    longest_wait_seconds: float | None = None

    def __init__(self, pipeline: PipelineConfig, costs: CostModel, seed: int = 0) -> None:
        self.targets, self.drafters, self.prefetch_workers = pipeline.targets, pipeline.drafters, pipeline.prefetch_workers
        self.costs = costs
        self._random = random.Random(seed)
        self._clock = 0.0
        self._ends: list[tuple[float, int, float, Job]] = []
        self._submitted = 0

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._clock

    def submit(self, job: Job) -> None:
        """Start a job now; it ends after its cost."""
        seconds = self.costs.seconds(job)
        if self.costs.noise:
            seconds *= max(1.0 + self.costs.noise * self._random.gauss(0.0, 1.0), 0.05)
        self._submitted += 1
        heapq.heappush(self._ends, (self._clock + seconds, self._submitted, seconds, job))

    def wait(self, patience_seconds: float | None) -> list[Completion]:
        """Move the clock to the next end, or by the patience if that is sooner."""
        if self._ends and (patience_seconds is None or self._ends[0][0] <= self._clock + patience_seconds):
            self._clock, _, seconds, job = heapq.heappop(self._ends)
            return [Completion(job, seconds, _result(job))]
        self._clock += patience_seconds or 0.0
        return []

    def forget(self, batch: BatchId) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing to end."""


def _result(job: Job) -> BatchResult | StepResult | None:
    match job:
        case Train(batch=batch) | Evaluate(batch=batch):
            return BatchResult(0.0, 1.0, batch.tokens, batch.tokens, 0, 0, 0.0)
        case Step():
            return StepResult(loss=0.0, grad_norm=0.0, weight_sum=1.0, skipped=False, reason="", seconds=0.0)
        case _:
            return None
