"""Length buckets: which bucket a length is in, and three rules that place the boundaries.

A boundary belongs to the bucket below it: bucket i holds boundaries[i] < length <= boundaries[i + 1].

`optimal_boundaries` minimises what padding costs when each row is padded to the longest of its bucket: the sum over buckets of
rows x c(longest), with c(l) = l + attention x l^2. (A batch is padded to ITS longest row only, so a plan does a little better than
this bound; minimising the expected longest row of a batch instead moves the boundaries by next to nothing.) Exact, on whole tokens,
by dynamic programming over the distinct lengths: with N(j) samples up to the j-th distinct length,

    best_k(j) = min over i of best_(k-1)(i) + (N(j) - N(i)) c(j).

The matrix is Monge, so the best i rises with j, and each of the log m rounds of halving looks at about m entries: O(K m log m) for
m distinct lengths, in whole-array numpy. One run gives the optimum of every number of buckets up to K.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dflash.errors import RefusedInput

_COUNTED_BELOW = 2**16


def bucket_of(lengths: ArrayLike, boundaries: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int16]:
    """The bucket of each length (or of one), 0 to K - 1.

    Args:
        lengths: tokens, 1 to boundaries[-1]; a longer one is counted in the last bucket.
        boundaries: K + 1 ascending numbers, the first 0.
    """
    inner, given = np.asarray(boundaries)[1:-1], np.asarray(lengths)
    if inner.size and given.size > inner[-1] and given.dtype.kind in "iu":  # many: look each up in a table of all lengths
        table = np.searchsorted(inner, np.arange(int(inner[-1]) + 2), side="left").astype(np.int16)
        return table.take(given, mode="clip")
    return np.asarray(np.searchsorted(inner, given, side="left"), dtype=np.int16)


def refuse_uncovered(lengths: NDArray[np.integer], boundaries: Sequence[int]) -> None:
    """See that given boundaries reach the longest row.

    Raises:
        RefusedInput: they end below it; the message counts the rows and names the remedy.
    """
    longest = int(lengths.max())
    if longest > boundaries[-1]:
        over = int(np.count_nonzero(lengths > boundaries[-1]))
        raise RefusedInput(
            f"batching.boundaries={list(boundaries)}: they end below {over} of {lengths.size} rows, the longest {longest} tokens; "
            f"make the last boundary {longest} or more"
        )


def count_distinct(lengths: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct lengths, ascending, and how many samples have each [distinct].

    Counting takes a tenth of the time of sorting, so it is what is done unless the lengths are few and far apart.
    """
    if lengths.size and int(lengths.min()) >= 0 and int(lengths.max()) < max(lengths.size, _COUNTED_BELOW):
        held = np.bincount(lengths.astype(np.int64, copy=False))
        values = np.flatnonzero(held)
        return values, held[values]
    values, counts = np.unique(lengths, return_counts=True)
    return values.astype(np.int64), counts.astype(np.int64)


def quantile_boundaries(lengths: NDArray[np.integer], buckets: int) -> list[int]:
    """Boundaries that give each bucket as nearly the same number of samples as whole lengths allow; equal ones are merged.

    Returns:
        at most `buckets` + 1 numbers, from 0 to the longest length.
    """
    return _quantiles(*count_distinct(lengths), buckets)


def length_class_edges(lengths: NDArray[np.integer], classes: int = 16) -> NDArray[np.int64]:
    """Edges of length classes that hold as nearly the same number of TOKENS as whole lengths allow; equal ones are merged.

    Returns:
        at most `classes` + 1 ascending numbers, from 0 to the longest length; use them with `bucket_of`.
    """
    return _token_quantiles(*count_distinct(lengths), classes)


def optimal_boundaries(
    lengths: NDArray[np.integer], buckets: int, limit: int | None = None, *, attention: float = 0.0
) -> list[int]:
    """Boundaries of the least padding cost.

    Args:
        lengths: tokens of each sample, 1 or more.
        buckets: K, at most the number of distinct lengths.
        limit: the last boundary; None: the longest length.
        attention: share of a token's cost that grows with the row's length, per token (3e-5 fits the field's machine); 0: padded
            tokens only.

    Returns:
        K + 1 ascending numbers from 0 to the limit.

    Raises:
        RefusedInput: no lengths, a length below one or above the limit, more buckets than distinct lengths.
    """
    return _optima(*count_distinct(lengths), buckets, limit, attention)[-1]


