"""Charts of plans and of a simulated run: efficiency against mix with the frontier, workers' time, what would lift the rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
import polars as pl

from dflash.charts.labels import label_places
from dflash.charts.style import BLUE, GREEN, GREY, ORANGE, STATE_COLOURS, Axis, bucket_labels, empty_figure, escaped, new_figure

_WIDE, _HIGH = 640, 290
"""Pixels of the drawing inside its axes, about, as the notebook shows it."""
_NO_PLANS = "no plans yet: name some in a plans file"


def speed_against_mix(plans: pl.DataFrame, window: int = 32) -> go.Figure:
    """Ktok/s against the unevenness of a window (vr, 1 = as random); plans on the frontier are joined.

    Args:
        plans: columns plan, ktok_s, vr_<window>, padding_efficiency, frontier, as from `predict.plans.plan_frame`.
        window: batches a window.
    """
    mix = f"vr_{window}"
    if plans.is_empty() or plans[mix].null_count() == plans.height:
        return empty_figure(_NO_PLANS, title="speed against mix")
    shown = plans.filter(pl.col(mix).is_not_null()).sort(mix)
    figure = new_figure(
        Axis(f"unevenness of {window} batches, vr (1 = as random, less is more even)", log=True),
        Axis("predicted throughput", "Ktok/s"),
        title="speed against mix",
        height=420,
    )
    lowest, highest = (math.log10(max(float(shown[mix][at]), 1e-4)) for at in (0, -1))
    left, right, top = lowest - 0.5, highest + 0.5, 1.12 * max(shown["ktok_s"].to_list())  # room for the names
    pixels = [
        (_WIDE * (math.log10(max(vr, 1e-4)) - left) / (right - left), _HIGH * rate / top)
        for vr, rate in shown[[mix, "ktok_s"]].iter_rows()
    ]
    shown = shown.with_columns(place=pl.Series(label_places(pixels, shown["plan"].to_list())))
    best = shown.filter(pl.col("frontier"))
    figure.add_scatter(
        x=best[mix].to_list(), y=best["ktok_s"].to_list(), name="frontier", mode="lines", line={"color": GREEN, "width": 2, "shape": "hv"},
        hoverinfo="skip",
    )  # fmt: skip
    for name, on_frontier, colour, symbol in (
        ("on the frontier", True, GREEN, "diamond"),
        ("beaten by another", False, GREY, "circle"),
    ):
        part = shown.filter(pl.col("frontier") == on_frontier)
        figure.add_scatter(
            x=part[mix].to_list(), y=part["ktok_s"].to_list(), name=name, mode="markers+text",
            text=[escaped(plan) for plan in part["plan"]], textposition=part["place"].to_list(),
            customdata=(part["padding_efficiency"] * 100).to_list(), marker={"color": colour, "symbol": symbol, "size": 10},
            hovertemplate="%{text}: %{y:.1f} Ktok/s, vr %{x:.3g}, padding efficiency %{customdata:.1f}%<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(range=[left, right])
    figure.update_yaxes(range=[0, top])
    return figure


def worker_shares(workers: Mapping[str, Mapping[str, float]]) -> go.Figure:
    """What each worker does with its time: shares of the states, 1 = all of it."""
    if not workers:
        return empty_figure("no run simulated yet", title="workers")
    figure = new_figure(Axis("share of time", "%"), Axis(""), title="what workers do", height=60 + 30 * len(workers) + 80)
    names = list(workers)
    for state, colour in STATE_COLOURS.items():
        shares = [workers[name].get(state, 0.0) * 100 for name in names]
        if any(shares):
            figure.add_bar(
                y=names, x=shares, name=state, orientation="h", marker={"color": colour},
                hovertemplate="%{y}: " + state + " %{x:.1f}%<extra></extra>",
            )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(range=[0, 100])
    return figure


def pool_items(by_bucket: Sequence[float], boundaries: Sequence[int]) -> go.Figure:
    """Mean items of the pool in each length bucket."""
    figure = new_figure(Axis("length bucket", "tokens"), Axis("items, mean"), title="the pool by length bucket")
    figure.add_bar(
        x=bucket_labels(boundaries),
        y=list(by_bucket),
        marker={"color": BLUE},
        hovertemplate="%{x} tokens: %{y:.1f} items<extra></extra>",
    )
    return figure


def lift_bars(meanings: Sequence[str], gains: Sequence[float]) -> go.Figure:
    """What 20% more of each resource brings, in percent of Ktok/s."""
    if not meanings:
        return empty_figure("no resource was tried", title="what would lift it")
    figure = new_figure(Axis("gain", "%"), Axis(""), title="what would lift it", height=100 + 34 * len(meanings))
    figure.add_bar(
        y=[escaped(each) for each in meanings], x=[gain * 100 for gain in gains], orientation="h", marker={"color": ORANGE},
        hovertemplate="%{y}: %{x:+.1f}%<extra></extra>",
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    return figure
