"""The range of a chart of losses: a fresh drafter's first losses stand so high that all others would lie on the floor.

A range is given only where a series has values above HIGH times its median. It leaves out each series' first fall, from its first value until
it is first below FALLEN times its median, and nothing else: a spike later on is in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash.charts.downsample import Numbers

HIGH, FALLEN = 5.0, 1.5
_ROOM = 0.06


def first_fall(losses: Numbers) -> int:
    """How many of the first losses belong to the fall; 0 where there is none to leave out."""
    told = losses[np.isfinite(losses)]
    if not told.size or told.max() <= HIGH * np.median(told):
        return 0
    return int(np.argmax(losses < FALLEN * np.median(told)))


def range_past_fall(kept: Sequence[Numbers]) -> list[float]:
    """Lowest to highest of what is kept, with a little room."""
    values = np.concatenate(kept)
    values = values[np.isfinite(values)]
    room = _ROOM * max(float(np.ptp(values)), 1e-9)
    return [float(values.min()) - room, float(values.max()) + room]


def fall_words(start: float) -> str:
    """What a chart says of what it leaves out."""
    return f"loss (its first fall, from {start:.3g}, is above)"
