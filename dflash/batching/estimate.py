"""What a bucketed plan will cost, from counts of lengths alone: milliseconds, whatever the number of samples.

A bucket's rows come in random order and are cut greedily: row after row while rows x longest stays within the budget; the row that no
longer fits begins the next batch, so that first rows are longer than others. Let F be the bucket's cumulative share, G that of first rows,
x_k = budget / k. A batch has at least k rows exactly when its first k are all at most x_k long (k x longest grows with k), so

    P(rows >= k) = G(x_k) F(x_k)^(k-1) =: A_k,      E[rows] = sum over k of A_k,
    P(rows = k, next = l) = f(l) (A_k - [l <= x_(k+1)] G(x_(k+1)) F(x_(k+1))^(k-1)),

whose sum over k is G's own share of l: a fixed point, reached in a few rounds. With M_k(x) = E[longest of k; it is at most x], which is
the sum over l < x of (G(x) F(x)^(k-1) - G(l) F(l)^(k-1)),

    E[rows x longest] = sum over k of k (M_k(x_k) - F(x_(k+1)) M_k(x_(k+1))),

and the bucket's padded tokens are samples x E[rows x longest] / E[rows] (renewal). What is left out: an epoch draws without replacement,
and each bucket's last batch is cut short; both vanish as batches grow many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.batching.analysis import LengthCounts
from dflash.batching.boundaries import bucket_of
from dflash.errors import RefusedInput

_NEGLIGIBLE = 1e-9
_ROUNDS = 12


def estimate_buckets(
    counts: LengthCounts, boundaries: Sequence[int], token_budget: int, max_rows: int | None = None
) -> pl.DataFrame:
    """One row a bucket that holds samples.

    Args:
        counts: of the lengths planned.
        boundaries: K + 1 ascending numbers, the first 0, the last no less than the longest length.
        token_budget: rows x longest row, at most.
        max_rows: rows a batch, at most.

    Returns:
        bucket, above, up_to (tokens), samples, tokens (real), padded_tokens, batches, rows (a batch, mean): the last three expected.

    Raises:
        RefusedInput: a row is longer than the last boundary or than the budget.
    """
    longest = int(counts.lengths[-1])
    if longest > boundaries[-1]:
        raise RefusedInput(
            f"boundaries end at {boundaries[-1]}, the longest row has {longest} tokens; make the last one {longest} or more"
        )
    if longest > token_budget:
        raise RefusedInput(f"token_budget={token_budget} is below the longest row of {longest} tokens")
    bucket = bucket_of(counts.lengths, boundaries)
    rows = []
    for number in np.unique(bucket):
        here = bucket == number
        lengths, samples = counts.lengths[here], counts.samples[here]
        total = int(samples.sum())
        batch_rows, batch_padded = _mean_batch(lengths, samples, token_budget, max_rows or total)
        rows.append(
            {
                "bucket": int(number),
                "above": int(boundaries[number]),
                "up_to": int(boundaries[number + 1]),
                "samples": total,
                "tokens": int(lengths @ samples),
                "padded_tokens": total * batch_padded / batch_rows,
                "batches": max(total / batch_rows, 1.0),
                "rows": batch_rows,
            }
        )
    return pl.DataFrame(rows)


def estimated_efficiency(buckets: pl.DataFrame) -> float:
    """Padding efficiency of the whole: real tokens / padded tokens."""
    return float(buckets["tokens"].sum()) / float(buckets["padded_tokens"].sum())


def _mean_batch(lengths: NDArray[np.int64], samples: NDArray[np.int64], budget: int, max_rows: int) -> tuple[float, float]:
    """Expected rows and expected rows x longest of a batch."""
    longest = int(lengths[-1])
    row_share = np.zeros(longest + 1)
    row_share[lengths] = samples / samples.sum()
    rows_up_to = np.minimum(np.cumsum(row_share), 1.0)
    first_up_to = rows_up_to
    counts = _possible_rows(rows_up_to, int(lengths[0]), budget, max_rows)
    fits, fits_one_more = np.minimum(budget // counts, longest), np.minimum(budget // (counts + 1), longest)
    may_go_on = counts < max_rows
    for _ in range(_ROUNDS):
        reached = first_up_to[fits] * rows_up_to[fits] ** (counts - 1)
        still_fits = np.where(may_go_on, first_up_to[fits_one_more] * rows_up_to[fits_one_more] ** (counts - 1), 0.0)
        goes_on = np.zeros(longest + 1)
        np.add.at(goes_on, fits_one_more, still_fits)
        goes_on = np.cumsum(goes_on[::-1])[::-1]  # for each length: over all k whose next row of that length would fit
        first_share = row_share * np.maximum(reached.sum() - goes_on, 0.0)
        first_up_to = np.minimum(np.cumsum(first_share) / first_share.sum(), 1.0)
    reached = first_up_to[fits] * rows_up_to[fits] ** (counts - 1)
    longest_if_reached = _mean_longest(first_up_to, rows_up_to, counts, fits)
    longest_if_more = np.where(may_go_on, rows_up_to[fits_one_more], 0.0) * _mean_longest(
        first_up_to, rows_up_to, counts, fits_one_more
    )
    return int(counts[0]) - 1 + float(reached.sum()), float((counts * (longest_if_reached - longest_if_more)).sum())


def _possible_rows(rows_up_to: NDArray[np.float64], shortest: int, budget: int, max_rows: int) -> NDArray[np.int64]:
    """Rows a batch may have, from those it surely has to those it next to never reaches."""
    longest = rows_up_to.size - 1
    counts = np.arange(min(budget // longest, max_rows), min(budget // shortest, max_rows) + 1)
    likely = rows_up_to[np.minimum(budget // counts, longest)] ** (counts - 1) > _NEGLIGIBLE
    return counts[: max(int(np.flatnonzero(likely)[-1]) + 1, 1)]


def _mean_longest(
    first_up_to: NDArray[np.float64], rows_up_to: NDArray[np.float64], counts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.float64]:
    """M_k(x) for each k of `counts` and its x."""
    found = np.empty(counts.size)
    for at, (rows, end) in enumerate(zip(counts, ends, strict=True)):
        below = first_up_to[: end + 1] * rows_up_to[: end + 1] ** (rows - 1)
        found[at] = end * below[end] - below[:end].sum()
    return found
