"""Learning rate: linear warm-up, then a cosine, over the true number of optimiser steps.

The number of steps is not rows / batch: batches vary, and so does their count from epoch to epoch. `steps_in` counts what the
planner really makes. Step s (from 0) of n is given the rate at the middle of its interval, so that neither the first nor the last is
wasted at zero.
"""

from __future__ import annotations

import math

from dflash.config import OptimConfig


def steps_in(batches: int, accumulate: int) -> int:
    """Optimiser steps for so many batches; the last window of an epoch may be short."""
    return -(-batches // accumulate)


def learning_rate(step: int, total_steps: int, optim: OptimConfig) -> float:
    """Rate of step `step` of `total_steps`; steps past the end keep the last rate."""
    warmup_steps = optim.warmup * total_steps
    at = min(step, total_steps - 1) + 0.5
    if at < warmup_steps:
        return optim.lr * at / warmup_steps
    progress = (at - warmup_steps) / max(total_steps - warmup_steps, 1e-9)
    floor = optim.lr * optim.min_lr_ratio
    return floor + (optim.lr - floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
