"""Charts of a run's flow: throughput, queues, the pool by length bucket, what each worker does with its time, the machine.

All come from the counters that a run samples every few seconds. Counters only grow within a session, so that a rate or a share over any
span is a difference; a span that crosses a restart is left blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dflash.charts.downsample import Numbers, keep_extremes, slice_of
from dflash.charts.run_axis import View, figure, positions, scale_of, waiting
from dflash.charts.style import BLUE, DASHES, GREEN, ORANGE, RED, SERIES, SKY, STATE_COLOURS, Axis, bucket_labels, ramp
from dflash.telemetry.accounts import STATES
from dflash.telemetry.series import Columns, RunSeries

HEAT_COLUMNS = 240
STATE_COLUMNS = 160
RATES = 6_000
"""Rows a rate is worked out at, at most; each is a mean over its window anyway."""
_NO_ACCOUNTS = "an imported log has no accounts of its workers' time"
_NO_SAMPLE = "no sample yet; telemetry.sample_every sets how often workers and queues are sampled"


def throughput(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Ktok/s of targets (real and padded tokens), of drafters, and committed by optimiser steps, over the last `window_seconds`."""
    title = f"throughput, over the last {view.window_seconds:g} s"
    if not any(len(run.samples) > 1 for run in runs):
        return waiting(_NO_SAMPLE, title)
    scale = scale_of(runs, view)
    traces: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        quantities = [("committed", run.steps, run.steps["committed_tokens"], BLUE, "solid", 2.5)]
        if len(runs) == 1:
            quantities += [
                ("drafters", run.samples, _sum(run, "drafter", "tokens"), RED, "dot", 1.8),
                ("targets, real", run.samples, _sum(run, "target", "tokens"), GREEN, "dash", 1.8),
                ("targets, padded", run.samples, _sum(run, "target", "padded_tokens"), ORANGE, "dashdot", 1.2),
            ]
        for name, rows, counter, colour, dash, width in quantities:
            x = positions(run, rows, view.axis)
            first, last, _ = slice_of(x, view.shown).indices(x.size)
            at = np.unique(np.linspace(first, last - 1, min(last - first, RATES)).astype(np.int64))
            rate = window_rate(rows, counter, view.window_seconds, at) / 1_000
            if len(runs) > 1:
                name, colour, dash = run.name, SERIES[number % len(SERIES)], DASHES[number % len(DASHES)]
            traces.append(_line(x[at] / scale.size, rate, name, colour, view, dash=dash, width=width))
    return figure(traces, scale, Axis("throughput", "Ktok/s"), runs, view, title=title)


