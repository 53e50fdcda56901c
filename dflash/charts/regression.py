"""Charts of a change: the rate before and after, where the time went, which factor did what, the pool, the loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import polars as pl

from dflash.analysis.attribution import Cause
from dflash.analysis.eventlog import EventLog
from dflash.analysis.flow import KINDS, STATES, Flow
from dflash.analysis.jumpiness import Spike, rolling_median
from dflash.analysis.noise import Ratio
from dflash.analysis.rates import RateSeries
from dflash.charts.loss_range import fall_words, first_fall, range_past_fall
from dflash.charts.run_axis import Scale, time_scale
from dflash.charts.style import BLUE, GREY, ORANGE, RED, STATE_COLOURS, Axis, bucket_labels, empty_figure, new_figure

_MOST_POINTS = 1_500
_HEAT_COLUMNS = 120


def draw_rate(
    series: RateSeries, *, changes: Sequence[float] = (), ratio: Ratio | None = None, by: str = "time", name: str = "rate"
) -> go.Figure:
    """The rate over time or over work done; rows of other phases as crosses, changes as lines, means before and after as levels.

    Args:
        series: the rate.
        changes: seconds at which it changed.
        ratio: means drawn on both sides of the first change.
        by: "time" or "tokens" (millions committed, or samples and steps as far as the unit goes).
        name: of the line.
    """
    if series.frame.is_empty():
        return empty_figure("the run has no rate yet: it comes with the first optimiser step")
    scale = _scale(by, series)
    frame = series.frame.with_columns(x=_position(series.frame, by) / scale.size)
    kept, other = frame.filter(pl.col("phase") == "train"), frame.filter(pl.col("phase") != "train")
    figure = new_figure(scale.axis, Axis("throughput", series.unit), height=340)
    thin = _thinned(kept)
    figure.add_scatter(x=thin["x"], y=thin["rate"], mode="lines", name=name, line={"color": BLUE, "width": 1.4})
    if len(other):
        thin = _thinned(other)
        figure.add_scatter(x=thin["x"], y=thin["rate"], mode="markers", name="warm-up, evaluation and other pauses (left out)",
                           text=thin["phase"], marker={"symbol": "x-thin-open", "color": GREY, "size": 7})  # fmt: skip
    for at in changes:
        figure.add_vline(x=_moved(frame, at), line={"color": RED, "dash": "dash", "width": 1.5})
    if ratio is not None and changes and len(kept):
        edge = _moved(frame, changes[0])
        for x, level, label in (((kept["x"][0], edge), ratio.before, "before"), ((edge, kept["x"][-1]), ratio.after, "after")):
            figure.add_scatter(x=x, y=[level, level], mode="lines", name=f"{label}: {level:.3g} {series.unit}",
                               line={"color": ORANGE if label == "after" else GREY, "width": 3})  # fmt: skip
    figure.update_yaxes(rangemode="tozero")
    return figure


def draw_two_rates(before: RateSeries, after: RateSeries, *, by: str = "time") -> go.Figure:
    """Two runs over each other, each from its own start."""
    if before.kept.is_empty() or after.kept.is_empty():
        return empty_figure("one of the runs has no rate")
    scale = max(_scale(by, before), _scale(by, after), key=lambda each: each.size)
    figure = new_figure(scale.axis, Axis("throughput", after.unit), height=340)
    for series, name, colour, dash in ((before, "before", GREY, "dot"), (after, "after", RED, "solid")):
        kept = series.kept
        thin = _thinned(kept.with_columns(x=_position(kept, by) / scale.size))
        mode = "lines" if len(thin) > 30 else "lines+markers"
        figure.add_scatter(x=thin["x"], y=thin["rate"], mode=mode, name=name, line={"color": colour, "dash": dash, "width": 1.5})
    figure.update_yaxes(rangemode="tozero")
    return figure


def draw_states(flows: dict[str, Flow]) -> go.Figure:
    """Where each kind of worker's time went, one bar a kind and stretch."""
    if not flows:
        return empty_figure("the log has no accounts of the workers' time")
    figure = new_figure(Axis("workers"), Axis("share of time", "%"), height=340)
    names = [f"{kind}s, {side}" if kind != "prefetch" else f"prefetch, {side}" for kind in KINDS for side in flows]
    for state in STATES:
        shares = [100 * flow.share(kind, state) for kind in KINDS for flow in flows.values()]
        if max(shares) >= 0.5:
            figure.add_bar(x=names, y=shares, name=state, marker_color=STATE_COLOURS[state])
    figure.update_layout(barmode="stack")
    figure.update_yaxes(range=[0, 101])
    return figure


