"""Noise of a series of rates, and what it lets one say: autocorrelation, effective sample size, intervals of a ratio.

Rates of a training run are autocorrelated (a slow batch makes the next line slow too), and a test that takes them for independent finds changes
where there are none. The model is AR(1) on the logarithm, x_t = m + phi (x_{t-1} - m) + e_t. With d_k the mean square of x_t - x_{t-k},

    d_1 = 2 s^2 (1 - phi),  d_2 = 2 s^2 (1 - phi^2),  so  phi = d_2 / d_1 - 1  and  s^2 = d_1 / (2 (1 - phi)).

Differences forget the level, so steps in the series disturb only the few differences across them; the mean squares are trimmed, which removes
those. phi is shrunk towards 0.4, the usual value for console lines, as if `PRIOR_POINTS` points had said so. n points are worth
n (1 - phi) / (1 + phi) independent ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

PRIOR_PHI, PRIOR_POINTS = 0.4, 20
MOST_PHI = 0.95
TRIMMED_SHARE = 0.05
FEW_POINTS = 20
"""Fewer points than this on a side: the finding is provisional."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Noise of a series of logarithms: standard deviation (relative, since they are logarithms) and lag-1 autocorrelation."""

    sigma: float
    phi: float

    @property
    def inflation(self) -> float:
        """How much more the mean of n points varies than that of n independent ones: (1 + phi) / (1 - phi)."""
        return (1 + self.phi) / (1 - self.phi)


@dataclass(frozen=True)
class Ratio:
    """A rate before and after, and the change with its 95% interval.

    Attributes:
        before, after: geometric means, in the unit of the rates.
        change: after / before - 1.
        low, high: its 95% interval.
        p: two-sided, against no change.
        points_before, points_after: how many rates each side has.
        provisional: a side has fewer than `FEW_POINTS`.
    """

    before: float
    after: float
    change: float
    low: float
    high: float
    p: float
    points_before: int
    points_after: int
    provisional: bool


def measure_noise(logs: Floats) -> Noise:
    """Noise of a series of logarithms that may hold a few steps [n]. Without two differences: sigma 0 and the prior phi."""
    if len(logs) < 3:
        return Noise(0.0, PRIOR_PHI)
    d1, d2 = _trimmed_square(np.diff(logs)), _trimmed_square(logs[2:] - logs[:-2])
    raw = d2 / d1 - 1 if d1 > 0 else PRIOR_PHI
    weight = len(logs) / (len(logs) + PRIOR_POINTS)
    phi = float(np.clip(weight * raw + (1 - weight) * PRIOR_PHI, 0.0, MOST_PHI))
    return Noise(math.sqrt(d1 / (2 * (1 - phi))), phi)


def compare_rates(before: Floats, after: Floats, phi: float | None = None) -> Ratio:
    """Compare the rates of two stretches of which the boundary is known. Nothing is searched for, so no penalty is paid.

    A t-interval on the logarithms with pooled variance and effective sample sizes. The sample variance of n autocorrelated points is too small
    by the factor n (1 - 1 / n_eff) / (n - 1) on average, which is taken out.

    Args:
        before, after: positive rates, at least one a side; a side of one takes its variance from the other.
        phi: autocorrelation; measured on both sides together if None.
    """
    logs = [np.log(before), np.log(after)]
    if phi is None:
        phi = _joint_phi(logs)
    worth = [_effective(len(side), phi) for side in logs]
    squares = [float(((side - side.mean()) ** 2).sum()) for side in logs]
    free = [len(side) * (1 - 1 / size) if size > 1 else 0.0 for side, size in zip(logs, worth, strict=True)]
    degrees = len(before) + len(after) - 2
    shift = float(logs[1].mean() - logs[0].mean())
    means = math.exp(logs[0].mean()), math.exp(logs[1].mean())
    provisional = min(len(before), len(after)) < FEW_POINTS
    if degrees < 1 or sum(free) <= 0:
        return Ratio(*means, math.expm1(shift), -1.0, math.inf, 1.0, len(before), len(after), True)
    spread = math.sqrt(sum(squares) / sum(free) * sum(1 / size for size in worth))
    reach = float(stats.t.ppf(0.975, degrees)) * spread
    p = float(2 * stats.t.sf(abs(shift) / spread, degrees)) if spread > 0 else float(shift == 0)
    low, high = math.expm1(shift - reach), math.expm1(min(shift + reach, 700.0))
    return Ratio(*means, math.expm1(shift), low, high, p, len(before), len(after), provisional)


def _joint_phi(sides: list[Floats]) -> float:
    """Autocorrelation within the sides; the jump between them is left out."""
    squares = [
        np.concatenate([np.diff(side) for side in sides]),
        np.concatenate([side[2:] - side[:-2] for side in sides if len(side) > 2] or [np.zeros(0)]),
    ]
    points = sum(len(side) for side in sides)
    if not len(squares[0]) or not len(squares[1]):
        return PRIOR_PHI
    d1, d2 = _trimmed_square(squares[0]), _trimmed_square(squares[1])
    raw = d2 / d1 - 1 if d1 > 0 else PRIOR_PHI
    weight = points / (points + PRIOR_POINTS)
    return float(np.clip(weight * raw + (1 - weight) * PRIOR_PHI, 0.0, MOST_PHI))


def _effective(points: int, phi: float) -> float:
    """Independent points that are worth as much; exact for AR(1): n / (1 + 2 sum_k (1 - k/n) phi^k)."""
    lags = np.arange(1, points)
    return points / float(1 + 2 * ((1 - lags / points) * phi**lags).sum())


def _trimmed_square(differences: Floats) -> float:
    """Mean square without the largest 5%, scaled so that it is right for a normal distribution."""
    squares = np.sort(differences**2)
    cut = int(len(squares) * TRIMMED_SHARE)
    if not cut:
        return float(squares.mean())
    return float(squares[:-cut].mean()) / _NORMAL_SHARE


def _kept_of_normal(trimmed: float) -> float:
    """E[z^2 | z^2 among the smallest 1 - trimmed] of a standard normal z."""
    edge = float(stats.norm.ppf(1 - trimmed / 2))
    return 1 - 2 * edge * float(stats.norm.pdf(edge)) / (1 - trimmed)


_NORMAL_SHARE = _kept_of_normal(TRIMMED_SHARE)
