"""What the coordinator and an engine say to each other: jobs out, completions back. No torch, no clock of its own.

An engine is where work happens. It keeps tokens and features under the batch's id; the coordinator only says which worker is to do
what, and when something may be forgotten. Time is the engine's: seconds on a clock that only goes forward, virtual when simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.errors import RunFailed
from dflash.pipeline.ledger import BatchId


class EngineDied(RunFailed):
    """What carries the workers is gone, and the engine with it: the run is over, and a resume starts another."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One batch of the plan, described without its tokens.

    `bucket` is the length bucket of its longest row. `class_tokens` are its real tokens in each of the 16 length classes of the
    data (equal in tokens over the whole data set). `length_squared` sums length^2 over rows, the part attention pays.
    """

    id: BatchId
    samples: NDArray[np.int64]
    rows: int
    tokens: int
    padded_tokens: int
    longest: int
    length_squared: int
    bucket: int
    class_tokens: tuple[int, ...]
    packed: bool


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Read the batch's tokens and lay them out."""

    worker: int
    batch: PlannedBatch


@dataclass(frozen=True, slots=True)
class Produce:
    """Run the target over the batch; its features are then kept by the engine."""

    worker: int
    batch: PlannedBatch


@dataclass(frozen=True, slots=True)
class Train:
    """Run the drafter over the batch's features, `anchors` blocks a conversation, and add to this replica's gradient."""

    worker: int
    batch: PlannedBatch
    anchors: int
    with_metrics: bool


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Run the drafter over held-out features without learning from them."""

    worker: int
    batch: PlannedBatch


@dataclass(frozen=True, slots=True)
class Decode:
    """Answer the prompt of a held-out sample by real speculative decoding with the weights as they are."""

    worker: int
    sample: int


@dataclass(frozen=True, slots=True)
class Step:
    """All drafters: sum the gradients, and take one optimiser step at learning rate `lr`."""

    step: int
    lr: float


@dataclass(frozen=True, slots=True)
class Save:
    """Drafter 0: write weights and optimiser into `folder`; or the weights only, which is all that serving needs."""

    folder: Path
    weights_only: bool = False


Job = Prefetch | Produce | Train | Evaluate | Decode | Step | Save


@dataclass(frozen=True, slots=True)
class Completion:
    """A job that ended. `busy_seconds` is what the worker itself spent on it; `result` is the stage's, None for most."""

    job: Job
    busy_seconds: float
    result: Any = None
    extra_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of the worker in other states: compile, copy."""
    fault: str | None = None
    """Why the worker was lost with the job undone; None when it was done."""


class Engine(Protocol):
    """Where work happens."""

    targets: int
    drafters: int
    prefetch_workers: int
    longest_wait_seconds: float | None
    """How long `wait` may keep the coordinator from printing and from noticing a stop; None: for ever does no harm."""

    def now(self) -> float:
        """Seconds on the engine's clock."""

    def submit(self, job: Job) -> None:
        """Start a job; the worker it names must be free."""

    def wait(self, patience_seconds: float | None) -> list[Completion]:
        """Wait until something ends, at most so long (None: for ever). Empty: nothing ended, or nothing is under way.

        A lost worker's job ends with a `fault`; readers and targets are there again for the next job, a drafter is not.

        Raises:
            EngineDied: not a worker, but what carries them is gone.
        """

    def forget(self, batch: BatchId) -> None:
        """Drop what is kept of a batch."""

    def close(self) -> None:
        """End all workers and give back all memory."""