def queues(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Batches read ahead and waiting for the targets, and items ready in the pool, at each sample."""
    title = "queues"
    if not any(len(run.samples) for run in runs):
        return waiting(_NO_SAMPLE, title)
    scale = scale_of(runs, view)
    traces: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        x = positions(run, run.samples, view.axis)
        part = slice_of(x, view.shown)
        for name, depth, colour, dash in (
            ("waiting for targets", run.samples["ready"], SKY, "dash"),
            ("ready in the pool", _pool(run).sum(axis=0), BLUE, "solid"),
        ):
            if len(runs) > 1:
                name, colour = f"{run.name}, {name}", SERIES[number % len(SERIES)]
            traces.append(_line(x[part] / scale.size, depth[part], name, colour, view, dash=dash))
    return figure(traces, scale, Axis("items", "batches"), runs, view, title=title)


def pool_now(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Ready items a length bucket in the newest sample of the first run."""
    title, run = "pool now, by length bucket", runs[0] if runs else None
    if run is None or not len(run.samples) or not run.boundaries:
        return waiting(_NO_SAMPLE, title)
    counts = _pool(run)[:, -1]
    labels = bucket_labels(run.boundaries)[: counts.size]
    top = [0, max(_pool(run).max() * 1.15, 1.0)]
    bars = {
        "type": "bar", "x": labels, "y": counts, "marker": {"color": ramp(counts.size)}, "showlegend": False,
        "meta": {"dark": {"marker": {"color": ramp(counts.size, "dark")}}},
        "text": [f"{count:g}" for count in counts], "textposition": "outside", "cliponaxis": False,
    }  # fmt: skip
    return _plain(
        [bars],
        Axis("row length", "tokens"),
        Axis("ready items", "batches"),
        title,
        xaxis={"type": "category"},
        yaxis={"range": top},
    )


def pool_over_time(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Mean number of ready items a length bucket over time, exact between samples, of the first run."""
    title, run = "pool over time, by length bucket", runs[0] if runs else None
    if run is None or len(run.samples) < 2 or not run.boundaries:
        return waiting(_NO_SAMPLE, title)
    scale = scale_of(runs, view)
    x, at = _columns(run, view, HEAT_COLUMNS)
    buckets = len(_pool(run))
    seconds = np.diff(run.samples["clock_seconds"][at])
    depth = np.array([np.diff(run.samples[f"pool-{bucket}-depth_seconds"][at]) for bucket in range(buckets)])
    redrawn = (depth < 0).any(axis=0)  # boundaries were changed in between: the integrals began anew
    mean = np.where(_crosses_restart(run, at) | (seconds <= 0) | redrawn, np.nan, depth / np.maximum(seconds, 1e-9))
    heat = {
        "type": "heatmap", "x": x[at] / scale.size, "y": bucket_labels(run.boundaries)[:buckets], "z": np.round(mean, 3),
        "colorbar": {"title": {"text": "items"}, "thickness": 12}, "hoverongaps": False, "zmin": 0,
        "hovertemplate": "%{y} tokens<br>%{z:.2f} items<extra></extra>",
    }  # fmt: skip
    axis = {"type": "category", "rangemode": "normal"}
    return figure([heat], scale, Axis("row length", "tokens"), runs, view, title=title, yaxis=axis)


def workers(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Share of their time that targets (upper) and drafters (lower) of the first run spent in each state."""
    title, run = "share of time, targets and drafters", runs[0] if runs else None
    if run is None or len(run.samples) < 2:
        return waiting(_NO_SAMPLE, title, 380)
    if not run.workers:
        return waiting(_NO_ACCOUNTS, title, 380)
    scale = scale_of(runs, view)
    x, at = _columns(run, view, STATE_COLUMNS)
    traces: list[dict[str, Any]] = []
    for kind, axis in (("target", "y"), ("drafter", "y2")):
        spent = {state: np.diff(_sum(run, kind, f"{state}_seconds")[at]) for state in STATES}
        total = np.sum(list(spent.values()), axis=0)
        blank = _crosses_restart(run, at) | (total <= 0)
        for state, seconds in spent.items():
            if not seconds.any():
                continue
            share = np.where(blank, 0.0, 100 * seconds / np.maximum(total, 1e-9))
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "stackgroup": kind, "x": x[at][1:] / scale.size, "y": np.round(share, 2),
                    "yaxis": axis, "name": state, "legendgroup": state, "line": {"width": 0, "color": STATE_COLOURS[state], "shape": "vh"},
                    "fillcolor": STATE_COLOURS[state],
                    "showlegend": kind == "drafter" or state not in _states_of(run, "drafter"), "hovertemplate": f"{state} %{{y:.0f}}%",
                }
            )  # fmt: skip
    upper = {"domain": [0.54, 1], "range": [0, 100], "fixedrange": True}
    lower = {"title": {"text": "drafters (%)"}, "domain": [0, 0.46], "range": [0, 100], "fixedrange": True}
    drawn = figure(traces, scale, Axis("targets", "%"), runs, view, title=title, height=380, yaxis=upper, yaxis2=lower)
    return drawn.update_xaxes({"anchor": "y2"})


