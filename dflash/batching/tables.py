"""A plan as tables: one row a batch for charts, one row a sample for a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from dflash.batching.boundaries import bucket_of, quantile_boundaries
from dflash.batching.figures import padded_tokens
from dflash.batching.membership import DEFAULT_BUCKETS
from dflash.batching.plan import EpochPlan
from dflash.errors import RunFailed


def batch_table(plan: EpochPlan, lengths: ArrayLike, boundaries: Sequence[int] | None = None) -> pl.DataFrame:
    """One row a batch, in execution order.

    Args:
        plan: the plan.
        lengths: tokens of every sample of the data set [all samples].
        boundaries: length buckets, K + 1 numbers; None: six by equal samples of the plan.

    Returns:
        batch (execution index), rows, tokens (real), padded_tokens, longest (tokens of the longest row), bucket. A padded batch is
        in the bucket of its longest row, a packed one (nearly each has a long row) in that of its token-weighted mean length.
    """
    rows = np.asarray(lengths)[plan.samples].astype(np.int64)
    starts = plan.offsets[:-1]
    tokens = np.add.reduceat(rows, starts)
    longest = np.maximum.reduceat(rows, starts)
    typical: NDArray[np.integer] = np.add.reduceat(rows * rows, starts) // tokens if plan.packed else longest
    edges = boundaries or quantile_boundaries(rows, DEFAULT_BUCKETS)
    return pl.DataFrame(
        {
            "batch": np.arange(len(plan)),
            "rows": np.diff(plan.offsets),
            "tokens": tokens,
            "padded_tokens": padded_tokens(plan, lengths),
            "longest": longest,
            "bucket": bucket_of(typical, edges),
        }
    )


def write_plan(plan: EpochPlan, path: str | Path) -> None:
    """Write the plan as Parquet, one row a sample in execution order: batch (execution index), sample (its id), both int64.

    The file appears under its name only when it is whole.

    Raises:
        RunFailed: it can't be written (no such folder, no right to, a full disk).
    """
    place = Path(path)
    unfinished = place.with_name(f".{place.name}.unfinished")
    batch = np.repeat(np.arange(len(plan)), np.diff(plan.offsets))
    try:
        pl.DataFrame({"batch": batch, "sample": plan.samples}).write_parquet(unfinished)
        unfinished.replace(place)
    except (OSError, pl.exceptions.PolarsError) as error:
        unfinished.unlink(missing_ok=True)
        raise RunFailed(f"{place}: the plan can't be written ({error}); make sure the folder exists and has room") from error
