"""Planning one epoch against plain numpy: seconds, memory, and what the plan is worth.

Rerun:  python benchmarks/planning.py [--lengths FILE.parquet] [--samples N] [--repeats R] [--json]

Without --lengths it draws 902,000 lengths from LogNormal(median 1,617, sigma 0.70) clipped to [64, 8192]: the field's. Each
strategy is timed beside a straightforward numpy implementation of the same strategy, turn by turn in one process, and the medians
are compared (plain first-fit takes seconds and has one turn). Ours orders by strata where the table says so; plain numpy always
takes the cheaper random order. Optimal boundaries are timed beside the textbook's dynamic programme, every cut tried for every
length in plain numpy. Memory is the peak of resident memory during one plan, over what the process held with the lengths
loaded (Linux). Compiling happens once per install and is timed apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from dflash.batching.boundaries import optimal_boundaries, quantile_boundaries
from dflash.batching.figures import plan_figures
from dflash.batching.plan import plan_epoch
from dflash.config import BatchingConfig
from dflash.predict.boundaries import advise_boundaries

WINDOW = 32
BUCKETS = 6
BOUNDARIES_BOUND_SECONDS = 0.3
PLANS = [
    ("sorted", "random"),
    ("shuffled", "random"),
    ("bucketed", "random"),
    ("jittered", "random"),
    ("jittered", "stratified"),
    ("packed", "random"),
    ("packed", "stratified"),
]
Batches = list[NDArray[np.int64]]


def plain_sorted(lengths: NDArray[np.int32], budget: int, rng: np.random.Generator) -> Batches:
    return plain_cut(np.argsort(lengths, kind="stable"), lengths, budget)


def plain_shuffled(lengths: NDArray[np.int32], budget: int, rng: np.random.Generator) -> Batches:
    return plain_cut(rng.permutation(lengths.size), lengths, budget)


def plain_jittered(lengths: NDArray[np.int32], budget: int, rng: np.random.Generator) -> Batches:
    return plain_cut(np.argsort(lengths + rng.uniform(-32, 32, lengths.size)), lengths, budget)


def plain_bucketed(lengths: NDArray[np.int32], budget: int, rng: np.random.Generator) -> Batches:
    batches: Batches = []
    boundaries = quantile_boundaries(lengths, 6)
    for low, high in itertools.pairwise(boundaries):
        rows = np.flatnonzero((lengths > low) & (lengths <= high))
        batches += plain_cut(rng.permutation(rows), lengths, budget)
    return batches


def plain_cut(order: NDArray[np.int64], lengths: NDArray[np.int32], budget: int) -> Batches:
    """Greedy batches of rows x longest <= budget: one searchsorted a batch."""
    rows, batches, start = lengths[order].astype(np.int64), [], 0
    counts = np.arange(1, budget // int(lengths.min()) + 2)
    while start < rows.size:
        ahead = rows[start : start + budget // rows[start]]
        padded = np.maximum.accumulate(ahead) * counts[: ahead.size]
        stop = start + int(np.searchsorted(padded, budget, side="right"))
        batches.append(order[start:stop])
        start = stop
    return batches


def plain_packed(lengths: NDArray[np.int32], budget: int, rng: np.random.Generator) -> Batches:
    """First-fit in random order: one scan over the batches that still take the shortest row, a sample."""
    order = rng.permutation(lengths.size)
    room = np.full(2 * int(lengths.sum() // budget) + 2, budget)
    batch_of = np.empty(lengths.size, np.int64)
    shortest, first, fresh = int(lengths.min()), 0, 0
    for row, length in enumerate(lengths[order].tolist()):
        while room[first] < shortest:
            first += 1
        batch = first + int(np.argmax(room[first : fresh + 1] >= length))
        fresh = max(fresh, batch + 1)
        room[batch] -= length
        batch_of[row] = batch
    by_batch = np.argsort(batch_of, kind="stable")
    return np.split(order[by_batch], np.cumsum(np.bincount(batch_of))[:-1])


PLAIN: dict[str, Callable[[NDArray[np.int32], int, np.random.Generator], Batches]] = {
    "sorted": plain_sorted,
    "shuffled": plain_shuffled,
    "bucketed": plain_bucketed,
    "jittered": plain_jittered,
    "packed": plain_packed,
}


def plain_boundaries(lengths: NDArray[np.int32], buckets: int) -> list[int]:
    """The least rows x longest over all cuts, one minimum over every earlier length for each length and bucket."""
    values, counts = np.unique(lengths, return_counts=True)
    edges, samples = np.concatenate([[0], values]), np.concatenate([[0], np.cumsum(counts)])
    best, cuts = (samples * edges).astype(np.float64), []
    for _ in range(buckets - 1):
        tried = [best[: j + 1] + (samples[j] - samples[: j + 1]) * edges[j] for j in range(edges.size)]
        cuts.append(np.array([int(each.argmin()) for each in tried]))
        best = np.array([each.min() for each in tried])
    found, at = [int(edges[-1])], edges.size - 1
    for cut in reversed(cuts):
        at = int(cut[at])
        found.append(int(edges[at]))
    return [0, *reversed(found)]


def race_boundaries(lengths: NDArray[np.int32], repeats: int) -> dict[str, float]:
    """Median seconds of our optimum and of all that `dflash boundaries` computes, with the textbook's way once."""
    assert plain_boundaries(lengths[:20_000], BUCKETS) == optimal_boundaries(lengths[:20_000], BUCKETS)
    plain = seconds_of(lambda: plain_boundaries(lengths, BUCKETS))
    ours = statistics.median(seconds_of(lambda: optimal_boundaries(lengths, BUCKETS)) for _ in range(repeats))
    command = statistics.median(
        seconds_of(lambda: advise_boundaries(lengths, BatchingConfig(), buckets=BUCKETS)) for _ in range(repeats)
    )
    return {"seconds": ours, "plain_numpy_seconds": plain, "ratio": ours / plain, "command_seconds": command}


