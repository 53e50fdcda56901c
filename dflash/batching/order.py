"""In which order batches run.

`random` draws any order. `stratified` makes each optimiser window hold every length class in its true share: the batches are sorted
by mean log-length and cut into as many strata as the window has batches; each window takes one batch of each stratum. In random
order a window of 32 homogeneous batches is as diverse as two independent batches; stratified it is ten times as even as
independent sampling, at no cost in padding.

Inside a window the strata alternate too: its halves each take one of every two neighbouring strata, and so on down, so a half or a
quarter of a window is nearly as even as its size allows. Which of two neighbours comes first is drawn once an epoch.

Targets of uneven speed finish out of order, and what is late strays into the next window. Two things make that harmless. Every other
window runs its strata backwards, so that the batches on both sides of an edge are of the same lengths: a stray changes places with its
like. And inside the first and the last quarter of a window the middle lengths stand next to the edge, so that a stray of another
stratum weighs little too. (With seconds that vary by 10% and five targets, vr at 32 as trained is .08; without the second it was .3.)

A number of batches that isn't a multiple of the window leaves a remainder. It is a systematic sample over the lengths and runs
LAST, so that all other windows stay aligned with the optimiser's steps (shifted windows lose most of the evenness). When the rest of
an epoch is planned anew while a window is half full, the `lead` batches that complete it are such a sample too, and run FIRST.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LOG_SCALE = 2.0**16  # logarithms as whole numbers: sums are exact, so the order doesn't hang on how a machine adds or rounds


def random_order(batches: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """Any order of the batches, all equally likely."""
    return draws.permutation(batches)


def stratified_order(
    mean_log_lengths: NDArray[np.float64], window: int, draws: np.random.Generator, lead: int = 0
) -> NDArray[np.int64]:
    """The order in which each window of `window` batches holds one of each length stratum.

    Args:
        mean_log_lengths: [batches], as from `mean_log_lengths`.
        window: batches a window, at least 1.
        draws: the generator.
        lead: batches that run before the first window, to complete one already begun.

    Returns:
        batches in execution order [batches]; window k is entries lead + k * window to lead + (k + 1) * window, the last may be
        short.
    """
    by_length = np.argsort(mean_log_lengths, kind="stable")
    first, by_length = _spread(by_length, min(lead, by_length.size), draws)
    last, by_length = _spread(by_length, by_length.size % window, draws)
    strata = by_length.reshape(window, -1)
    chosen = np.take_along_axis(strata, np.argsort(draws.random(strata.shape), axis=1, kind="stable"), axis=1).T
    first, chosen, last = (part[:, _sequence(part.shape[1], draws)] for part in (first[None, :], chosen, last[None, :]))
    chosen[1::2] = chosen[1::2, ::-1].copy()
    return np.concatenate([first.ravel(), chosen.ravel(), last.ravel()])


def mean_log_lengths(lengths: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Token-weighted mean log-length of each batch, `sum(l ln l) / sum(l)`, in units of 2**-16.

    Args:
        lengths: tokens of each row, the rows of a batch side by side [rows].
        offsets: [batches + 1].
    """
    weighted = np.rint(np.log(lengths) * _LOG_SCALE).astype(np.int64)
    weighted *= lengths
    tokens = np.add.reduceat(lengths, offsets[:-1], dtype=np.int64)
    return np.add.reduceat(weighted, offsets[:-1]) / tokens


def _spread(by_length: NDArray[np.int64], count: int, draws: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A systematic sample of `count` over the lengths, and the rest; both stay sorted by length."""
    is_drawn = np.zeros(by_length.size, np.bool_)
    if count:
        steps = (np.arange(count) + draws.random()) * (by_length.size / count)
        is_drawn[np.minimum(steps.astype(np.int64), by_length.size - 1)] = True
    return by_length[is_drawn], by_length[~is_drawn]


def _sequence(strata: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """The order in which a window runs its strata (0 the shortest)."""
    order = _alternate(np.arange(strata), draws)
    edge = strata // 4
    if edge:  # inside the outer quarters the middle lengths come next to the window's edges
        extremity = np.abs(2 * order - (strata - 1))
        order[:edge] = order[:edge][np.argsort(extremity[:edge], kind="stable")]
        order[-edge:] = order[-edge:][np.argsort(-extremity[-edge:], kind="stable")]
    return order


def _alternate(strata: NDArray[np.int64], draws: np.random.Generator) -> NDArray[np.int64]:
    """Reorder strata so that neighbours fall into different halves, recursively."""
    size = strata.size
    if size < 2:
        return strata
    pairs = size // 2
    coin = draws.random(pairs) < 0.5
    left, right = strata[0 : 2 * pairs : 2], strata[1 : 2 * pairs : 2]
    first, second = np.where(coin, left, right), np.where(coin, right, left)
    if size % 2:
        first = np.concatenate([first, strata[-1:]])
    first, second = _alternate(first, draws), _alternate(second, draws)
    return np.concatenate([second, first] if draws.random() < 0.5 else [first, second])
