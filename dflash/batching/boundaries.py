"""Length buckets: which bucket a length is in, and rules that place the boundaries.

A boundary belongs to the bucket below it: bucket i holds boundaries[i] < length <= boundaries[i + 1].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def bucket_of(lengths: NDArray[np.integer], boundaries: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int16]:
    """The bucket of each length, 0 to K - 1.

    Args:
        lengths: tokens, 1 to boundaries[-1]; a longer one is counted in the last bucket.
        boundaries: K + 1 ascending numbers, the first 0.
    """
    inner = np.asarray(boundaries)[1:-1]
    return np.searchsorted(inner, lengths, side="left").astype(np.int16)


def quantile_boundaries(lengths: NDArray[np.integer], buckets: int) -> list[int]:
    """Boundaries that give each bucket as nearly the same number of samples as whole lengths allow; equal ones are merged.

    Returns:
        at most `buckets` + 1 numbers, from 0 to the longest length.
    """
    ends = -(-np.arange(1, buckets + 1) * lengths.size // buckets)
    return [0, *np.unique(np.sort(lengths)[ends - 1]).tolist()]


def length_class_edges(lengths: NDArray[np.integer], classes: int = 16) -> NDArray[np.int64]:
    """Edges of length classes that hold as nearly the same number of TOKENS as whole lengths allow; equal ones are merged.

    Returns:
        at most `classes` + 1 ascending numbers, from 0 to the longest length; use them with `bucket_of`.
    """
    values, counts = np.unique(lengths, return_counts=True)
    tokens = np.cumsum(values.astype(np.int64) * counts)
    ends = np.arange(1, classes + 1) * (int(tokens[-1]) / classes)
    edges = values[np.minimum(np.searchsorted(tokens, ends), values.size - 1)].astype(np.int64)
    return np.concatenate([[0], np.unique(edges)])