def plain_plan(strategy: str, lengths: NDArray[np.int32], budget: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same product as a plan: samples in execution order (batches shuffled) and offsets."""
    rng = np.random.default_rng(seed)
    batches = PLAIN[strategy](lengths, budget, rng)
    shuffled = [batches[index] for index in rng.permutation(len(batches)).tolist()]
    return np.concatenate(shuffled), np.cumsum([0, *map(len, shuffled)])


def field_lengths(samples: int) -> NDArray[np.int32]:
    drawn = np.random.default_rng(0).lognormal(math.log(1617), 0.70, samples)
    return drawn.clip(64, 8192).astype(np.int32)


def seconds_of(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def race(lengths: NDArray[np.int32], settings: BatchingConfig, repeats: int, plain_repeats: int) -> tuple[float, float]:
    """Median seconds of our plan and of plain numpy's, taken in turns."""
    ours, plain = [], []
    for turn in range(repeats):
        ours.append(seconds_of(lambda epoch=turn: plan_epoch(lengths, settings, epoch=epoch, window=WINDOW)))
        if turn < plain_repeats:
            plain.append(seconds_of(lambda seed=turn: plain_plan(settings.strategy, lengths, settings.token_budget, seed)))
    return statistics.median(ours), statistics.median(plain)


def measure(lengths: NDArray[np.int32], strategy: str, order: str, repeats: int, path: Path) -> dict[str, object]:
    settings = BatchingConfig.model_validate({"strategy": strategy, "order": order})
    ours, plain = race(lengths, settings, repeats, 1 if strategy == "packed" else repeats)
    figures = plan_figures(plan_epoch(lengths, settings, epoch=0, window=WINDOW), lengths, settings)
    return {
        "strategy": strategy,
        "order": order,
        "seconds": ours,
        "plain_numpy_seconds": plain,
        "ratio": ours / plain,
        "mib_over_lengths": peak_mib(path, strategy, order),
        "padding_efficiency": figures.padding_efficiency,
        "fill": figures.fill,
        "vr_32": figures.vr["32"],
        "chi_32": figures.chi["32"],
    }


def peak_mib(path: Path, strategy: str, order: str) -> float | None:
    """Peak resident MiB of one plan in a fresh process, over what it held before; None where /proc doesn't tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    child = f"""
import numpy as np
from dflash.batching.plan import plan_epoch
from dflash.config import BatchingConfig
def held(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))
lengths = np.load({str(path)!r})
settings = BatchingConfig(strategy={strategy!r}, order={order!r})
plan_epoch(lengths[:1000], settings, epoch=0, window={WINDOW})
open("/proc/self/clear_refs", "w").write("5")
before = held("VmRSS")
plan_epoch(lengths, settings, epoch=0, window={WINDOW})
print((held("VmHWM") - before) / 1024)
"""
    return float(subprocess.run([sys.executable, "-c", child], check=True, capture_output=True, text=True).stdout)


def import_seconds() -> tuple[float, float]:
    """Seconds to import the planner with an empty compile cache, and with a full one."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", "import dflash.batching.plan"]
        first, second = (
            seconds_of(lambda: subprocess.run(command, check=True, env={**os.environ, "NUMBA_CACHE_DIR": cache})) for _ in range(2)
        )
    return first, second


