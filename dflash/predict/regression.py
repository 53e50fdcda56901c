"""Robust least squares with terms that can't be negative, and a choice of the terms that the data can tell apart.

For seconds y of batches and columns x of what might cost time, the fit minimises the sum of Huber's loss of (y - X b) / sqrt(y / mean y) with
b >= 0, by reweighting (1.345 robust standard deviations: 95% as efficient as least squares on Gaussian residuals, and a stalled batch pulls no
more than a slow one). Weights between absolute and relative residuals let the totals come out right, which is what throughput is made of.

Of all subsets of terms (there are at most a few dozen) the one with the least Bayesian information criterion is taken: a term stays only if the
data want it. One that is left out is not zero but unknown; its interval says how large it could be, and `partner` which term hides it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

_HUBER = 1.345
_ROUNDS = 30
_Z95 = 1.96
_HIDDEN_BY = 0.9
Array = NDArray[np.float64]


@dataclass(frozen=True)
class FittedTerm:
    """One coefficient: value and 95% interval, whether the data can tell it, and else which term it rises and falls with."""

    name: str
    value: float
    low: float
    high: float
    known: bool
    partner: str | None = None


@dataclass(frozen=True)
class Fit:
    """A whole fit.

    Attributes:
        terms: one a column, in their order.
        batches: rows fitted.
        relative_error: median |y - fitted| / fitted.
        spread: robust standard deviation of y / fitted - 1.
        explained: 1 - (residual variance / variance of y); 0 when y doesn't vary.
    """

    terms: list[FittedTerm]
    batches: int
    relative_error: float
    spread: float
    explained: float

    def value(self, name: str) -> float:
        """The coefficient of a term."""
        return next(term.value for term in self.terms if term.name == name)


def fit_terms(seconds: Array, columns: dict[str, Array]) -> Fit:
    """Fit seconds as a sum of terms.

    Args:
        seconds: of each batch [batches], above 0.
        columns: name of the term -> what it is multiplied by [batches].
    """
    names = list(columns)
    scale = np.array([max(float(np.abs(columns[name]).max()), 1e-300) for name in names])
    design = np.stack([columns[name] for name in names], axis=1) / scale
    weights = _robust_weights(design, seconds)
    chosen = _choose(design, seconds, weights)
    values, half = _solve_with_intervals(design[:, chosen], seconds, weights)
    fitted = design[:, chosen] @ values
    terms = []
    for number, name in enumerate(names):
        if number in chosen:
            at = chosen.index(number)
            value, reach = values[at] / scale[number], half[at] / scale[number]
            terms.append(FittedTerm(name, float(value), float(max(value - reach, 0.0)), float(value + reach), True))
        else:
            high = _largest(design, seconds, weights, chosen, number) / scale[number]
            terms.append(FittedTerm(name, 0.0, 0.0, float(high), False, _partner(design, chosen, number, names)))
    ratio = seconds / np.maximum(fitted, 1e-12) - 1
    variance = float(seconds.var())
    return Fit(
        terms=terms,
        batches=seconds.size,
        relative_error=float(np.median(np.abs(ratio))),
        spread=float(1.4826 * np.median(np.abs(ratio - np.median(ratio)))),
        explained=1 - float((seconds - fitted).var()) / variance if variance > 0 else 0.0,
    )


def nonnegative(design: Array, values: Array) -> Array:
    """The least-squares coefficients under b >= 0, exactly: the best of the subsets whose free solution is nonnegative."""
    gram, right = design.T @ design, design.T @ values
    best, found = 0.0, np.zeros(design.shape[1])
    for size in range(1, design.shape[1] + 1):
        for subset in combinations(range(design.shape[1]), size):
            at = list(subset)
            try:
                free = np.linalg.solve(gram[np.ix_(at, at)], right[at])
            except np.linalg.LinAlgError:
                continue
            if (free >= 0).all():
                gain = float(2 * free @ right[at] - free @ gram[np.ix_(at, at)] @ free)
                if gain > best:
                    best, found = gain, np.zeros(design.shape[1])
                    found[at] = free
    return found


def _robust_weights(design: Array, seconds: Array) -> Array:
    """Weights of the rows: 1 / sqrt(y), times Huber's at the full model."""
    base = 1 / np.sqrt(np.maximum(seconds, 1e-3 * float(seconds.mean())))
    weights = base
    for _ in range(_ROUNDS):
        values = nonnegative(design * weights[:, None], seconds * weights)
        residuals = (seconds - design @ values) * base
        spread = 1.4826 * float(np.median(np.abs(residuals)))
        if spread <= 0:
            break
        huber = np.minimum(1.0, _HUBER * spread / np.maximum(np.abs(residuals), 1e-300))
        new = base * np.sqrt(huber)
        if np.allclose(new, weights, rtol=1e-6):
            break
        weights = new
    return weights


def _choose(design: Array, seconds: Array, weights: Array) -> list[int]:
    """The subset of terms with the least information criterion among those whose solution is nonnegative."""
    rows, number = design.shape
    weighted, target = design * weights[:, None], seconds * weights
    gram, right, total = weighted.T @ weighted, weighted.T @ target, float(target @ target)
    best, chosen = np.inf, [0]
    for size in range(1, number + 1):
        for subset in combinations(range(number), size):
            at = list(subset)
            part = gram[np.ix_(at, at)]
            if np.linalg.cond(part) > 1e12:
                continue
            free = np.linalg.solve(part, right[at])
            if (free < 0).any():
                continue
            squares = max(total - float(free @ right[at]), 1e-15 * total)
            criterion = rows * np.log(squares / rows) + size * np.log(rows)
            if criterion < best:
                best, chosen = criterion, at
    return chosen


def _solve_with_intervals(design: Array, seconds: Array, weights: Array) -> tuple[Array, Array]:
    """Coefficients and the half width of their 95% intervals."""
    weighted, target = design * weights[:, None], seconds * weights
    values = np.linalg.lstsq(weighted, target, rcond=None)[0]
    left = max(design.shape[0] - design.shape[1], 1)
    variance = float(((target - weighted @ values) ** 2).sum()) / left
    errors = np.sqrt(np.maximum(np.diag(np.linalg.pinv(weighted.T @ weighted)) * variance, 0))
    return np.asarray(values), np.asarray(_Z95 * errors)


def _largest(design: Array, seconds: Array, weights: Array, chosen: list[int], number: int) -> float:
    """The upper end of the interval that a term left out would have beside those chosen."""
    values, half = _solve_with_intervals(design[:, [*chosen, number]], seconds, weights)
    return max(float(values[-1] + half[-1]), 0.0)


def _partner(design: Array, chosen: list[int], number: int, names: list[str]) -> str | None:
    """The chosen term that a left-out one rises and falls with, if any; the constant goes with what hardly varies."""
    column = design[:, number]
    if float(column.std()) <= 1e-9 * max(float(np.abs(column).mean()), 1e-300):
        return next((names[at] for at in chosen if float(design[:, at].std()) == 0), None)
    best, name = _HIDDEN_BY, None
    for at in chosen:
        if float(design[:, at].std()) > 0:
            correlation = abs(float(np.corrcoef(column, design[:, at])[0, 1]))
            if correlation > best:
                best, name = correlation, names[at]
    return name
