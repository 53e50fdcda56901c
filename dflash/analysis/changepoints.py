"""Where a rate changed: change points of a noisy, autocorrelated series.

1. More than `MOST_BINS` points are binned by their medians (unbinned, 100,000 points take 45 s).
2. The logarithm is taken, so that a change is relative and the noise even.
3. Single odd points are replaced by their neighbours' median (Hampel filter), for the search only.
4. Candidates for steps are searched exactly (ruptures' KernelCPD, L2 cost) with a penalty low enough to miss none:
   2 s^2 (1 + phi) / (1 - phi) ln n a step, with noise measured on differences (`noise`) and phi taken two standard errors lower.
5. Each candidate is put at its best place nearby, then they are taken away one by one, the least useful first. Of all these
   explanations the one with the least BIC is kept: n ln(mean square of its innovations) + 2 ln n for each step, one for its level and one
   for its place (`levels`). Autocorrelation is measured anew for each, so a step competes with the autocorrelation that could have made it
   look like one.
6. Neighbouring stretches are joined, the least certain first, until every change left is at least `SMALLEST_CHANGE` and has p < `LARGEST_P`
   (t-test with effective sample sizes).
7. A slow drift comes out of this as steps. One straight line is fitted too, and wins if its BIC is lower by `STRONG_EVIDENCE`.

What is not found: changes smaller than `detectable`, given with every answer, and excursions of fewer than `SHORTEST` points, which is what the
list of stalls is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import ruptures
from scipy import stats

from dflash.analysis.levels import Fit, fit_levels, fit_line
from dflash.analysis.noise import Floats, Noise, Ratio, compare_rates, measure_noise

MOST_BINS = 2_000
SHORTEST = 5
SMALLEST_CHANGE = 0.05
LARGEST_P = 1e-3
PRICE_OF_A_STEP = 2.0
CANDIDATE_PENALTY = 2.0
PHI_ERROR = 2.0
"""Standard error of `noise`'s phi, times the root of the number of points."""
STRONG_EVIDENCE = 6.0
DETECTION_MARGIN = 1.3
"""Standard errors a change must pass a threshold by to be found in about 9 cases of 10."""
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
    if len(logs) < 2 * SHORTEST or noise.sigma == 0:
        return Segmentation([], None, noise, detectable_change(noise, len(logs)), size)
    plain = _hampel(logs)
    bounds, fit = _best(plain, _candidates(logs, plain, noise))
    drift = _drift(plain, bounds, fit)
    bounds = _joined(logs, bounds, fit.noise)
    steps = [] if drift else [Step(bound * size, _between(logs, bounds, at, fit.noise)) for at, bound in enumerate(bounds[1:-1])]
    return Segmentation(steps, drift, fit.noise, detectable_change(fit.noise, len(logs)), size)


def detectable_change(noise: Noise, points: int) -> float:
    """Smallest drop in the middle of so many points that both the search and the test find in about 9 cases of 10; a share."""
    if points < 2 * SHORTEST:
        return 1.0
    searched = math.sqrt(PRICE_OF_A_STEP * math.log(points)) + DETECTION_MARGIN
    tested = float(stats.norm.isf(LARGEST_P / 2)) + DETECTION_MARGIN
    error = noise.sigma * math.sqrt(4 * noise.inflation / points)
    low, high = max(tested * error, -math.log1p(-SMALLEST_CHANGE)), 50.0
    if low >= high or _evidence(low, noise, points) >= searched:
        return -math.expm1(-low)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _evidence(middle, noise, points) >= searched else (middle, high)
    return -math.expm1(-high)


def _evidence(drop: float, noise: Noise, points: int) -> float:
    """Root of twice the log likelihood ratio to expect for a drop in the middle, against none and more autocorrelation in its place."""
    if noise.sigma == 0:
        return math.inf
    variance = noise.sigma**2 + drop**2 / 4
    phi = (noise.phi * noise.sigma**2 + drop**2 / 4) / variance
    ratio = variance * (1 - phi**2) / (noise.sigma**2 * (1 - noise.phi**2))
    return math.sqrt((points - 1) * math.log(max(ratio, 1.0)))


def _binned(rates: Floats, size: int) -> Floats:
    if size == 1:
        return rates
    whole = len(rates) // size * size
    bins = np.median(rates[:whole].reshape(-1, size), axis=1)
    return bins if whole == len(rates) else np.append(bins, np.median(rates[whole:]))


def _candidates(logs: Floats, plain: Floats, noise: Noise) -> list[int]:
    """Bounds of the stretches that steps may lie between, 0 and n included."""
    points = len(logs)
    phi = max(noise.phi - 2 * PHI_ERROR / math.sqrt(points), 0.0)
    least = Noise(noise.sigma * math.sqrt((1 - noise.phi) / (1 - phi)), phi)  # both are of the same differences
    penalty = CANDIDATE_PENALTY * least.sigma**2 * least.inflation * math.log(points)
    search = ruptures.KernelCPD(kernel="linear", min_size=SHORTEST).fit(plain[:, None])
    return [0, *(int(bound) for bound in search.predict(pen=penalty))]


def _placed(plain: Floats, bounds: list[int]) -> list[int]:
    """Each step at its best place nearby: one point off makes two large innovations of a large step, and the filter can move it that far."""
    bounds = list(bounds)
    for at in range(1, len(bounds) - 1):
        first = max(bounds[at] - HAMPEL_WINDOW // 2, bounds[at - 1] + SHORTEST)
        last = min(bounds[at] + HAMPEL_WINDOW // 2, bounds[at + 1] - SHORTEST)
        places = [bounds[at], *range(first, last + 1)]
        bounds[at] = min(places, key=lambda place: fit_levels(plain, [*bounds[:at], place, *bounds[at + 1 :]]).square)
    return bounds


def _best(plain: Floats, candidates: list[int]) -> tuple[list[int], Fit]:
    """The explanation with the least criterion of those met while steps are taken away one by one."""
    bounds = _placed(plain, candidates)
    fit = fit_levels(plain, bounds)
    met = [(bounds, fit)]
    while len(bounds) > 2:
        fewer = [bounds[:at] + bounds[at + 1 :] for at in range(1, len(bounds) - 1)]
        fits = [fit_levels(plain, each) for each in fewer]
        least = min(range(len(fits)), key=lambda at: fits[at].square)
        bounds = fewer[least]
        met.append((bounds, fits[least]))
    return min(met, key=lambda each: each[1].criterion(PRICE_OF_A_STEP, len(each[0]) - 2))


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


def _drift(plain: Floats, bounds: list[int], levels: Fit) -> Drift | None:
    """The line, if it beats the steps by far and is a change worth telling; a step costs a level and a place, a line its slope."""
    points = len(plain)
    line, slope, error = fit_line(plain)
    worth = points / line.noise.inflation
    if points < 4 * SHORTEST or worth < 8:
        return None
    if line.criterion(1, 1) + STRONG_EVIDENCE >= levels.criterion(1, 2 * (len(bounds) - 2)):
        return None
    span = points - 1
    certain = error == 0 or abs(slope) / error > float(stats.t.isf(LARGEST_P / 2, worth - 2))
    if not certain or abs(math.expm1(slope * span)) < SMALLEST_CHANGE:
        return None
    reach = float(stats.t.ppf(0.975, worth - 2)) * error
    return Drift(math.expm1(slope * span), math.expm1((slope - reach) * span), math.expm1((slope + reach) * span))
