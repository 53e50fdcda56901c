"""False alarms, hits, lag and time of the change detector on synthetic rates.

    python -m benchmarks.change_detection [--series 200]

Series of 300 points, log-normal noise of cv 8% with lag-1 autocorrelation phi; a step in the middle (or none). A hit is a change found
within 15 points of the true one; in brackets, series in which any step is found at all. The last rows compare two stretches of k lines
whose boundary is known (9.5 -> 5.7 Ktok/s).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from dflash.analysis.changepoints import find_steps
from dflash.analysis.noise import compare_rates

POINTS, CV, NEAR = 300, 0.08, 15
PHIS = (0.0, 0.5, 0.8)
DROPS = (0.52, 0.40, 0.15, 0.10, 0.05)


def noisy(rng: np.random.Generator, points: int, phi: float) -> np.ndarray:
    """AR(1) logarithms of standard deviation `CV`."""
    shocks = rng.normal(0, CV * np.sqrt(1 - phi**2), points)
    logs = np.empty(points)
    logs[0] = rng.normal(0, CV)
    for at in range(1, points):
        logs[at] = phi * logs[at - 1] + shocks[at]
    return logs


def false_alarms(series: int, phi: float) -> float:
    """Share of series without a change in which one is found."""
    rng = np.random.default_rng([series, int(phi * 10), 1])
    found = (find_steps(9.5 * np.exp(noisy(rng, POINTS, phi))) for _ in range(series))
    return float(np.mean([bool(each.steps) or each.drift is not None for each in found]))


def hits(series: int, phi: float, drop: float) -> tuple[float, float, float]:
    """Share of series in which the drop is found where it is, in which any step is found, and the median number of points it is off."""
    rng = np.random.default_rng([series, int(phi * 10), int(drop * 100)])
    off = []
    for _ in range(series):
        logs = noisy(rng, POINTS, phi)
        logs[POINTS // 2 :] += np.log(1 - drop)
        steps = find_steps(9.5 * np.exp(logs)).steps
        off.append(min((abs(step.index - POINTS // 2) for step in steps), default=POINTS))
    near = [each for each in off if each <= NEAR]
    anywhere = sum(each < POINTS for each in off) / series
    return len(near) / series, anywhere, float(np.median(near)) if near else float("nan")


def known_boundary(series: int, lines: int, phi: float, after: float) -> tuple[float, float]:
    """Share of pairs of stretches that differ with p < 0.05, and share whose interval covers the true change."""
    rng = np.random.default_rng([series, lines, int(phi * 10)])
    found = covered = 0
    for _ in range(series):
        logs = noisy(rng, 2 * lines, phi) if after == 9.5 else np.concatenate([noisy(rng, lines, phi), noisy(rng, lines, phi)])
        ratio = compare_rates(9.5 * np.exp(logs[:lines]), after * np.exp(logs[lines:]))
        found += ratio.p < 0.05
        covered += ratio.low <= after / 9.5 - 1 <= ratio.high
    return found / series, covered / series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200)
    series = parser.parse_args().series
    table = Table(
        "phi", "false alarms", *(f"hits at -{drop:.0%}" for drop in DROPS), "points off at -15%", title=f"{series} series each"
    )
    for phi in PHIS:
        found = [hits(series, phi, drop) for drop in DROPS]
        shares = (f"{near:.1%} ({anywhere:.1%})" for near, anywhere, _ in found)
        table.add_row(str(phi), f"{false_alarms(series, phi):.1%}", *shares, f"{found[2][2]:.0f}")
    known = Table("lines a side", "phi", "found at -40%", "interval covers", "found at 0%", title="known boundary")
    for lines in (3, 5, 10, 20):
        for phi in (0.0, 0.5):
            power, covers = known_boundary(series, lines, phi, 5.7)
            alarms, _ = known_boundary(series, lines, phi, 9.5)
            known.add_row(str(lines), str(phi), f"{power:.1%}", f"{covers:.1%}", f"{alarms:.1%}")
    rates = 9.5 * np.exp(noisy(np.random.default_rng(0), 100_000, 0.5))
    find_steps(rates[:100])  # import and first calls apart
    began = time.perf_counter()
    find_steps(rates)
    console = Console(width=130)
    console.print(table, known)
    console.print(f"100,000 points: {time.perf_counter() - began:.3f} s")


if __name__ == "__main__":
    main()
