"""The planner's randomness: one generator for each (seed, epoch, purpose).

Nothing random is carried from one call to the next, so a plan depends on its arguments alone: any worker on any machine makes the
same one, and a resumed run needs no saved generator.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Purpose = Literal["membership", "order"]
_STREAMS: dict[Purpose, int] = {"membership": 0, "order": 1}


def generator(seed: int, epoch: int, purpose: Purpose) -> np.random.Generator:
    """PCG64 seeded by (seed, epoch, purpose) through `SeedSequence`; streams of different keys are independent."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(epoch, _STREAMS[purpose]))
    return np.random.Generator(np.random.PCG64(sequence))
