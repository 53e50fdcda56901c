"""The two loops that numpy can't say: cutting a sequence greedily, and first-fit packing in O(n log n).

They have explicit signatures, so they are compiled once at the first import ever and read from numba's cache afterwards; a call
never compiles. Where no cache folder can be written (a read-only install without a home) each import compiles anew, about a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray


def _compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def compile_one(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            cached: Callable[..., Any] = numba.njit(signature, cache=True)(function)
        except (RuntimeError, OSError):  # no folder for the cache
            cached = numba.njit(signature)(function)
        return cached

    return compile_one


@_compiled("int64[::1](int32[::1], int64[::1], int64, int64)")
def cut_greedily(lengths: NDArray[np.int32], group_ends: NDArray[np.int64], budget: int, max_rows: int) -> NDArray[np.int64]:
    """Cut rows, in the order given, into batches as large as `rows x longest row <= budget` and `rows <= max_rows` allow.

    Args:
        lengths: tokens of each row, each at most `budget`.
        group_ends: where a batch must end whatever its size (ascending; the last is the number of rows).
        budget: padded tokens a batch.
        max_rows: rows a batch.

    Returns:
        offsets [batches + 1]: batch b holds rows offsets[b] to offsets[b + 1].
    """
    offsets = np.empty(lengths.size + 1, np.int64)
    offsets[0] = 0
    batches = 0
    start = 0
    for end in group_ends:
        longest = 0
        for row in range(start, end):
            widest = max(longest, lengths[row])
            rows = row - start
            if rows > 0 and (rows == max_rows or (rows + 1) * widest > budget):
                batches += 1
                offsets[batches] = row
                start = row
                widest = lengths[row]
            longest = widest
        if end > start:
            batches += 1
            offsets[batches] = end
            start = end
    return offsets[: batches + 1].copy()


@_compiled("Tuple((int32[::1], int64))(int32[::1], int64, int64)")
def first_fit(lengths: NDArray[np.int32], budget: int, max_rows: int) -> tuple[NDArray[np.int32], int]:
    """Put each row, in the order given, into the first batch that still has room for it.

    The room left in the batches is the leaves of a binary tree whose inner nodes hold the larger of their children: the first batch
    with room is found by walking down, left first, so n rows cost O(n log batches). Two batches that could have been one never
    exist side by side (unless a row limit closed one), which bounds the number of batches and so the tree.

    Args:
        lengths: tokens of each row, 1 to `budget`.
        budget: tokens a batch, the sum of its rows.
        max_rows: rows a batch; a full batch counts as having no room.

    Returns:
        batch_of [rows] and the number of batches.
    """
    total = 0
    for length in lengths:
        total += length
    most = min(lengths.size, 2 * (total // budget) + 2 + lengths.size // max_rows)
    leaves = 1
    while leaves < most:
        leaves *= 2
    room = np.full(2 * leaves, budget, np.int64)
    rows_in = np.zeros(leaves, np.int32)
    batch_of = np.empty(lengths.size, np.int32)
    batches = 0
    for row in range(lengths.size):
        length = lengths[row]
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < length:
                node += 1
        batch = node - leaves
        batch_of[row] = batch
        batches = max(batches, batch + 1)
        rows_in[batch] += 1
        room[node] = room[node] - length if rows_in[batch] < max_rows else 0
        while node > 1:
            node //= 2
            larger = max(room[2 * node], room[2 * node + 1])
            if room[node] == larger:
                break
            room[node] = larger
    return batch_of, batches
