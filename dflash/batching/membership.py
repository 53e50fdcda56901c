"""Who shares a batch: the five strategies.

Each is the same three steps: a random permutation of the samples, a stable sort by a small whole number (the key, which differs by
strategy), and a cut into batches.

| strategy   | key                               | cut                      | what it trades                                       |
|------------|-----------------------------------|--------------------------|------------------------------------------------------|
| `sorted`   | length (not permuted first)       | greedy                   | no padding, but the same batches in every epoch      |
| `jittered` | length + whole number in +-jitter | greedy                   | 1.4% padding (jitter 32) for batches drawn anew      |
| `bucketed` | the length's bucket               | greedy inside the bucket | padding by the width of the buckets                  |
| `shuffled` | none                              | greedy                   | diverse batches, more than half of all tokens padded |
| `packed`   | none                              | first-fit                | diverse batches, no padding; the target must pack    |

Equal keys stay in the order of the permutation: with jitter = 0 `jittered` still redraws who shares a batch among rows of one
length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash.batching.boundaries import bucket_of, quantile_boundaries
from dflash.batching.draws import generator
from dflash.batching.kernels import cut_greedily, first_fit
from dflash.config import BatchingConfig

DEFAULT_BUCKETS = 6


@dataclass(frozen=True)
class Membership:
    """Batches before they are put in order: batch b holds rows[offsets[b]:offsets[b + 1]], positions in the lengths given."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]


def draw_membership(lengths: NDArray[np.int32], settings: BatchingConfig, *, epoch: int) -> Membership:
    """Divide the rows into batches; every row is in exactly one.

    Args:
        lengths: tokens of each row, 1 to `settings.token_budget`.
        settings: strategy, boundaries (covering the longest row), budget, jitter, row limit, seed.
        epoch: redraws the membership, except of `sorted`.
    """
    max_rows = settings.max_rows or lengths.size
    if settings.strategy == "packed":
        return _pack(lengths, settings, epoch, max_rows)
    rows, group_ends = _arrange(lengths, settings, epoch)
    return Membership(rows, cut_greedily(lengths[rows], group_ends, settings.token_budget, max_rows))


def _arrange(lengths: NDArray[np.int32], settings: BatchingConfig, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    everything = np.array([lengths.size], np.int64)
    if settings.strategy == "sorted":
        return np.argsort(_narrow(lengths), kind="stable"), everything
    draws = generator(settings.seed, epoch, "membership")
    shuffled = draws.permutation(lengths.size)
    if settings.strategy == "shuffled":
        return shuffled, everything
    if settings.strategy == "bucketed":
        boundaries = settings.boundaries or quantile_boundaries(_narrow(lengths), DEFAULT_BUCKETS)
        buckets = bucket_of(lengths, boundaries)
        ends = np.cumsum(np.bincount(buckets, minlength=len(boundaries) - 1))
        return _sort_stably(shuffled, buckets), ends
    key = draws.integers(0, 2 * settings.jitter + 1, lengths.size)
    key += lengths
    return _sort_stably(shuffled, key), everything


def _sort_stably(rows: NDArray[np.int64], key: NDArray[np.integer]) -> NDArray[np.int64]:
    return rows[np.argsort(_narrow(key)[rows], kind="stable")]


def _narrow(key: NDArray[np.integer]) -> NDArray[np.integer]:
    # numpy sorts 8 and 16 bit numbers by radix, five times as fast as wider ones
    if key.dtype.itemsize > 2 and int(key.max()) <= np.iinfo(np.uint16).max:
        return key.astype(np.uint16)
    return key


def _pack(lengths: NDArray[np.int32], settings: BatchingConfig, epoch: int, max_rows: int) -> Membership:
    rows = generator(settings.seed, epoch, "membership").permutation(lengths.size)
    batch_of, batches = first_fit(lengths[rows], settings.token_budget, max_rows)
    offsets = np.zeros(batches + 1, np.int64)
    np.cumsum(np.bincount(batch_of, minlength=batches), out=offsets[1:])
    return Membership(rows[np.argsort(_narrow(batch_of), kind="stable")], offsets)