def show(
    rows: list[dict[str, object]],
    lengths: NDArray[np.int32],
    imports: tuple[float, float],
    boundaries: dict[str, float],
    console: Console,
) -> None:
    table = Table(title=f"One epoch of {lengths.size:,} lengths, budget 49,152, window {WINDOW}")
    columns = {
        "strategy": "{}", "order": "{}", "seconds": "{:.3f}", "plain_numpy_seconds": "{:.3f}", "ratio": "{:.2f}",
        "mib_over_lengths": "{:.0f}", "padding_efficiency": "{:.4f}", "fill": "{:.4f}", "vr_32": "{:.3f}", "chi_32": "{:.2f}",
    }  # fmt: skip
    for name in columns:
        table.add_column(name.replace("_", " "), justify="left" if name in ("strategy", "order") else "right")
    for row in rows:
        table.add_row(*("-" if row[name] is None else style.format(row[name]) for name, style in columns.items()))
    console.print(table)
    console.print(
        f"{BUCKETS} optimal boundaries: {boundaries['seconds']:.3f} s, the textbook's way {boundaries['plain_numpy_seconds']:.2f} s "
        f"(ratio {boundaries['ratio']:.3f}); with all that `dflash boundaries` tells, three plans and the curve: "
        f"{boundaries['command_seconds']:.3f} s (bound {BOUNDARIES_BOUND_SECONDS} s)."
    )
    console.print(f"Import with compiling (once an install): {imports[0]:.2f} s; afterwards {imports[1]:.2f} s.")
    console.print("Bounds: ratio <= 1.5, MiB <= 40; jittered + stratified: efficiency >= 0.98, vr 32 <= 0.15;")
    console.print("packed + stratified: fill >= 0.995, vr 32 <= 0.15. Rerun: python benchmarks/planning.py --repeats 7")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help="Parquet with a column `length`")
    parser.add_argument("--samples", type=int, default=902_000, help="lengths to draw when no file is given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    asked = parser.parse_args()
    if asked.lengths:
        lengths = pl.read_parquet(asked.lengths, columns=["length"])["length"].to_numpy().astype(np.int32)
    else:
        lengths = field_lengths(asked.samples)
    imports = import_seconds()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lengths.npy"
        np.save(path, lengths)
        rows = [measure(lengths, strategy, order, asked.repeats, path) for strategy, order in PLANS]
    boundaries = race_boundaries(lengths, asked.repeats)
    show(rows, lengths, imports, boundaries, Console(stderr=asked.json, width=150))
    if asked.json:
        print(json.dumps({
            "samples": lengths.size, "import_compiling_s": imports[0], "import_s": imports[1], "boundaries": boundaries, "plans": rows,
        }))  # fmt: skip


if __name__ == "__main__":
    main()
