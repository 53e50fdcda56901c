"""The walk over a held-out answer, round by round, as greedy decoding goes: what a drafter is worth without decoding anything.

    anchor on the answer's first token (the prompt's own call gave it)
    loop: draft a block; its streak against the text is accepted, the text's next token is the target's own; that token is the next anchor

Anchors drawn at random weigh each place of the text alike. Decoding leaps over the easy places and lands more often on the hard ones, so its
acceptance is lower, and the walk's is the one to compare with it: where the text is the target's own greedy answer, the two are
equal. All places of the answer are drafted in one pass as if each were an anchor (which rounds there are is known only afterwards), and
the walk picks those it comes by. As in `dflash eval`, the answer is the first of its conversation, up to a limit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dflash.model.anchors import Anchors
from dflash.model.results import Rounds

if TYPE_CHECKING:
    from dflash.data.rows import TokenRows


def places_to_walk(rows: TokenRows, limit: int) -> Anchors:
    """Each place of each row's first answer that a round may start from: all its tokens but the last, of `limit` tokens at most."""
    places: list[NDArray[np.int64]] = []
    for row in range(len(rows)):
        mask = rows.loss_mask[rows.offsets[row] : rows.offsets[row + 1]]
        start = int(mask.argmax()) if mask.any() else len(mask)
        after = np.flatnonzero(~mask[start:])
        length = int(after[0]) if len(after) else len(mask) - start
        places.append(np.arange(start, start + max(min(length, limit) - 1, 0), dtype=np.int64))
    return Anchors.of_rows(places)


def walk(places: Anchors, streaks: NDArray[np.integer]) -> Rounds:
    """Walk over answers.

    Args:
        places: see `places_to_walk`.
        streaks: [places], leading drafted tokens that are right when a block starts there.
    """
    rounds = 0
    edges = np.flatnonzero(np.diff(places.row, prepend=-1, append=-2))
    for start, end in pairwise(edges.tolist()):
        at = start
        while at < end:
            rounds += 1
            at += int(streaks[at]) + 1
    return Rounds(len(edges) - 1, len(places), rounds)
