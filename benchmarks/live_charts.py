"""What a tick of the live charts costs, at 10 thousand, 100 thousand and a million steps, against a plain FigureWidget with all points.

    python -m benchmarks.live_charts

Columns: `draw ms` is CPU time of the thread that draws all ten charts after new events came, the message of each chart made and encoded;
`message kB` what one tick sends; `FigureWidget ms` and `kB` the same for ONE chart (loss) updated the plain way, every point of it. `first
chart` is CPU time from opening the run's folder to the first drawn charts, its events read. No page is open: the browser's share isn't in it.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
import plotly.graph_objects as go

from dflash.charts.run import CHARTS
from dflash.charts.run_axis import View
from dflash.telemetry.series import RunSeries
from workbench.chart import as_message

STEPS = (10_000, 100_000, 1_000_000)
BUCKETS = [0, 770, 1216, 1728, 2432, 3296, 8192]
BATCHES_A_STEP = 2


def write_run(folder: Path, steps: int) -> float:
    """Events of a run of so many steps, batch events among them; returns MB written."""
    draws = np.random.default_rng(0)
    loss = 1.5 + 4 * np.exp(-np.arange(steps) / steps * 4) + draws.normal(0, 0.1, steps)
    folder.mkdir(parents=True)
    path = folder / "coordinator-0000.jsonl"
    states = ("busy", "starved", "blocked", "copy", "evaluation", "checkpoint", "compile")
    names = [f"target-{n}" for n in range(5)] + [f"drafter-{n}" for n in range(3)]
    with path.open("wb") as file:
        start = {"event": "run_started", "time": 1e9, "seconds": 0.0, "schema": 1, "total_steps": steps, "boundaries": BUCKETS}
        file.write(orjson.dumps(start, option=orjson.OPT_APPEND_NEWLINE))
        for step in range(1, steps + 1):
            at = step * 0.4
            for _ in range(BATCHES_A_STEP):
                file.write(
                    b'{"event":"batch","time":1e9,"seconds":%f,"rows":20,"tokens":41000,"loss":3.2,"filler":"%s"}\n'
                    % (at, b"x" * 150)
                )
            event = {
                "event": "step", "time": 1e9 + at, "seconds": at, "step": step, "epoch": 0, "loss": loss[step - 1],
                "grad_norm": 1.0 + 0.1 * math.sin(step),
                "lr": 6e-4, "accuracy": 0.3, "streak": 1.2, "acceptance_length": 2.2, "tokens": 82_000, "padded_tokens": 90_000,
                "step_seconds": 0.1,
            }  # fmt: skip
            file.write(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
            if step % 25 == 0:
                workers = [
                    {"worker": name, "tokens": int(at * 1e4), "padded_tokens": int(at * 1.1e4), "batches": step,
                     **{f"{state}_seconds": at / len(states) for state in states}}
                    for name in names
                ]  # fmt: skip
                pool = {"queue": "pool", "depths": [1, 2, 3, 4, 5, 2], "depth_seconds": [at * n for n in range(6)]}
                ready = {"queue": "prefetch", "depths": [8], "depth_seconds": [8 * at]}
                sample = {"event": "sample", "time": 1e9 + at, "seconds": at, "clock_seconds": at, "step": step,
                          "committed_tokens": 82_000 * step,
                          "workers": workers, "queues": [pool, ready], "pool_bytes": 1}  # fmt: skip
                file.write(orjson.dumps(sample, option=orjson.OPT_APPEND_NEWLINE))
    return path.stat().st_size / 1e6


def draw_all(series: RunSeries) -> int:
    """One tick: every chart drawn and its message encoded; returns bytes."""
    return sum(len(json.dumps(as_message(chart([series], View(axis="time"))))) for chart in CHARTS.values())


def plain_tick(widget: go.FigureWidget, series: RunSeries) -> int:
    """The same for one chart the plain way: all points of it; returns bytes."""
    with widget.batch_update():
        widget.data[0].x, widget.data[0].y = series.steps["elapsed_seconds"].copy(), series.steps["loss"].copy()
    return len(json.dumps(widget.to_dict()["data"]))


def median_ms(work: object, times: int = 5) -> tuple[float, int]:
    """Median CPU milliseconds of a call, and what it returned last."""
    spent, result = [], 0
    for _ in range(times):
        started = time.thread_time()
        result = work()  # type: ignore[operator]
        spent.append(1e3 * (time.thread_time() - started))
    return sorted(spent)[times // 2], result


def main() -> None:
    """Print the table."""
    print(f"{'steps':>9} {'file MB':>8} {'first chart s':>13} {'draw ms':>8} {'message kB':>10} {'FigureWidget ms':>15} {'kB':>7}")
    for steps in STEPS:
        folder = Path(tempfile.mkdtemp())
        try:
            size = write_run(folder / "events", steps)
            started = time.process_time()
            series = RunSeries(folder / "events")
            while series.update():
                pass
            draw_all(series)
            opened = time.process_time() - started
            ours, sent = median_ms(lambda series=series: draw_all(series))
            widget = go.FigureWidget(go.Figure(go.Scatter(x=[0.0], y=[0.0])))
            plain, plain_sent = median_ms(lambda series=series, widget=widget: plain_tick(widget, series))
            print(
                f"{steps:>9,} {size:>8.0f} {opened:>13.1f} {ours:>8.0f} {sent / 1e3:>10.0f} {plain:>15.0f} {plain_sent / 1e3:>7.0f}",
                flush=True,
            )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
