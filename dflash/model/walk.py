"""The walk over a held-out answer, round by round, as greedy decoding goes: what a drafter is worth without decoding anything.

    anchor on the answer's first token (the prompt's own call gave it)
    loop: draft a block; its streak against the text is accepted, the text's next token is the target's own; that token is the next anchor

Anchors drawn at random weigh each place of the text alike. Decoding leaps over the easy places and lands more often on the hard ones, so its
acceptance is lower, and the walk's is the one to compare with it: where the text is the target's own greedy answer, the two are
equal. All places of the answer are drafted in one pass as if each were an anchor (which rounds there are is known only afterwards), and
the walk picks those it comes by. As in `dflash eval`, the answer is the first of its conversation, up to a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dflash.model.anchors import Anchors
from dflash.model.results import Rounds

if TYPE_CHECKING:
    from dflash.data.rows import TokenRows


@dataclass(frozen=True)
class Answers:
    """The answers to walk over.

    Attributes:
        places: each place that a round may start from. With one token left up to the limit decoding drafts no more: no round starts there.
        last: [rows], position of the last token that counts in its conversation.
    """

    places: Anchors
    last: NDArray[np.int64]


def answers_to_walk(rows: TokenRows, limit: int) -> Answers:
    """Each row's first answer, of which `limit` tokens count at most."""
    places: list[NDArray[np.int64]] = []
    last = np.zeros(len(rows), np.int64)
    for row in range(len(rows)):
        mask = rows.loss_mask[rows.offsets[row] : rows.offsets[row + 1]]
        start = int(mask.argmax()) if mask.any() else len(mask)
        after = np.flatnonzero(~mask[start:])
        length = int(after[0]) if len(after) else len(mask) - start
        last[row] = start + min(length, limit) - 1
        places.append(np.arange(start, min(start + length - 1, start + limit - 2), dtype=np.int64))
    return Answers(Anchors.of_rows(places), last)


def walk(answers: Answers, streaks: NDArray[np.integer]) -> Rounds:
    """Walk over answers.

    Args:
        answers: see `answers_to_walk`.
        streaks: [places], leading drafted tokens that are right when a block starts there.
    """
    rounds = tokens = 0
    places = answers.places
    edges = np.flatnonzero(np.diff(places.row, prepend=-1, append=-2))
    for start, end in pairwise(edges.tolist()):
        at = start
        while at < end:
            rounds += 1
            at += int(streaks[at]) + 1
        tokens += min(at - start, int(answers.last[places.row[start]] - places.position[start]))
    return Rounds(len(edges) - 1, tokens, rounds)