def boundary_curves(
    lengths: NDArray[np.integer], most_buckets: int, limit: int | None = None, *, attention: float = 0.0
) -> dict[str, list[tuple[list[int], float]]]:
    """Boundaries of 1, 2, ... most_buckets buckets by each rule, with their `bucket_efficiency`; see `optimal_boundaries`.

    Returns:
        `optimal`, `quantile` (equal samples) and `equal_tokens`: entry k - 1 is that of k buckets.
    """
    values, counts = count_distinct(lengths)
    found = {
        "optimal": _optima(values, counts, most_buckets, limit, attention),
        "quantile": [_quantiles(values, counts, k) for k in range(1, most_buckets + 1)],
        "equal_tokens": [_token_quantiles(values, counts, k).tolist() for k in range(1, most_buckets + 1)],
    }
    return {rule: [(each, _efficiency(values, counts, each)) for each in curve] for rule, curve in found.items()}


def bucket_efficiency(lengths: NDArray[np.integer], boundaries: Sequence[int]) -> float:
    """Real tokens / tokens with each row padded to the longest of its bucket: a lower bound of a plan's padding_efficiency."""
    return _efficiency(*count_distinct(lengths), boundaries)


def _quantiles(values: NDArray[np.int64], counts: NDArray[np.int64], buckets: int) -> list[int]:
    below = np.cumsum(counts)
    ends = -(-np.arange(1, buckets + 1) * int(below[-1]) // buckets)
    return [0, *np.unique(values[np.searchsorted(below, ends)]).tolist()]


def _token_quantiles(values: NDArray[np.int64], counts: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    tokens = np.cumsum(values * counts)
    ends = np.arange(1, classes + 1) * (int(tokens[-1]) / classes)
    edges = values[np.minimum(np.searchsorted(tokens, ends), values.size - 1)]
    return np.concatenate([[0], np.unique(edges)])


def _efficiency(values: NDArray[np.int64], counts: NDArray[np.int64], boundaries: Sequence[int]) -> float:
    buckets = bucket_of(values, boundaries)
    longest = np.zeros(len(boundaries) - 1, np.int64)
    np.maximum.at(longest, buckets, values)
    return float(values @ counts) / float(longest[buckets] @ counts)


def _optima(
    values: NDArray[np.int64], counts: NDArray[np.int64], buckets: int, limit: int | None, attention: float
) -> list[list[int]]:
    """Optimal boundaries for each number of buckets from 1 to `buckets`, from distinct lengths and their samples."""
    _check(values, counts, buckets, limit)
    last = int(values[-1]) if limit is None else limit
    edges = np.concatenate([[0], values])
    samples = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
    cost = edges + attention * edges.astype(np.float64) ** 2
    best = samples * cost
    chosen: list[NDArray[np.int64]] = []
    found = [[0, last]]
    for _ in range(buckets - 1):
        best, previous = _one_more_bucket(best, samples, cost)
        chosen.append(previous)
        inner, at = [], edges.size - 1
        for step in reversed(chosen):
            at = int(step[at])
            inner.append(int(edges[at]))
        found.append([0, *reversed(inner), last])
    return found


def _one_more_bucket(
    best: NDArray[np.float64], samples: NDArray[np.float64], cost: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """min over i of best[i] + (samples[j] - samples[i]) * cost[j] for every j, and the i that attains it."""
    size = best.size
    at = np.zeros(size, np.int64)
    lowest = np.empty(size)
    known = np.array([-1, size])
    while True:
        middle = (known[:-1] + known[1:]) // 2
        fresh = middle > known[:-1]
        if not fresh.any():
            return lowest, at
        left, right, middle = known[:-1][fresh], known[1:][fresh], middle[fresh]
        first = np.where(left < 0, 0, at[np.maximum(left, 0)])
        last = np.where(right >= size, size - 1, at[np.minimum(right, size - 1)])
        spans = last - first + 1
        starts = np.cumsum(spans) - spans
        column = np.arange(int(spans.sum())) + np.repeat(first - starts, spans)
        value = best[column] - samples[column] * np.repeat(cost[middle], spans)
        lowest_here = np.minimum.reduceat(value, starts)
        hits = np.flatnonzero(value == np.repeat(lowest_here, spans))
        at[middle] = column[hits[np.searchsorted(hits, starts)]]
        lowest[middle] = lowest_here + samples[middle] * cost[middle]
        known = np.sort(np.concatenate([known, middle]))


def _check(values: NDArray[np.integer], counts: NDArray[np.integer], buckets: int, limit: int | None) -> None:
    if not values.size:
        raise RefusedInput("lengths: there are none; check the file")
    if int(values[0]) < 1:
        bad = int(counts[values < 1].sum())
        raise RefusedInput(f"lengths: {bad} are below one token (the smallest {values[0]}); remove those samples")
    if limit is not None and int(values[-1]) > limit:
        bad = int(counts[values > limit].sum())
        raise RefusedInput(
            f"limit={limit}: above it are {bad} of {int(counts.sum())} lengths, the longest {values[-1]}; raise the limit or cut "
            "those samples"
        )
    if not 1 <= buckets <= values.size:
        raise RefusedInput(f"buckets={buckets}: there are {values.size} distinct lengths; give a number from 1 to that")
