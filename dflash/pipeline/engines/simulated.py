"""The simulated engine: a virtual clock and a cost model in the place of GPUs.

The coordinator, pool, policies and planner are the ones that train; only the seconds come from `CostModel`. So what it predicts is what the code
does, and a policy that would deadlock on eight GPUs deadlocks here in a millisecond.

Three kinds of machine, by how jobs share it:

- a device a worker (`cores` = 0): jobs don't touch each other;
- workers that share `cores` CPU cores, each using at most one: processor sharing, n jobs on c cores all go on at the rate min(1, c / n). One
  virtual time does for all of them, since at any moment all have the same rate: a job ends when it has advanced by the job's seconds;
- one hand (`serial`), as the `inline` engine: one job at a time, drafters before targets before readers.

Handing features over (`copy_*`) takes a worker's time but no core.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dflash.config import EvaluationConfig, PipelineConfig
from dflash.model.results import BatchResult, Rounds, StepResult
from dflash.pipeline.jobs import Completion, Decode, Evaluate, Job, PlannedBatch, Prefetch, Produce, Save, Step, Train
from dflash.pipeline.ledger import BatchId

Stage = Literal["prefetch", "target", "drafter", "step", "copy"]
_PRIORITY: dict[type[Job], int] = {Save: 0, Step: 0, Train: 1, Evaluate: 1, Decode: 1, Produce: 2, Prefetch: 3}
_SHORTEST_SHARE = 0.05


class Blocks(NamedTuple):
    """What a batch's conversations give the drafter to do: blocks drafted, and their conversations' tokens summed over them."""

    anchors: int
    anchor_tokens: int


NO_BLOCKS = Blocks(0, 0)


class Costs(Protocol):
    """Where the seconds of a job come from."""

    @property
    def noise(self) -> float:
        """Standard deviation of the factor that a job's seconds are multiplied by."""

    def seconds(self, job: Job, blocks: Blocks) -> float:
        """Seconds a worker is busy with a job, without noise."""

    def copy_seconds(self, job: Job, feature_bytes: int) -> float:
        """Seconds a worker hands over, besides; `feature_bytes` are the batch's."""


@dataclass(frozen=True)
class CostModel:
    """Seconds of a job as a sum of terms, each 0 or more; the meaning of each stands beside its twin in `SimulationConfig`.

    `noise` is the standard deviation of the factor that a simulated job's seconds are multiplied by; its mean is 1.
    """

    prefetch_fixed: float = 0.0
    prefetch_per_token: float = 0.0
    target_fixed: float = 0.0
    target_per_row: float = 0.0
    target_per_padded_token: float = 1e-4
    target_per_length_squared: float = 0.0
    target_per_packed_token: float = 0.0
    target_read_per_token: float = 0.0
    drafter_fixed: float = 0.0
    drafter_per_row: float = 0.0
    drafter_per_token: float = 1e-4
    drafter_per_anchor: float = 0.0
    drafter_per_anchor_token: float = 0.0
    drafter_metrics: float = 0.0
    evaluation_share: float = 1 / 3
    step_fixed: float = 0.0
    step_per_drafter: float = 0.0
    checkpoint_seconds: float = 0.0
    copy_fixed: float = 0.0
    copy_bytes_per_second: float = 0.0
    noise: float = 0.0
    drafters: int = 1
    """Replicas that add up their gradients at a step."""
    reads_features: bool = False
    """Whether features are cached: the first epoch computes them, later ones and evaluations read."""

    def seconds(self, job: Job, blocks: Blocks = NO_BLOCKS) -> float:
        """Seconds a worker is busy with a job, without noise."""
        match job:
            case Prefetch(batch=batch):
                return self.prefetch_fixed + self.prefetch_per_token * batch.tokens
            case Produce(batch=batch) if self.reads_features and batch.id.epoch != 0:
                return self.target_read_per_token * batch.tokens
            case Produce(batch=batch):
                return (
                    self.target_fixed
                    + self.target_per_row * batch.rows
                    + self.target_per_padded_token * batch.padded_tokens
                    + self.target_per_length_squared * padded_squares(batch)
                    + (self.target_per_packed_token * batch.tokens if batch.packed else 0.0)
                )
            case Train(batch=batch, with_metrics=with_metrics):
                return self._drafting(batch, blocks) + (self.drafter_metrics if with_metrics else 0.0)
            case Evaluate(batch=batch):
                return self.evaluation_share * (self._drafting(batch, blocks) + self.drafter_metrics)
            case Decode():
                return 0.0  # no term tells it, and no simulation asks for it
            case Step():
                return self.step_fixed + self.step_per_drafter * (self.drafters - 1)
            case Save():
                return self.checkpoint_seconds

    def copy_seconds(self, job: Job, feature_bytes: int) -> float:
        """Seconds a worker hands over, besides: every job its messages, targets and drafters their features."""
        if isinstance(job, Produce | Train | Evaluate) and self.copy_bytes_per_second:
            return self.copy_fixed + feature_bytes / self.copy_bytes_per_second
        return self.copy_fixed if not isinstance(job, Save | Step | Decode) else 0.0

    def faster(self, stage: Stage, factor: float) -> Self:
        """The same machine with one stage so many times as fast."""
        terms = {name: value / factor for name, value in vars(self).items() if name.startswith(f"{stage}_")}
        if stage == "copy":
            terms["copy_bytes_per_second"] = self.copy_bytes_per_second * factor
        return replace(self, **terms)

    def _drafting(self, batch: PlannedBatch, blocks: Blocks) -> float:
        return (
            self.drafter_fixed
            + self.drafter_per_row * batch.rows
            + self.drafter_per_token * batch.tokens
            + self.drafter_per_anchor * blocks.anchors
            + self.drafter_per_anchor_token * blocks.anchor_tokens
        )


