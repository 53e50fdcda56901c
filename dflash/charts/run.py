"""Charts of a run's progress: loss, acceptance, learning rate and gradient. `CHARTS` lists all charts of a run in the order shown.

Each is a pure function of the runs (the first is the one looked at, others are laid over it) and a `View`; live widgets, the offline
dashboard and reports draw the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dflash.charts.downsample import Numbers, keep_extremes, mean_bins, slice_of
from dflash.charts.loss_range import fall_words, first_fall, range_past_fall
from dflash.charts.run_axis import View, figure, positions, scale_of, waiting
from dflash.charts.run_flow import devices, pool_now, pool_over_time, queues, throughput, window_rate, workers, workers_now
from dflash.charts.style import BLUE, DASHES, ORANGE, RED, SERIES, Axis
from dflash.telemetry.console import format_eta
from dflash.telemetry.series import Columns, RunSeries

BAND_BINS = 120
_NO_STEP = "no optimiser step yet"


def loss(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Loss of each step (extremes kept), its mean with a band of one standard deviation, and the held-out loss."""
    title = "loss"
    if not any(len(run.steps) for run in runs):
        return waiting(_NO_STEP, title)
    scale = scale_of(runs, view)
    traces: list[dict[str, Any]] = []
    kept: list[Numbers] = []
    left_out: list[Numbers] = []
    for number, run in enumerate(runs):
        colour, name = SERIES[number % len(SERIES)], run.name if len(runs) > 1 else "each step"
        x, y = _shown(run, run.steps, "loss", view)
        fall = first_fall(y)
        kept.append(y[fall:])
        left_out.append(y[:fall])
        fallen_at = x[fall] if x.size else 0.0
        banded = x.size > 2 * BAND_BINS or len(runs) == 1
        looks = {"opacity": 0.7, "width": 1} if banded else {"dash": DASHES[number % len(DASHES)]}
        traces.append(_line(*keep_extremes(x / scale.size, y, view.points), name, colour, **looks))
        if banded:
            traces.extend(_band(x / scale.size, y, colour, showlegend=len(runs) == 1))
        x, y = _shown(run, run.evaluations, "loss", view)
        kept.append(y[x >= fallen_at])
        if y.size:
            traces.append(_dots(x / scale.size, y, *_held_out(runs, run, colour)))
    y_axis: dict[str, Any] = {"rangemode": "normal"}
    if highest := max((float(np.nanmax(part)) for part in left_out if part.size), default=0.0):
        title, y_axis["range"] = fall_words(highest), range_past_fall(kept)
    return figure(traces, scale, Axis("weighted loss", "nats a token"), runs, view, title=title, yaxis=y_axis)


