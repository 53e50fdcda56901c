"""Length analysis of 100 million lengths in Parquet: seconds and peak memory of the commands.

Rerun:  python benchmarks/length_analysis.py [--samples N] [--boundaries] [--json]

Draws lengths from LogNormal(median 1,617, sigma 0.70) clipped to [16, 131072], with a source of five names, a million a row group, and
runs each command in a process of its own. Bound: 4 GiB for 100 million lengths. `--boundaries` adds `dflash boundaries`, which plans
three epochs of them and so holds all lengths at once (a minute or two).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

BOUND_GIB = 4.0
GROUP = 1_000_000
SOURCES = np.array(["code", "chat", "web", "math", "other"])
SCHEMA = pa.schema({"length": pa.int32(), "source": pa.string()})


def write_lengths(place: Path, samples: int) -> None:
    with pq.ParquetWriter(place, SCHEMA) as writer:
        for number, start in enumerate(range(0, samples, GROUP)):
            rows = min(GROUP, samples - start)
            draws = np.random.default_rng(number)
            lengths = draws.lognormal(math.log(1617), 0.70, rows).clip(16, 131_072).astype(np.int32)
            writer.write_table(pa.table({"length": lengths, "source": SOURCES[draws.integers(0, 5, rows)]}, schema=SCHEMA))


def measure(arguments: list[str]) -> dict[str, object]:
    """Wall and CPU seconds and peak resident GiB of one command (Linux counts the peak in KiB)."""
    started = time.monotonic()
    command = [sys.executable, "-m", "dflash", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {process.returncode}")
    seconds = time.monotonic() - started
    return {
        "command": " ".join(arguments),
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_gib": used.ru_maxrss / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--boundaries", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "lengths.parquet"
        write_lengths(place, asked.samples)
        commands = [
            ["lengths", str(place)],
            ["lengths", str(place), "--group-by", "source"],
            ["lengths", str(place), "--against", str(place)],
        ]
        if asked.boundaries:
            commands.append(["boundaries", str(place), "--token-budget", "131072"])
        rows = [measure(command) for command in commands]
    table = Table("command", "wall s", "CPU s", "peak GiB", title=f"{asked.samples:,} lengths from Parquet")
    for row in rows:
        words = str(row["command"]).replace(str(place), "FILE")
        table.add_row(words, f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}", f"{row['peak_gib']:.2f}")
    Console().print(table)
    if asked.json:
        print(json.dumps(rows))
    if any(float(row["peak_gib"]) > BOUND_GIB for row in rows):
        sys.exit(f"more than {BOUND_GIB} GiB")


if __name__ == "__main__":
    main()
