"""The ledger: where each batch is, so that each sample is trained on exactly once an epoch.

An epoch is a chain of plans ("segments"). The first covers all samples of the epoch; when batching is changed live, what has not
been issued yet is planned anew as the next segment. A batch is `BatchId(epoch, segment, number)`, and ids sort in plan order. Each
goes planned -> issued -> pooled -> taken -> committed, and is committed when the optimiser step that used it is; anything short of
that is done again after a crash. What a checkpoint stores is small: per segment its recipe and the committed and dropped indices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple


class BatchId(NamedTuple):
    """Names one batch of a run; ids sort in plan order."""

    epoch: int
    segment: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.segment}.{self.number}"


class BatchState(IntEnum):
    """How far a batch has come."""

    PLANNED = 0
    ISSUED = 1
    POOLED = 2
    TAKEN = 3
    COMMITTED = 4
    DROPPED = 5


class LedgerFault(AssertionError):
    """A batch was to make a move it may not make: a fault of the program, never of the input."""


@dataclass
class Segment:
    """One plan within an epoch: how it was made, and how far it has come."""

    recipe: dict[str, Any]
    """`BatchingConfig` as a dict and the window: with (epoch, samples left) they make the plan again."""
    batches: int
    states: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.states = self.states or bytearray(self.batches)

    def indices(self, *wanted: BatchState) -> list[int]:
        """The batches in one of these states, ascending."""
        return [index for index, state in enumerate(self.states) if state in wanted]


class Ledger:
    """All segments of the epochs under way, and the count of what is done."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Segment]] = {}
        self.epochs_done = 0

    def open_segment(self, epoch: int, recipe: dict[str, Any], batches: int) -> int:
        """Add a plan to an epoch; what was only planned in the segment before is dropped there. Returns its number."""
        segments = self.epochs.setdefault(epoch, [])
        if segments:
            segments[-1].states = segments[-1].states.replace(bytes([BatchState.PLANNED]), bytes([BatchState.DROPPED]))
        segments.append(Segment(recipe, batches))
        return len(segments) - 1

    def state(self, batch: BatchId) -> BatchState:
        """Where a batch is."""
        return BatchState(self.epochs[batch.epoch][batch.segment].states[batch.number])

    def advance(self, batch: BatchId, state: BatchState) -> None:
        """Move a batch one state on.

        Raises:
            LedgerFault: it is not in the state just before.
        """
        now = self.state(batch)
        if state != now + 1 or state == BatchState.DROPPED:
            raise LedgerFault(f"batch {batch} is {now.name.lower()}, it can't become {state.name.lower()}")
        self.epochs[batch.epoch][batch.segment].states[batch.number] = state

    def give_back(self, batch: BatchId) -> None:
        """A worker lost the batch before it was committed: it is planned again."""
        now = self.state(batch)
        if now not in (BatchState.ISSUED, BatchState.POOLED, BatchState.TAKEN):
            raise LedgerFault(f"batch {batch} is {now.name.lower()}, it can't be given back")
        self.epochs[batch.epoch][batch.segment].states[batch.number] = BatchState.PLANNED

    def left_in_epoch(self, epoch: int) -> int:
        """Batches of an epoch that still have to be committed."""
        settled = (BatchState.COMMITTED, BatchState.DROPPED)
        segments = self.epochs.get(epoch, [])
        return sum(segment.batches - sum(segment.states.count(state) for state in settled) for segment in segments)

    def close_epoch(self, epoch: int) -> None:
        """Forget an epoch whose last batch is committed.

        Raises:
            LedgerFault: batches are left, or it is not the next one to close.
        """
        left = self.left_in_epoch(epoch)
        if left or epoch != self.epochs_done:
            raise LedgerFault(f"epoch {epoch} can't be closed: {left} batches left, {self.epochs_done} epochs closed")
        del self.epochs[epoch]
        self.epochs_done += 1

    def saved(self) -> dict[str, Any]:
        """The ledger as JSON: recipes, and what is settled of each segment as ranges of indices."""
        return {
            "epochs_done": self.epochs_done,
            "epochs": {
                str(epoch): [
                    {
                        "recipe": segment.recipe,
                        "batches": segment.batches,
                        "committed": ranges(segment.indices(BatchState.COMMITTED)),
                        "dropped": ranges(segment.indices(BatchState.DROPPED)),
                    }
                    for segment in segments
                ]
                for epoch, segments in self.epochs.items()
            },
        }

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> Ledger:
        """Build the ledger from `saved`; what was under way then is planned again."""
        ledger = cls()
        ledger.epochs_done = int(saved["epochs_done"])
        for epoch, segments in saved["epochs"].items():
            ledger.epochs[int(epoch)] = [_restored_segment(each) for each in segments]
        return ledger


def ranges(indices: list[int]) -> list[list[int]]:
    """Ascending indices as [first, past-the-last] pairs."""
    pairs: list[list[int]] = []
    for index in indices:
        if pairs and pairs[-1][1] == index:
            pairs[-1][1] = index + 1
        else:
            pairs.append([index, index + 1])
    return pairs


def _restored_segment(saved: dict[str, Any]) -> Segment:
    segment = Segment(saved["recipe"], int(saved["batches"]))
    for name, state in (("committed", BatchState.COMMITTED), ("dropped", BatchState.DROPPED)):
        for first, past in saved[name]:
            segment.states[first:past] = bytes([state]) * (past - first)
    return segment