def acceptance(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Acceptance length (streak + 1) of the batches whose metrics were taken, and of the held-out conversations."""
    title = "acceptance length: accepted tokens + 1"
    if not any(np.isfinite(run.steps["acceptance_length"]).any() or len(run.evaluations) for run in runs):
        return waiting("no metrics yet; telemetry.metrics_every sets how often they are taken", title)
    scale = scale_of(runs, view)
    traces: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        x, y = _shown(run, run.steps, "acceptance_length", view)
        name, colour = run.name if len(runs) > 1 else "in training", SERIES[number % len(SERIES)]
        traces.append(_line(*keep_extremes(x / scale.size, y, view.points), name, colour, dash=DASHES[number % len(DASHES)]))
        x, y = _shown(run, run.evaluations, "acceptance_length", view)
        if y.size:
            traces.append(_dots(x / scale.size, y, *_held_out(runs, run, colour)))
    return figure(traces, scale, Axis("tokens a target call"), runs, view, title=title, yaxis={"rangemode": "normal"})


def _held_out(runs: Sequence[RunSeries], run: RunSeries, colour: str) -> tuple[str, str, str]:
    """Name, colour and symbol of held-out points: of one run in a colour of their own, of several in the run's."""
    return ("held out", ORANGE, "diamond") if len(runs) == 1 else (f"{run.name}, held out", colour, "diamond")


def schedule(runs: Sequence[RunSeries], view: View) -> go.Figure:
    """Learning rate (lower panel) and gradient norm before clipping (upper panel)."""
    title = "gradient norm and learning rate"
    if not any(len(run.steps) for run in runs):
        return waiting(_NO_STEP, title)
    scale = scale_of(runs, view)
    traces: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        x, norm = _shown(run, run.steps, "grad_norm", view)
        _, rate = _shown(run, run.steps, "lr", view)
        names = ("gradient norm", "learning rate") if len(runs) == 1 else (f"{run.name}, norm", f"{run.name}, rate")
        colours = (BLUE, RED) if len(runs) == 1 else (SERIES[number % len(SERIES)],) * 2
        traces.append(_line(*keep_extremes(x / scale.size, norm, view.points), names[0], colours[0]))
        traces.append(_line(*keep_extremes(x / scale.size, rate, view.points), names[1], colours[1], dash="dash", yaxis="y2"))
    lower = {"title": {"text": "rate"}, "domain": [0, 0.42], "rangemode": "tozero", "exponentformat": "power", "nticks": 4}
    upper = {"domain": [0.56, 1]}
    axis = {"anchor": "y2"}
    drawn = figure(traces, scale, Axis("norm"), runs, view, title=title, yaxis=upper, yaxis2=lower)
    return drawn.update_xaxes(axis)


CHARTS: dict[str, Callable[[Sequence[RunSeries], View], go.Figure]] = {
    "loss": loss,
    "throughput": throughput,
    "acceptance": acceptance,
    "schedule": schedule,
    "pool_now": pool_now,
    "pool_over_time": pool_over_time,
    "queues": queues,
    "workers_now": workers_now,
    "workers": workers,
    "devices": devices,
}
"""Every chart of a run by name, in the order shown."""


def draw_run(runs: Sequence[RunSeries], view: View | None = None) -> dict[str, go.Figure]:
    """All charts of a run, by name."""
    return {name: chart(runs, view or View()) for name, chart in CHARTS.items()}


def describe_progress(state: str, run: RunSeries, reason: str | None = None) -> str:
    """One line: name, state and its reason, step, rate over the last minute, time left at that rate."""
    parts = [run.name, state if reason is None else f"{state}: {reason}"]
    if len(run.steps):
        parts.append(f"step {int(run.steps['step'][-1]):,}" + (f" of {run.total_steps:,}" if run.total_steps else ""))
    last = np.array([len(run.samples) - 1])
    rate = window_rate(run.samples, run.samples["committed_tokens"], 60.0, last)[0] if len(run.samples) else np.nan
    if state == "running" and np.isfinite(rate):
        parts.append(f"{rate / 1_000:.1f} Ktok/s over the last minute")
        left = (run.total_steps or 0) - int(run.steps["step"][-1]) if len(run.steps) else 0
        if rate > 0 and left > 0:
            tokens_a_step = run.steps["committed_tokens"][-1] / run.steps["step"][-1]
            parts.append(f"about {format_eta(left * tokens_a_step / rate)} left")
    if run.newer:
        parts.append("written by a newer version of dflash: what it tells may be misread here")
    if run.bad_lines or run.unreadable:
        parts.append(f"{run.bad_lines + run.unreadable} unreadable lines skipped")
    return " · ".join(parts)


def _shown(run: RunSeries, rows: Columns, name: str, view: View) -> tuple[Numbers, Numbers]:
    x = positions(run, rows, view.axis)
    part = slice_of(x, view.shown)
    return x[part], rows[name][part]


def _band(x: Numbers, y: Numbers, colour: str, *, showlegend: bool) -> list[dict[str, Any]]:
    at, mean, deviation = mean_bins(x, y, BAND_BINS if y.size > 4 * BAND_BINS else max(y.size // 4, 1))
    outline = np.concatenate([mean + deviation, (mean - deviation)[::-1]])
    band = {
        "type": "scatter", "x": np.concatenate([at, at[::-1]]), "y": outline, "fill": "toself", "mode": "lines", "name": "± 1 sd",
        "line": {"width": 0, "color": colour}, "opacity": 0.4, "hoverinfo": "skip", "showlegend": showlegend,
    }  # fmt: skip
    return [band, _line(at, mean, "mean", colour, width=2.5, showlegend=showlegend)]


def _line(
    x: Numbers, y: Numbers, name: str, colour: str, *, dash: str = "solid", width: float = 1.8, **extra: Any
) -> dict[str, Any]:
    line = {"color": colour, "dash": dash, "width": width}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "line": line, **extra}


def _dots(x: Numbers, y: Numbers, name: str, colour: str, symbol: str) -> dict[str, Any]:
    marker = {"color": colour, "symbol": symbol, "size": 10}
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "name": name, "marker": marker}