def draw_factors(factors: Sequence[Cause]) -> go.Figure:
    """What each factor did to the rate by itself, the worst on top; factors that did nothing are left out."""
    told = [cause for cause in factors if abs(cause.alone) >= 0.005]
    if not told:
        return empty_figure("no factor changed the rate by 0.5% or more")
    told = sorted(told, key=lambda cause: -cause.alone)
    figure = new_figure(Axis("effect on the rate, by itself", "%"), Axis(""), height=120 + 34 * len(told))
    figure.add_bar(
        x=[100 * cause.alone for cause in told], y=[cause.name for cause in told], orientation="h",
        marker_color=[RED if cause.alone < 0 else BLUE for cause in told], text=[f"{cause.alone:+.0%}" for cause in told], textposition="auto",
    )  # fmt: skip
    figure.update_yaxes(title_text=None)
    low, high = min(0.0, *(100 * cause.alone for cause in told)), max(0.0, *(100 * cause.alone for cause in told))
    room = 0.12 * (high - low)  # for the figures that stand beside short bars
    figure.update_xaxes(range=[low - room, high + room])
    return figure


def draw_pool(log: EventLog, *, changes: Sequence[float] = ()) -> go.Figure:
    """Items in the pool by length bucket over time: means between samples."""
    samples = [(sample["at"], queue["depth_seconds"]) for sample in log.rare["sample"] for queue in sample.get("queues") or []
               if queue.get("queue") == "pool" and queue.get("depth_seconds")]  # fmt: skip
    buckets = max((len(depths) for _, depths in samples), default=0)
    samples = [(at, depths) for at, depths in samples if len(depths) == buckets][:: max(1, len(samples) // _HEAT_COLUMNS)]
    if len(samples) < 3:
        return empty_figure("the log has no gauge of the pool by length bucket")
    at = np.array([at for at, _ in samples])
    depth = np.maximum(np.diff(np.array([depths for _, depths in samples]), axis=0), 0.0) / np.maximum(np.diff(at), 1e-9)[:, None]
    names = (
        bucket_labels(log.boundaries) if len(log.boundaries) == buckets + 1 else [f"bucket {bucket}" for bucket in range(buckets)]
    )
    scale = time_scale(float(at[-1]))
    figure = new_figure(scale.axis, Axis("length bucket", "tokens" if log.boundaries else ""), height=300)
    figure.add_heatmap(x=at[1:] / scale.size, y=names, z=depth.T, colorscale="Cividis", colorbar={"title": {"text": "items"}})
    for change in changes:
        figure.add_vline(x=change / scale.size, line={"color": RED, "dash": "dash", "width": 2})
    return figure


def draw_lengths(before: pl.DataFrame, after: pl.DataFrame) -> go.Figure:
    """Real tokens by the longest row of their batch, before and after."""
    if "longest" not in before.columns or "longest" not in after.columns:
        return empty_figure("the log doesn't say how long the conversations are")
    edges = np.geomspace(16, max(float(before["longest"].max()), float(after["longest"].max()), 32.0) + 1, 25)  # type: ignore[arg-type]
    figure = new_figure(Axis("longest row of the batch", "tokens", log=True), Axis("share of the tokens", "%"), height=300)
    for frame, name, colour, dash in ((before, "before", GREY, "dot"), (after, "after", RED, "solid")):
        counts, _ = np.histogram(frame["longest"].to_numpy(), edges, weights=frame["tokens"].to_numpy().astype(np.float64))
        share = 100 * counts / max(counts.sum(), 1)
        figure.add_scatter(
            x=np.sqrt(edges[:-1] * edges[1:]),
            y=share,
            name=name,
            mode="lines",
            line={"color": colour, "dash": dash, "shape": "hvh"},
        )
    return figure


def draw_loss(rows: pl.DataFrame, spikes: Sequence[Spike], *, changes: Sequence[float] = ()) -> go.Figure:
    """The loss with its trend, spikes marked."""
    if "loss" not in rows.columns or rows.is_empty():
        return empty_figure("the log has no loss")
    scale = time_scale(float(rows["at"].max()))  # type: ignore[arg-type]
    figure = new_figure(scale.axis, Axis("loss", "nats"), height=300)
    losses = rows["loss"].to_numpy().astype(np.float64)
    if fall := first_fall(losses):
        figure.update_layout(title_text=fall_words(float(np.nanmax(losses[:fall]))), margin_t=None)
        figure.update_yaxes(range=range_past_fall([losses[fall:]]))
    trend = rows.select("at", "loss").with_columns(trend=pl.Series(rolling_median(losses)))
    thin = _thinned(trend)
    figure.add_scatter(
        x=thin["at"] / scale.size, y=thin["loss"], mode="lines", name="loss", line={"color": BLUE, "width": 1}, opacity=0.5
    )
    figure.add_scatter(
        x=thin["at"] / scale.size, y=thin["trend"], mode="lines", name="rolling median of 101", line={"color": ORANGE, "width": 2.5}
    )
    if spikes:
        x, y = zip(*((spike.at_seconds / scale.size, spike.loss) for spike in spikes), strict=True)
        figure.add_scatter(x=x, y=y, mode="markers", name="spikes (z > 7)", marker={"color": RED, "symbol": "diamond", "size": 9})
    for change in changes:
        figure.add_vline(x=change / scale.size, line={"color": RED, "dash": "dash", "width": 1.5})
    return figure


def _scale(by: str, series: RateSeries) -> Scale:
    """The axis of `_position`, and what it is divided by."""
    if by == "time":
        return time_scale(float(series.frame["at"].max()))  # type: ignore[arg-type]
    work = {"Ktok/s": Axis("real tokens committed", "millions"), "samples/s": Axis("samples", "thousands")}
    return Scale(work.get(series.unit, Axis("steps", "thousands")), 1_000.0)


def _position(frame: pl.DataFrame, by: str) -> pl.Series:
    """Seconds, or work done: the rate summed over time (thousands of tokens; samples or steps)."""
    if by == "time":
        return frame["at"]
    return (frame["rate"].fill_null(0.0) * frame["seconds"].fill_null(0.0)).cum_sum()


def _moved(frame: pl.DataFrame, at_seconds: float) -> float:
    """A moment on the axis of the frame's `x`."""
    return float(np.interp(at_seconds, frame["at"].to_numpy(), frame["x"].to_numpy()))


def _thinned(frame: pl.DataFrame) -> pl.DataFrame:
    """At most about 1,500 rows, extremes kept: of each group of rows the lowest and the highest."""
    value = "rate" if "rate" in frame.columns else "loss"
    if len(frame) <= _MOST_POINTS:
        return frame
    size = -(-2 * len(frame) // _MOST_POINTS)
    numbered = frame.with_row_index("row").with_columns(group=pl.col("row") // size)
    extremes = {"low": pl.col(value).arg_min(), "high": pl.col(value).arg_max()}
    picked = numbered.group_by("group").agg(**{name: pl.col("row").get(at) for name, at in extremes.items()})
    rows = np.unique(np.concatenate([picked["low"].to_numpy(), picked["high"].to_numpy()]))
    return frame[rows]
