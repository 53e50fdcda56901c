"""Fewer points for a line without losing its extremes.

The range shown is cut into bins of equal numbers of points and each bin keeps its lowest and its highest, in order: a spike that lasts
one step out of a million is still drawn, which a mean or every n-th point would lose. Cost is one pass over the points shown.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def keep_extremes(x: Numbers, y: Numbers, points: int) -> tuple[Numbers, Numbers]:
    """At most about `points` of the points, the lowest and highest of every bin among them; x ascending, NaN in y left out.

    Args:
        x, y: [n].
        points: 4 or more.
    """
    known = np.isfinite(y)
    if not known.all():
        x, y = x[known], y[known]
    if y.size <= points:
        return x, y
    bins = max(points // 2, 2)
    width = y.size // bins
    whole = width * bins
    grid = y[:whole].reshape(bins, width)
    starts = np.arange(bins) * width
    chosen = [starts + grid.argmin(axis=1), starts + grid.argmax(axis=1), np.array([0, y.size - 1])]
    if whole < y.size:
        chosen.append(whole + np.array([y[whole:].argmin(), y[whole:].argmax()]))
    index = np.unique(np.concatenate(chosen))
    return x[index], y[index]


def slice_of(x: Numbers, shown: tuple[float, float] | None) -> slice:
    """The part of ascending x inside the range shown and one point on each side, so that lines run out of the picture."""
    if shown is None or not x.size:
        return slice(None)
    left, right = np.searchsorted(x, shown, side="left")
    return slice(max(int(left) - 1, 0), min(int(right) + 1, x.size))


def mean_bins(x: Numbers, y: Numbers, bins: int) -> tuple[Numbers, Numbers, Numbers]:
    """Mean and standard deviation of y in at most `bins` bins of equally many points. Returns (mean x, mean, deviation)."""
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if not y.size:
        return x, y, y
    edges = np.unique(np.linspace(0, y.size, min(bins, y.size) + 1).astype(np.int64))[:-1]
    counts = np.diff(np.append(edges, y.size))
    centre = float(y.mean())  # squares are taken around it, so that a high level costs no precision
    centred = y - centre
    offset = np.add.reduceat(centred, edges) / counts
    variance = np.add.reduceat(centred * centred, edges) / counts - offset * offset
    return np.add.reduceat(x, edges) / counts, centre + offset, np.sqrt(np.maximum(variance, 0.0))