def workers_now(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Each worker's seconds by state over the last `window_seconds`, of the first run."""
    title, run = f"each worker, over the last {view.window_seconds:g} s", runs[0] if runs else None
    if run is None or len(run.samples) < 2:
        return waiting(_NO_SAMPLE, title)
    if not run.workers:
        return waiting(_NO_ACCOUNTS, title)
    since = int(window_starts(run.samples, view.window_seconds, np.array([len(run.samples) - 1]))[0])
    names = [name for name in run.workers if np.isfinite(run.samples[f"{name}-busy_seconds"][-1])]
    spent = {
        state: np.array([run.samples[f"{name}-{state}_seconds"][[since, -1]] for name in names]) for state in STATES
    }  # fmt: skip
    seconds = {state: np.nan_to_num(ends[:, 1]) - np.nan_to_num(ends[:, 0]) for state, ends in spent.items()}
    total = np.maximum(np.sum(list(seconds.values()), axis=0), 1e-9)
    bars = [
        {"type": "bar", "orientation": "h", "y": names, "x": np.round(100 * each / total, 2), "name": state,
         "marker": {"color": STATE_COLOURS[state]}, "hovertemplate": f"%{{y}} {state} %{{x:.0f}}%<extra></extra>"}
        for state, each in seconds.items() if each.any()
    ]  # fmt: skip
    height = 150 + 22 * max(len(names), 6)
    axis = {"range": [0, 100]}
    drawn = _plain(bars, Axis("share of its time", "%"), Axis("worker"), title, xaxis=axis, barmode="stack", height=height)
    return drawn.update_yaxes(autorange="reversed", type="category", title_text=None)


def devices(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Utilisation (upper) and memory in use (lower) of the machine and its GPUs, of the first run."""
    title, run = "machine: utilisation and memory", runs[0] if runs else None
    if run is None or not len(run.systems):
        return waiting(_NO_SAMPLE, title, 380)
    scale = scale_of(runs, view)
    x = positions(run, run.systems, view.axis)
    part = slice_of(x, view.shown)
    at = x[part] / scale.size
    traces = [
        _line(at, run.systems["cpu_percent"][part], "CPU", BLUE, view),
        _line(at, run.systems["run_memory_bytes"][part] / 2**30, "run's memory", BLUE, view, dash="dash", yaxis="y2"),
        _line(at, run.systems["memory_used_bytes"][part] / 2**30, "machine's memory", SKY, view, dash="dot", yaxis="y2"),
    ]
    for number, gpu in enumerate(sorted(run.gpus)):
        colour = SERIES[(number + 1) % len(SERIES)]
        used, memory = (run.systems[f"gpu-{gpu}-{key}"][part] for key in ("utilization_percent", "memory_used_bytes"))
        traces.append(_line(at, used, f"GPU {gpu}", colour, view))
        traces.append(_line(at, memory / 2**30, f"GPU {gpu} memory", colour, view, dash="dash", yaxis="y2", showlegend=False))
    upper = {"domain": [0.56, 1]}
    lower = {"title": {"text": "memory (GiB)"}, "domain": [0, 0.44], "rangemode": "tozero"}
    drawn = figure(traces, scale, Axis("used", "%"), runs, view, title=title, height=380, yaxis=upper, yaxis2=lower)
    return drawn.update_xaxes({"anchor": "y2"})


def window_starts(rows: Columns, window_seconds: float, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row numbered in `at` the one its rate is counted from: the latest that is at least the window ago, of the same session.

    Rows are samples or steps; steps may lie further apart than the window, and a rate then spans one step.
    """
    elapsed, session = rows["elapsed_seconds"], rows["session"]
    first_of_session = np.searchsorted(session, session[at], side="left")
    return np.maximum(np.searchsorted(elapsed, elapsed[at] - window_seconds, side="right") - 1, first_of_session)


def window_rate(rows: Columns, counter: Numbers, window_seconds: float, at: NDArray[np.int64] | None = None) -> Numbers:
    """A counter's growth per second over the last `window_seconds` at each row (or those numbered); NaN at the first of a session."""
    at = np.arange(len(rows)) if at is None else at
    since = window_starts(rows, window_seconds, at)
    seconds = rows["elapsed_seconds"][at] - rows["elapsed_seconds"][since]
    grown = counter[at] - counter[since]
    return np.where(seconds > 0, grown / np.maximum(seconds, 1e-9), np.nan)


def _sum(run: RunSeries, kind: str, counter: str) -> Numbers:
    columns = [run.samples[f"{name}-{counter}"] for name in run.workers if name.startswith(f"{kind}-")]
    total: Numbers = np.nansum(columns, axis=0) if columns else np.zeros(len(run.samples))
    return total


def _states_of(run: RunSeries, kind: str) -> set[str]:
    return {state for state in STATES if _sum(run, kind, f"{state}_seconds")[-1] > 0}


def _pool(run: RunSeries) -> Numbers:
    """Ready items [buckets, samples]; a bucket that is no more has none."""
    buckets = max(len(run.boundaries) - 1, 1)
    items: Numbers = np.nan_to_num(np.array([run.samples[f"pool-{bucket}"] for bucket in range(buckets)]))
    return items


def _columns(run: RunSeries, view: View, most: int) -> tuple[Numbers, NDArray[np.int64]]:
    """Positions of all samples, and the numbers of those that bound the columns shown."""
    x = positions(run, run.samples, view.axis)
    part = slice_of(x, view.shown)
    first, last, _ = part.indices(x.size)
    first, last = (max(last - 2, 0), last) if last - first < 2 else (first, last)
    return x, np.unique(np.linspace(first, last - 1, min(last - first, most + 1)).astype(np.int64))


def _crosses_restart(run: RunSeries, at: NDArray[np.int64]) -> NDArray[np.bool_]:
    crosses: NDArray[np.bool_] = np.diff(run.samples["session"][at]) > 0
    return crosses


def _line(
    x: Numbers, y: Numbers, name: str, colour: str, view: View, *, dash: str = "solid", width: float = 1.8, **extra: Any
) -> dict[str, Any]:
    x, y = keep_extremes(x, y, view.points)
    line = {"color": colour, "dash": dash, "width": width}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "line": line, **extra}


def _plain(
    traces: list[dict[str, Any]], x: Axis, y: Axis, title: str, *, xaxis: dict[str, Any], height: int = 300, **layout: Any
) -> go.Figure:
    """A chart that doesn't run along the run's axis."""
    drawn = waiting("", title, height)
    drawn.update_layout(annotations=[], **layout)
    drawn.update_xaxes(visible=True, title_text=x.title, **xaxis).update_yaxes(visible=True, title_text=y.title)
    return drawn.add_traces([go.Bar({key: value for key, value in trace.items() if key != "type"}) for trace in traces])
