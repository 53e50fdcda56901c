"""How long a user of the workbench waits: a dragged boundary at 902,000 lengths, and the first chart of a notebook in a real JupyterLab.

    python -m benchmarks.waiting [--lengths 902000] [--no-browser]

The drag: from the browser's message to all messages back (chart, table, figures), without the browser; the mix follows on a thread.
The notebook: LengthExplorer and LiveCharts in a headless Chromium, kernel warm, from running the cell to a drawn chart, and from opening the
notebook (its kernel starts, imports included). Wall seconds, medians; other work on the machine shows in them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from tests.browser.lab import CHROMIUM, chromium, jupyter_lab, open_notebook, run_all, run_cell, wait_for_points, write_notebook
from tests.workbench.simulated_run import simulate_run
from workbench import LengthExplorer

EXPLORER = "from workbench import LengthExplorer\nLengthExplorer('lengths.parquet')"
CHARTS = "from workbench import LiveCharts\nLiveCharts('runs/done', charts=['throughput'])"


def lengths(count: int) -> pl.DataFrame:
    """Lengths like the field's."""
    drawn = np.clip(np.random.default_rng(0).lognormal(np.log(1617), 0.7, count), 16, 8192).astype(np.int32)
    return pl.DataFrame({"length": drawn, "source": np.where(drawn % 3 == 0, "code", "chat")})


def drag(frame: pl.DataFrame, times: int = 21) -> tuple[float, float, float]:
    """Seconds to open the explorer; of a drag; and of the mix after it, the median."""
    began = time.perf_counter()
    explorer = LengthExplorer(frame)
    opened = time.perf_counter() - began
    drags, mixes = [], []
    for turn in range(times):
        while "edited" not in explorer.mix:
            time.sleep(0.005)
        began = time.perf_counter()
        explorer.chart._hear(None, {"kind": "relayout", "changes": {"shapes[1].x0": 1_000.0 + 7 * turn}}, [])
        drags.append(time.perf_counter() - began)
        while "edited" not in explorer.mix:
            time.sleep(0.005)
        mixes.append(time.perf_counter() - began)
    explorer.close()
    return opened, statistics.median(drags), statistics.median(mixes)


def first_chart(folder: Path, frame: pl.DataFrame) -> dict[str, float]:
    """Seconds in the browser until a chart is drawn."""
    root, work = folder / "root", folder / "work"
    root.mkdir()
    work.mkdir()
    frame.write_parquet(root / "lengths.parquet")
    simulate_run(root / "runs" / "done", samples=4_000)
    write_notebook(root / "first.ipynb", [EXPLORER])
    found = {}
    with jupyter_lab(root, work) as address, chromium() as page:
        began = time.perf_counter()
        open_notebook(page, address, "first.ipynb")
        run_all(page)
        wait_for_points(page, "lengths", 10)
        found["opening a notebook to its LengthExplorer"] = time.perf_counter() - began
        began = time.perf_counter()
        run_cell(page, CHARTS)
        wait_for_points(page, "throughput", 2)
        found["running a cell to its LiveCharts"] = time.perf_counter() - began
    return found


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, default=902_000)
    parser.add_argument("--no-browser", action="store_true")
    arguments = parser.parse_args()
    frame = lengths(arguments.lengths)
    table = Table("what", "s")
    for name, seconds in zip(("explorer opened", "boundary dragged", "mix measured after a drag"), drag(frame), strict=True):
        table.add_row(f"{name}, {arguments.lengths:,} lengths", f"{seconds:.3f}")
    if CHROMIUM and not arguments.no_browser:
        with tempfile.TemporaryDirectory() as folder:
            for name, seconds in first_chart(Path(folder), frame).items():
                table.add_row(name, f"{seconds:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
