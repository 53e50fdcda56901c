"""Pearson's test without scipy: the 99.9% quantile by Wilson and Hilferty's approximation, within 1% from 3 degrees of freedom."""

from __future__ import annotations

from collections.abc import Sequence


def refuses(counts: Sequence[int], probabilities: Sequence[float]) -> bool:
    """Whether counts of independent draws are too far from these probabilities to be chance (1 in 1,000)."""
    draws = sum(counts)
    cells = [(count, draws * probability) for count, probability in zip(counts, probabilities, strict=True)]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if rare:
        cells.append((sum(count for count, _ in rare), max(sum(expected for _, expected in rare), 1e-9)))
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    freedom = len(cells) - 1
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.0902 * (2 / (9 * freedom)) ** 0.5) ** 3
    return statistic > quantile
