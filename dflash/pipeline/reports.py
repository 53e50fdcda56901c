"""What the coordinator tells others: a batch trained, a step taken, how far the run is, and who wants to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dflash.model.results import BatchResult, Rounds, StepResult
from dflash.pipeline.jobs import PlannedBatch, Save

if TYPE_CHECKING:
    from dflash.pipeline.coordinator import Coordinator


@dataclass
class Passage:
    """A batch's way through the stages so far: the seconds each took, and in which turn of the coordinator it was read, produced, pulled.

    Turns tell the order of things exactly, where clocks of several processes don't; a replay needs nothing else.
    """

    seconds: dict[str, float]
    turns: list[int]


@dataclass(frozen=True)
class Trained:
    """One batch done by a drafter, with the seconds each stage took and the turns it was read, produced, pulled and trained in."""

    batch: PlannedBatch
    drafter: int
    result: BatchResult
    seconds: dict[str, float]
    turns: list[int]


@dataclass(frozen=True)
class StepReport:
    """One optimiser step: what it used and what came of it."""

    step: int
    epoch: int
    lr: float
    result: StepResult
    batches: list[Trained]
    step_seconds: float


@dataclass(frozen=True)
class EvaluationReport:
    """One held-out evaluation.

    Attributes:
        step: optimiser steps taken before it.
        conversations: held out, and simulated on.
        prompts: decoded.
        simulated: figures on the answers of the data; None when it was not done this time.
        decoded: rounds of real speculative decoding; None when it was not done this time.
        seconds: `evaluation`: it took; and those that all workers were busy with it: `target`, `drafter`, `decoding`.
    """

    step: int
    conversations: int
    prompts: int
    simulated: BatchResult | None
    decoded: Rounds | None
    seconds: dict[str, float]


@dataclass
class Window:
    """The batches of one optimiser step while they are being gathered."""

    size: int
    epoch: int
    taken: int = 0
    done: list[Trained] = field(default_factory=list)


@dataclass
class Progress:
    """How far the run is; goes into every checkpoint."""

    step: int = 0
    committed_tokens: int = 0
    committed_batches: int = 0
    skips_in_a_row: int = 0


class Listener(Protocol):
    """Who is told what happened; see `reporting` for the one that writes events and console lines."""

    def trained(self, trained: Trained) -> None:
        """A drafter finished a batch."""

    def stepped(self, report: StepReport) -> None:
        """An optimiser step was taken (or skipped), and its batches are committed."""

    def evaluated(self, report: EvaluationReport) -> None:
        """A held-out evaluation ended."""

    def lost(self, worker: str, reason: str, step: int) -> None:
        """A worker died or hung; its job is done again."""

    def turned(self, coordinator: Coordinator) -> None:
        """One turn of the loop is over: a good moment to sample, to print, and to obey commands (`live`)."""


class Checkpointer(Protocol):
    """Where checkpoints go; see `checkpoints`."""

    def begin(self, step: int, *, weights_only: bool = False) -> Save:
        """The job that writes weights and optimiser, or the weights only."""

    def commit(self, step: int, state: dict[str, Any]) -> None:
        """Weights are written: add the coordinator's state and make the checkpoint visible."""


class KeepsBest(Protocol):
    """Who keeps the best checkpoint; see `best`."""

    def offer(self, report: EvaluationReport, save: Callable[[Save], object]) -> None:
        """An evaluation ended: if it is the best so far, have the weights written by `save`, and keep them."""
