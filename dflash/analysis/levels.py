"""How well a few levels, or one straight line, with AR(1) noise around them explain a series.

With residuals r_t, phi is the one that makes the innovations r_t - phi r_{t-1} smallest, and their mean square says how good the fit is.
Taking the residuals of each explanation by themselves uses the whole series, where `noise` has differences only: at phi 0.8 and 300
points phi's error is a third. A series with a step that is explained without one looks more autocorrelated; the criterion weighs one
against the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from dflash.analysis.noise import MOST_PHI, Floats, Noise

SMALLEST_SQUARE = 1e-18


@dataclass(frozen=True)
class Fit:
    """One explanation of a series.

    Attributes:
        points: of the series.
        parameters: what was fitted: levels, the places of steps, the slope, phi.
        square: mean square of the innovations, for the parameters' number corrected.
        phi: lag-1 autocorrelation of the residuals.
    """

    points: int
    parameters: int
    square: float
    phi: float

    def criterion(self, price: float, extra: int) -> float:
        """Twice the negative log likelihood, and `price` ln n for each of `extra` things fitted; the least is best."""
        return (self.points - 1) * math.log(self.square) + price * math.log(self.points) * extra

    @property
    def noise(self) -> Noise:
        """Noise around the explanation; phi without the bias that fitting `parameters` gives it (Kendall's, for each level)."""
        phi = min(self.phi + (1 + 3 * self.phi) * self.parameters / 2 / self.points, MOST_PHI)
        return Noise(math.sqrt(self.square / (1 - phi**2)), phi)


def fit_levels(series: Floats, bounds: list[int]) -> Fit:
    """The mean of each stretch; `bounds` from 0 to n."""
    starts, counts = np.array(bounds[:-1]), np.diff(bounds)
    means = np.add.reduceat(series, starts) / counts
    return _fit(series - np.repeat(means, counts), 2 * len(counts))


def fit_line(series: Floats) -> tuple[Fit, float, float]:
    """A straight line; its slope a point, and the slope's standard error."""
    points = np.arange(len(series))
    line = stats.linregress(points, series)
    fit = _fit(series - line.intercept - line.slope * points, 3)
    return fit, float(line.slope), float(line.stderr) * math.sqrt(fit.noise.inflation)


def _fit(residuals: Floats, parameters: int) -> Fit:
    now, before = residuals[1:], residuals[:-1]
    square = float(before @ before)
    phi = float(np.clip(now @ before / square, 0.0, MOST_PHI)) if square > 0 else 0.0
    innovations = now - phi * before
    free = max(len(innovations) - parameters, 1)
    return Fit(len(residuals), parameters, max(float(innovations @ innovations) / free, SMALLEST_SQUARE), phi)