def padded_squares(batch: PlannedBatch) -> int:
    """What the target's attention pays: the sum of length squared, with padding where there is any."""
    return batch.length_squared if batch.packed else batch.rows * batch.longest**2


@dataclass(frozen=True)
class BlockPlaces:
    """Where blocks may start in each sample.

    Attributes:
        lengths: tokens [all samples].
        places: positions a block may start at [all samples].
    """

    lengths: NDArray[np.integer]
    places: NDArray[np.integer]

    def of(self, samples: NDArray[np.integer], budget: int) -> Blocks:
        """The blocks of these samples when at most `budget` a sample are drawn."""
        drawn = np.minimum(self.places[samples], budget)
        return Blocks(int(drawn.sum()), int(drawn @ self.lengths[samples]))

    def evaluated(self, samples: NDArray[np.integer], evaluation: EvaluationConfig) -> Blocks:
        """The blocks an evaluation of these samples drafts: its random anchors, and the places of an answer to walk over."""
        drawn, walked = self.of(samples, evaluation.anchors), self.of(samples, evaluation.decode_tokens - 1)
        return Blocks(drawn.anchors + walked.anchors, drawn.anchor_tokens + walked.anchor_tokens)


class SimulatedEngine:
    """Jobs end when the cost model says, on a clock of its own.

    Args:
        pipeline: how many workers of each kind.
        costs: seconds of a job.
        seed: of the noise.
        blocks: where blocks may start in the samples; None: no blocks are counted.
        evaluation: how many blocks an evaluation drafts.
        feature_bytes_per_token: bytes handed over a real token.
        cores: CPU cores that all workers share; 0: a device each.
        serial: one job at a time, as the `inline` engine.
    """

    longest_wait_seconds: float | None = None

    def __init__(
        self,
        pipeline: PipelineConfig,
        costs: Costs,
        seed: int = 0,
        *,
        blocks: BlockPlaces | None = None,
        evaluation: EvaluationConfig | None = None,
        feature_bytes_per_token: int = 0,
        cores: int = 0,
        serial: bool = False,
    ) -> None:
        self.targets, self.drafters, self.prefetch_workers = pipeline.targets, pipeline.drafters, pipeline.prefetch_workers
        self.costs = replace(costs, drafters=pipeline.drafters) if isinstance(costs, CostModel) else costs
        self.jobs_done = 0
        self._blocks, self._evaluation = blocks, evaluation or EvaluationConfig()
        self._feature_bytes_per_token = feature_bytes_per_token
        self._random = random.Random(seed)
        self._machine: _Machine = _OneHand() if serial else _Cores(cores)
        self._clock = 0.0

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._clock

    def submit(self, job: Job) -> None:
        """Start a job now; it ends after its cost."""
        batch = None if isinstance(job, Step | Save | Decode) else job.batch
        blocks = NO_BLOCKS
        if isinstance(job, Train | Evaluate) and self._blocks is not None:
            samples, places = job.batch.samples, self._blocks
            blocks = places.of(samples, job.anchors) if isinstance(job, Train) else places.evaluated(samples, self._evaluation)
        seconds = self.costs.seconds(job, blocks)
        if self.costs.noise:
            seconds *= max(1.0 + self.costs.noise * self._random.gauss(0.0, 1.0), _SHORTEST_SHARE)
        copied = self.costs.copy_seconds(job, batch.tokens * self._feature_bytes_per_token if batch is not None else 0)
        self._machine.start(_Doing(job, blocks.anchors, seconds, copied), self._clock)

    def wait(self, patience_seconds: float | None) -> list[Completion]:
        """Move the clock to the next end, or by the patience if that is sooner; what ends at one instant is told at once."""
        end = self._machine.next_end(self._clock)
        if end is None or (patience_seconds is not None and end > self._clock + patience_seconds):
            self._clock += patience_seconds or 0.0
            return []
        self._clock = max(end, self._clock)
        completions = self._machine.finish(self._clock)
        self.jobs_done += len(completions)
        return completions

    def forget(self, batch: BatchId) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True, slots=True)
