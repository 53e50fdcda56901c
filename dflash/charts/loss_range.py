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
_MEDIAN_OF = 10_000  # losses at most about, at equal distances: a chart is drawn twice a second, of a million steps too


def first_fall(losses: Numbers) -> int:
    """How many of the first losses belong to the fall; 0 where there is none to leave out."""
    sample = losses[:: max(losses.size // _MEDIAN_OF, 1)]
    sample = sample[np.isfinite(sample)]
    if not sample.size:
        return 0
    median = float(np.median(sample))
    if median <= 0 or _bounds(losses)[1] <= HIGH * median:  # an objective may be negative, minus an accepted length
        return 0
    return int(np.argmax(losses < FALLEN * median))


def range_past_fall(kept: Sequence[Numbers]) -> list[float]:
    """Lowest to highest of what is kept, with a little room."""
    lows, highs = zip(*(_bounds(part) for part in kept), strict=True)
    low, high = min(lows), max(highs)
    room = _ROOM * max(high - low, 1e-9)
    return [low - room, high + room]


def _bounds(losses: Numbers) -> tuple[float, float]:
    """The lowest and the highest finite loss."""
    told = np.isfinite(losses)
    return float(losses.min(where=told, initial=np.inf)), float(losses.max(where=told, initial=-np.inf))


def fall_words(start: float) -> str:
    """What a chart says of what it leaves out."""
    return f"loss (its first fall, from {start:.3g}, is above)"
