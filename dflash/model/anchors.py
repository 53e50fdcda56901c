"""Which positions blocks start at, and what each slot of a block has to predict.

Anchors are drawn anew at every use, but statelessly: the draw of a conversation depends on (seed, epoch, sample id) alone, so it
is the same on any worker, in any batch, and after any resume. The budget is per conversation, also when conversations are
packed, so a long row starves nobody. Only positions whose own token and next token are both supervised can be anchors, so
every block has something to learn and no invalid block is ever computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dflash.data.rows import TokenRows

EVALUATION = -1
"""The epoch of held-out evaluation: the same anchors every time."""


@dataclass(frozen=True)
class Anchors:
    """Block starts of several conversations, ordered by row, then by position.

    Attributes:
        row: [blocks]; index into the batch's rows.
        position: [blocks]; the anchor's position in its conversation.
    """

    row: NDArray[np.int64]
    position: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of_rows(cls, positions: list[NDArray[np.int64]]) -> Anchors:
        """The anchors whose positions are given row by row."""
        return cls(
            row=np.repeat(np.arange(len(positions)), [len(each) for each in positions]),
            position=np.concatenate([np.empty(0, np.int64), *positions]),
        )

    def split(self, limit: int) -> list[Anchors]:
        """Consecutive parts of at most `limit` blocks each, as even as can be; none for no blocks."""
        parts = -(-len(self) // limit)
        cuts = [len(self) * part // parts for part in range(parts + 1)] if parts else [0]
        return [Anchors(self.row[a:b], self.position[a:b]) for a, b in pairwise(cuts)]


def draw_anchors(rows: TokenRows, *, budget: int, seed: int, epoch: int) -> Anchors:
    """Draw at most `budget` anchors a conversation, uniformly without replacement.

    Args:
        rows: the conversations.
        budget: blocks a conversation, at most.
        seed: of the run.
        epoch: 0, 1, ... or `EVALUATION`.
    """
    drawn: list[NDArray[np.int64]] = []
    for row, sample_id in enumerate(rows.sample_ids):
        mask = rows.loss_mask[rows.offsets[row] : rows.offsets[row + 1]]
        candidates = np.flatnonzero(mask[:-1] & mask[1:])
        if len(candidates) > budget:
            candidates = np.sort(_generator(seed, epoch, int(sample_id)).choice(candidates, budget, replace=False, shuffle=False))
        drawn.append(candidates.astype(np.int64))
    return Anchors.of_rows(drawn)


def noise_seed(seed: int, epoch: int, sample_id: int) -> int:
    """A 63-bit seed of a conversation's feature noise, independent of its anchors."""
    words = np.random.SeedSequence((1, seed, epoch + 1, sample_id)).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def _generator(seed: int, epoch: int, sample_id: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((0, seed, epoch + 1, sample_id))))