class _Doing:
    """A job under way: busy for `seconds`, then handing over for `copied` seconds."""

    job: Job
    anchors: int
    seconds: float
    copied: float


class _Machine(Protocol):
    """Decides when jobs under way end."""

    def start(self, doing: _Doing, now: float) -> None:
        """A job begins."""

    def next_end(self, now: float) -> float | None:
        """When the next thing ends if nothing is started before; None: nothing is under way."""

    def finish(self, now: float) -> list[Completion]:
        """End what ends now, in the order it was started; a job whose busy part alone ended is not done."""


class _Cores:
    """All jobs at once, on cores of their own or on shared ones."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._started = 0
        self._virtual = self._at = 0.0
        self._busy: list[tuple[float, int, float, _Doing]] = []
        self._copying: list[tuple[float, int, float, _Doing]] = []

    def start(self, doing: _Doing, now: float) -> None:
        self._advance(now)
        self._started += 1
        heapq.heappush(self._busy, (self._virtual + doing.seconds, self._started, now, doing))

    def next_end(self, now: float) -> float | None:
        self._advance(now)
        copied = self._copying[0][0] if self._copying else None
        if not self._busy:
            return copied
        done = now + (self._busy[0][0] - self._virtual) / self._rate()
        return done if copied is None else min(done, copied)

    def finish(self, now: float) -> list[Completion]:
        if self._copying and (not self._busy or self._copying[0][0] <= now):
            end, _, started, doing = heapq.heappop(self._copying)
            return [_completion(doing, end - started - doing.copied)]
        self._advance(now)
        self._virtual = max(self._virtual, self._busy[0][0])  # rounding aside it is there already
        ended = []
        while self._busy and self._busy[0][0] <= self._virtual:
            _, number, started, doing = heapq.heappop(self._busy)
            if doing.copied:  # its core is free, its features are on their way
                heapq.heappush(self._copying, (now + doing.copied, number, started, doing))
            else:
                ended.append(_completion(doing, now - started))
        return ended

    def _rate(self) -> float:
        return min(1.0, self._cores / len(self._busy)) if self._cores else 1.0

    def _advance(self, now: float) -> None:
        if self._busy:
            self._virtual += (now - self._at) * self._rate()
        self._at = now


class _OneHand:
    """One job at a time, by priority and then in order of starting."""

    def __init__(self) -> None:
        self._started = 0
        self._waiting: list[tuple[int, int, float, _Doing]] = []
        self._running: tuple[float, float, float, _Doing] | None = None

    def start(self, doing: _Doing, now: float) -> None:
        self._started += 1
        heapq.heappush(self._waiting, (_PRIORITY[type(doing.job)], self._started, now, doing))

    def next_end(self, now: float) -> float | None:
        if self._running is None and self._waiting:
            _, _, submitted, doing = heapq.heappop(self._waiting)
            self._running = (now + doing.seconds + doing.copied, now, submitted, doing)
        return None if self._running is None else self._running[0]

    def finish(self, now: float) -> list[Completion]:
        assert self._running is not None
        _, began, submitted, doing = self._running
        self._running = None
        return [Completion(doing.job, doing.seconds, _result(doing), {"blocked": began - submitted})]


def _completion(doing: _Doing, busy_seconds: float) -> Completion:
    return Completion(doing.job, busy_seconds, _result(doing))


def _result(doing: _Doing) -> BatchResult | Rounds | StepResult | None:
    match doing.job:
        case Train(batch=batch) | Evaluate(batch=batch):
            return BatchResult(0.0, 1.0, batch.tokens, batch.tokens, doing.anchors, 0, 0.0)
        case Decode():
            return Rounds(1, 1, 1)
        case Step():
            return StepResult(loss=0.0, grad_norm=0.0, weight_sum=1.0, skipped=False, reason="", seconds=0.0)
        case _:
            return None
