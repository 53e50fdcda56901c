"""What `dflash plan` does: a file of lengths in, plain values out, ready for JSON."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dflash.batching.figures import plan_figures
from dflash.batching.plan import plan_epoch
from dflash.batching.tables import write_plan
from dflash.config import BatchingConfig
from dflash.data.lengths import read_lengths


def plan_command(
    source: str | Path, settings: BatchingConfig, *, window: int, epoch: int = 0, out: str | Path | None = None
) -> dict[str, Any]:
    """Plan one epoch and measure the plan.

    Args:
        source: a file of lengths or a prepared data set, as `read_lengths` takes it.
        settings: how to batch.
        window: batches an optimiser window.
        epoch: from 0.
        out: where to write the plan (Parquet); None: nowhere.

    Returns:
        batches, padding_efficiency, fill, max_padded_tokens, vr, chi, membership_reuse (with the epoch before; of epoch 0, which
        has none, with epoch 1) and plan_seconds (this epoch's plan alone, without reading or measuring).

    Raises:
        RefusedInput: lengths that can't be read or planned.
        RunFailed: `out` can't be written.
    """
    lengths = read_lengths(source)
    started = time.perf_counter()
    plan = plan_epoch(lengths, settings, epoch=epoch, window=window)
    seconds = time.perf_counter() - started
    neighbour = plan_epoch(lengths, settings, epoch=epoch - 1 if epoch else 1, window=window)
    if out is not None:
        write_plan(plan, out)
    return {**plan_figures(plan, lengths, settings, neighbour).as_dict(), "plan_seconds": seconds}
