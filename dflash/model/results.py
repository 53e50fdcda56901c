"""What the trainer reports: sums that can be added over batches and replicas. No torch, so the coordinator needs none.

Everything is kept as sums (never as means), because sums of windows, batches and replicas add up exactly; the ratios are
properties. Slot k of a block is the k-th drafted token, k = 1 .. block_size - 1; tuples over slots start at k = 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockMetrics:
    """Greedy hits of the drafted slots, counted over blocks.

    Attributes:
        correct: per slot, supervised slots whose most likely token is the label.
        valid: per slot, supervised slots.
        streak_sum: leading drafted tokens that are right, summed over blocks; a block ends at its first wrong or unsupervised slot.
        blocks: blocks counted.
    """

    correct: tuple[int, ...]
    valid: tuple[int, ...]
    streak_sum: int
    blocks: int

    @property
    def accuracy(self) -> float:
        """Share of the supervised slots that are right; nan without any."""
        return _ratio(sum(self.correct), sum(self.valid))

    @property
    def accuracy_by_slot(self) -> tuple[float, ...]:
        """Accuracy of slots 1 .. block_size - 1; nan for a slot that was never supervised."""
        return tuple(_ratio(hits, seen) for hits, seen in zip(self.correct, self.valid, strict=True))

    @property
    def streak(self) -> float:
        """Mean number of leading drafted tokens that are right (accepted length without the target's own token)."""
        return _ratio(self.streak_sum, self.blocks)

    @property
    def acceptance_length(self) -> float:
        """Tokens a target call would yield: streak + 1."""
        return self.streak + 1.0


@dataclass(frozen=True)
class Rounds:
    """Answers made by drafting round after round, in decoding or on a walk over a text.

    Attributes:
        answers: answers of two tokens or more.
        tokens: that came of the rounds: all but the first of each answer, which comes with the prompt, and those of calls without a draft.
        rounds: blocks drafted for them, each verified by one call of the target.
    """

    answers: int = 0
    tokens: int = 0
    rounds: int = 0

    @property
    def acceptance_length(self) -> float:
        """Tokens a round yields, the target's own included; nan without any round."""
        return _ratio(self.tokens, self.rounds)

    def __add__(self, other: Rounds) -> Rounds:
        return Rounds(self.answers + other.answers, self.tokens + other.tokens, self.rounds + other.rounds)


@dataclass(frozen=True)
class BatchResult:
    """One batch (or several, merged): the sums its backward pass added to the window.

    Attributes:
        loss_sum: sum of the objective (`drafter.loss`); cross entropy: over supervised slots, weight x negative log-likelihood, in nats.
        weight_sum: sum of those weights.
        tokens: real tokens of the batch.
        loss_tokens: tokens of the batch with the loss mask set.
        anchors: blocks drafted.
        slots: supervised slots, those that got logits.
        seconds: wall seconds of the drafter's work.
        metrics: hits of the slots; None when they were not asked for.
        walk: what a walk over the answers yields (see `walk`); held-out batches only.
        cross_entropy_sum: sum over supervised slots of weight x negative log-likelihood, in nats, whatever the objective; None: not told.
    """

    loss_sum: float
    weight_sum: float
    tokens: int
    loss_tokens: int
    anchors: int
    slots: int
    seconds: float
    metrics: BlockMetrics | None = None
    walk: Rounds | None = None
    cross_entropy_sum: float | None = None

    @property
    def loss(self) -> float:
        """Mean of the objective by weight; nan without supervised slots."""
        return _ratio(self.loss_sum, self.weight_sum)

    @property
    def cross_entropy(self) -> float | None:
        """Weighted mean negative log-likelihood in nats, comparable between objectives; None when it was not told."""
        return None if self.cross_entropy_sum is None else _ratio(self.cross_entropy_sum, self.weight_sum)

    @property
    def accuracy(self) -> float | None:
        """See `BlockMetrics.accuracy`; None without metrics."""
        return self.metrics.accuracy if self.metrics else None

    @property
    def streak(self) -> float | None:
        """See `BlockMetrics.streak`; None without metrics."""
        return self.metrics.streak if self.metrics else None

    @property
    def acceptance_length(self) -> float | None:
        """Simulated on random anchors, see `BlockMetrics.acceptance_length`; None without metrics."""
        return self.metrics.acceptance_length if self.metrics else None

    @property
    def walk_acceptance_length(self) -> float | None:
        """Simulated by the walk, see `Rounds.acceptance_length`; None without a walk."""
        return self.walk.acceptance_length if self.walk else None


@dataclass(frozen=True)
class StepResult:
    """One optimiser step over a whole window.

    Attributes:
        loss: mean of the objective by weight over the window and all replicas; of cross entropy in nats.
        grad_norm: global norm of the gradient of that mean, before clipping.
        weight_sum: the window's weights over all replicas.
        skipped: True when nothing was changed.
        reason: why it was skipped; empty otherwise.
        seconds: wall seconds of the step, the exchange between replicas included.
    """

    loss: float
    grad_norm: float
    weight_sum: float
    skipped: bool
    reason: str
    seconds: float


def merged(results: Iterable[BatchResult]) -> BatchResult:
    """Add up results of the same drafter; metrics are added over those batches that have them."""
    batches = list(results)
    told = [batch.cross_entropy_sum for batch in batches if batch.cross_entropy_sum is not None]
    return BatchResult(
        loss_sum=sum(batch.loss_sum for batch in batches),
        weight_sum=sum(batch.weight_sum for batch in batches),
        tokens=sum(batch.tokens for batch in batches),
        loss_tokens=sum(batch.loss_tokens for batch in batches),
        anchors=sum(batch.anchors for batch in batches),
        slots=sum(batch.slots for batch in batches),
        seconds=sum(batch.seconds for batch in batches),
        metrics=merged_metrics([batch.metrics for batch in batches if batch.metrics is not None]),
        walk=merged_rounds([batch.walk for batch in batches if batch.walk is not None]),
        cross_entropy_sum=sum(told) if len(told) == len(batches) else None,
    )


def merged_rounds(parts: Sequence[Rounds]) -> Rounds | None:
    """Add up rounds; None for none."""
    return sum(parts, Rounds()) if parts else None


def merged_metrics(parts: Sequence[BlockMetrics]) -> BlockMetrics | None:
    """Add up metrics of blocks of one size; None for none."""
    if not parts:
        return None
    return BlockMetrics(
        correct=tuple(sum(column) for column in zip(*(part.correct for part in parts), strict=True)),
        valid=tuple(sum(column) for column in zip(*(part.valid for part in parts), strict=True)),
        streak_sum=sum(part.streak_sum for part in parts),
        blocks=sum(part.blocks for part in parts),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
