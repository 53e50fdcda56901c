"""A held-out evaluation as it passes through the workers: read, run the target, run the drafter without learning; and decoding.

It uses the same workers as training, at a safe point between optimiser steps, and takes precedence over new training work; readers and
targets that it leaves idle go on for training. Its features never enter the pool; at most one item more than there are drafters is held.
Real decoding needs the whole target beside the drafter, so drafter 0 does it alone, one prompt a job, while the others evaluate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.batching.plan import plan_epoch
from dflash.config import BatchingConfig, EvaluationConfig
from dflash.model.results import BatchResult, Rounds, merged, merged_rounds
from dflash.pipeline.jobs import Completion, Decode, Evaluate, PlannedBatch, Prefetch, Produce
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reports import EvaluationReport


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


def choose_prompts(loss_tokens: NDArray[np.integer], held_out: NDArray[np.int64], limit: int) -> list[int]:
    """Held-out samples to decode: the first `limit` that have an answer."""
    return [int(sample) for sample in held_out[loss_tokens[held_out] > 1][:limit]]


class Due(NamedTuple):
    """What an evaluation consists of: acceptance simulated on the answers of the data, and real decoding."""

    simulate: bool
    decode: bool


def due_after(step: int, settings: EvaluationConfig) -> Due:
    """What is due after so many steps. First weights are not decoded: they accept nothing."""
    simulate, decode = (every > 0 and step % every == 0 for every in (settings.every, settings.decode_every))
    return Due(simulate, decode and step > 0)


@dataclass
class EvaluationPass:
    """The held-out batches and prompts of one evaluation, by how far each has come.

    `seconds` are those that workers were busy with it, by stage.
    """

    batches: list[PlannedBatch]
    drafters: int
    prompts: list[int] = field(default_factory=list)
    results: list[BatchResult] = field(default_factory=list)
    decoded: list[Rounds] = field(default_factory=list)

    def __post_init__(self) -> None:
        stages = [*(["target", "drafter"] if self.batches else []), *(["decoding"] if self.prompts else [])]
        self.seconds = dict.fromkeys(stages, 0.0)
        self._unread = deque(self.batches)
        self._undecoded = deque(self.prompts)
        self._read: deque[PlannedBatch] = deque()
        self._featured: deque[PlannedBatch] = deque()
        self._held = 0

    @property
    def complete(self) -> bool:
        """Whether every batch has its result, and every prompt its answer."""
        return len(self.results) == len(self.batches) and len(self.decoded) == len(self.prompts)

    def next_to_read(self) -> PlannedBatch | None:
        """A batch for a free reader."""
        if not self._unread or self._held > self.drafters + len(self.results):
            return None
        self._held += 1
        return self._unread.popleft()

    def next_to_produce(self) -> PlannedBatch | None:
        """A batch for a free target."""
        return self._read.popleft() if self._read else None

    def next_for_drafter(self, drafter: int) -> Evaluate | Decode | None:
        """A job for a free drafter."""
        if drafter == 0 and self._undecoded:
            return Decode(drafter, self._undecoded.popleft())
        return Evaluate(drafter, self._featured.popleft()) if self._featured else None

    def evaluated(self, ended: Completion) -> None:
        """A drafter is done with a batch, or with a prompt."""
        is_decoding = isinstance(ended.job, Decode)
        ended_here: list[Any] = self.decoded if is_decoding else self.results
        ended_here.append(ended.result)
        stage = "decoding" if is_decoding else "drafter"
        self.seconds[stage] = self.seconds.get(stage, 0.0) + ended.busy_seconds

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

    def report(self, step: int, seconds: float) -> EvaluationReport:
        """What came of it, `seconds` after it began."""
        return EvaluationReport(
            step=step,
            conversations=sum(batch.rows for batch in self.batches),
            prompts=len(self.prompts),
            simulated=merged(self.results) if self.batches else None,
            decoded=merged_rounds(self.decoded),
            seconds={**self.seconds, "evaluation": seconds},
        )
