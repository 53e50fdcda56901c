"""Where a rate changed: change points of a noisy, autocorrelated series.

1. More than `MOST_BINS` points are binned by their medians (unbinned, 100,000 points take 45 s).
2. The logarithm is taken, so that a change is relative and the noise even.
3. Noise and autocorrelation are measured on differences (`noise`), which a few steps do not disturb.
4. Single odd points are replaced by their neighbours' median (Hampel filter), for the search only.
5. Steps are searched exactly (ruptures' KernelCPD, L2 cost) with penalty 3 s^2 (1 + phi) / (1 - phi) ln n a step: for phi = 0 that is the usual
   BIC-like penalty with a margin, and autocorrelation makes it as much dearer as it makes means vary.
6. Neighbouring stretches are joined, the least certain first, until every change left is at least `SMALLEST_CHANGE` and has p < `LARGEST_P`
   (t-test with effective sample sizes).
7. A slow drift comes out of this as steps. One straight line is fitted too, and wins if its BIC is lower.

What is not found: changes smaller than `detectable`, given with every answer, and excursions of fewer than `SHORTEST` points, which is what the
list of stalls is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import ruptures
from scipy import stats

from dflash.analysis.noise import Floats, Noise, Ratio, compare_rates, measure_noise

MOST_BINS = 2_000
SHORTEST = 5
SMALLEST_CHANGE = 0.05
LARGEST_P = 1e-3
PENALTY = 3.0
DETECTION_MARGIN = 3.0
"""Standard errors a change must pass the threshold by to be found in about 9 cases of 10: its own error, and that of the noise measured."""
HAMPEL_WINDOW, HAMPEL_SIGMAS = 7, 4.0
_TO_SIGMA = 1.4826  # median absolute deviation -> standard deviation of a normal distribution


@dataclass(frozen=True)
class Step:
    """One change: `index` is the first point after it."""

    index: int
    ratio: Ratio


@dataclass(frozen=True)
class Drift:
    """A steady change instead of steps: `change` from the first point to the last, with its 95% interval."""

    change: float
    low: float
    high: float


@dataclass(frozen=True)
class Segmentation:
    """What was found in one series.

    Attributes:
        steps: in order; none when there is a drift.
        drift: None unless a line explains the series better than steps do.
        noise: of the series (binned, if it was).
        detectable: smallest lasting change that would have been found with high probability in the middle of the series, as a share.
        bin_size: points a bin.
    """

    steps: list[Step]
    drift: Drift | None
    noise: Noise
    detectable: float
    bin_size: int


def find_steps(rates: Floats) -> Segmentation:
    """Search a series of positive rates, equally spaced in work or time [n]."""
    size = max(-(-len(rates) // MOST_BINS), 1)
    logs = np.log(_binned(rates, size))
    noise = measure_noise(logs)
    bounds = _joined(logs, _searched(logs, noise), noise)
    drift = _drift(logs, bounds, noise)
    steps = [] if drift else [Step(bound * size, _between(logs, bounds, at, noise)) for at, bound in enumerate(bounds[1:-1])]
    return Segmentation(steps, drift, noise, detectable_change(noise, len(logs)), size)


def detectable_change(noise: Noise, points: int) -> float:
    """Smallest drop in the middle of so many points that both the search and the test find in about 9 cases of 10; a share."""
    if points < 2 * SHORTEST:
        return 1.0
    needed = max(math.sqrt(PENALTY * math.log(points)), float(stats.norm.isf(LARGEST_P / 2))) + DETECTION_MARGIN
    return max(SMALLEST_CHANGE, -math.expm1(-noise.sigma * needed * math.sqrt(4 * noise.inflation / points)))


def _binned(rates: Floats, size: int) -> Floats:
    if size == 1:
        return rates
    whole = len(rates) // size * size
    bins = np.median(rates[:whole].reshape(-1, size), axis=1)
    return bins if whole == len(rates) else np.append(bins, np.median(rates[whole:]))


def _searched(logs: Floats, noise: Noise) -> list[int]:
    """Bounds of the stretches, 0 and n included."""
    points = len(logs)
    if points < 2 * SHORTEST or noise.sigma == 0:
        return [0, points]
    penalty = PENALTY * noise.sigma**2 * noise.inflation * math.log(points)
    search = ruptures.KernelCPD(kernel="linear", min_size=SHORTEST).fit(_hampel(logs)[:, None])
    return [0, *(int(bound) for bound in search.predict(pen=penalty))]


def _hampel(logs: Floats) -> Floats:
    """Points further than 4 sigma from the median of the 7 around them become that median."""
    half = HAMPEL_WINDOW // 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(logs, half, mode="reflect"), HAMPEL_WINDOW)
    middle = np.median(windows, axis=1)
    sigma = _TO_SIGMA * np.median(np.abs(windows - middle[:, None]), axis=1)
    return np.where(np.abs(logs - middle) > HAMPEL_SIGMAS * np.maximum(sigma, 1e-12), middle, logs)


def _joined(logs: Floats, bounds: list[int], noise: Noise) -> list[int]:
    while len(bounds) > 2:
        ratios = [_between(logs, bounds, at, noise) for at in range(len(bounds) - 2)]
        weak = [at for at, ratio in enumerate(ratios) if abs(ratio.change) < SMALLEST_CHANGE or ratio.p >= LARGEST_P]
        if not weak:
            break
        weakest = max(weak, key=lambda at: ratios[at].p)
        bounds = bounds[: weakest + 1] + bounds[weakest + 2 :]
    return bounds


def _between(logs: Floats, bounds: list[int], at: int, noise: Noise) -> Ratio:
    """Stretch `at` against the next one."""
    left, middle, right = bounds[at : at + 3]
    return compare_rates(np.exp(logs[left:middle]), np.exp(logs[middle:right]), noise.phi)


def _drift(logs: Floats, bounds: list[int], noise: Noise) -> Drift | None:
    """The line, if it beats the steps by BIC on as many independent points as the series is worth, and is a change worth telling."""
    points = len(logs)
    worth = points / noise.inflation
    if points < 4 * SHORTEST or worth < 8:
        return None
    fit = stats.linregress(np.arange(points), logs)
    line = float(((logs - fit.intercept - fit.slope * np.arange(points)) ** 2).mean())
    levels = float(sum(((logs[left:right] - logs[left:right].mean()) ** 2).sum() for left, right in pairwise(bounds)) / points)
    if line <= 0 or levels <= 0:
        return None
    steps = len(bounds) - 2
    bic_line, bic_steps = worth * math.log(line) + 2 * math.log(worth), worth * math.log(levels) + (1 + 2 * steps) * math.log(worth)
    error = float(fit.stderr) * math.sqrt(noise.inflation)
    span = points - 1
    reach = float(stats.t.ppf(0.975, max(worth - 2, 1))) * error
    certain = error == 0 or abs(fit.slope) / error > float(stats.t.isf(LARGEST_P / 2, max(worth - 2, 1)))
    if bic_line >= bic_steps or not certain or abs(math.expm1(fit.slope * span)) < SMALLEST_CHANGE:
        return None
    return Drift(math.expm1(fit.slope * span), math.expm1((fit.slope - reach) * span), math.expm1((fit.slope + reach) * span))
