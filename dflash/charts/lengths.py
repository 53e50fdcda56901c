"""Charts of lengths: histogram of samples and of tokens, cumulative shares, boundaries on them, efficiency against the number of buckets.

Pure functions of the frames that `dflash.batching.analysis` and `boundary_curves` make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
import polars as pl

from dflash.batching.analysis import LengthCounts
from dflash.charts.style import BLUE, DASHES, ORANGE, RED, SERIES, Axis, bucket_labels, empty_figure, escaped, new_figure

_NO_LENGTHS = "no lengths yet: give a prepared data set or a file of lengths"
_CURVE_POINTS = 400


def length_histogram(bins: pl.DataFrame, boundaries: Sequence[int] = ()) -> go.Figure:
    """Share of samples and of tokens by length; `bins` as from `analysis.histogram`. Boundaries are drawn as lines."""
    if bins.is_empty():
        return empty_figure(_NO_LENGTHS, title="lengths")
    figure = new_figure(Axis("length", "tokens"), Axis("share", "%"), title="lengths: share of samples and of tokens", height=360)
    middle = ((bins["above"] + bins["up_to"]) / 2).to_numpy()
    for name, column, colour, dash in (("samples", "samples", BLUE, "solid"), ("tokens", "tokens", ORANGE, "dash")):
        share = (bins[column] / max(int(bins[column].sum()), 1) * 100).to_numpy()
        figure.add_scatter(
            x=middle, y=share, name=name, mode="lines", line={"color": colour, "dash": dash, "shape": "hvh"},
            hovertemplate="around %{x:,.0f} tokens: %{y:.2f}% of " + name + "<extra></extra>",
        )  # fmt: skip
    for boundary in boundaries[1:-1]:
        figure.add_vline(x=boundary, line={"color": RED, "dash": "dot", "width": 1.5})
    figure.update_yaxes(rangemode="tozero")
    return figure


def length_shares(counts: Mapping[str, LengthCounts]) -> go.Figure:
    """Cumulative share of samples up to each length, one line a group or data set."""
    if not counts:
        return empty_figure(_NO_LENGTHS, title="cumulative shares")
    title = "samples up to a length"
    figure = new_figure(Axis("length", "tokens", log=True), Axis("samples up to it", "%"), title=title, height=360)
    for number, (name, each) in enumerate(counts.items()):
        share = np.cumsum(each.samples) / each.total_samples * 100
        at = np.unique(np.linspace(0, share.size - 1, min(share.size, _CURVE_POINTS)).astype(int))
        figure.add_scatter(
            x=each.lengths[at], y=share[at], name=escaped(name), mode="lines",
            line={"color": SERIES[number % len(SERIES)], "dash": DASHES[number // len(SERIES) % len(DASHES)], "shape": "hv"},
            hovertemplate="%{y:.1f}% have up to %{x:,} tokens<extra>" + escaped(name) + "</extra>",
        )  # fmt: skip
    figure.update_yaxes(range=[0, 101])
    return figure


def class_shares(classes: pl.DataFrame) -> go.Figure:
    """Share of samples beside share of tokens in each class; `classes` as from `analysis.shares_by_class`."""
    if classes.is_empty():
        return empty_figure(_NO_LENGTHS, title="classes")
    figure = new_figure(Axis("length class", "tokens"), Axis("share", "%"), title="shares by length class")
    names = bucket_labels([*classes["above"].to_list(), int(classes["up_to"][-1])])
    for name, column, colour, pattern in (("samples", "sample_share", BLUE, ""), ("tokens", "token_share", ORANGE, "/")):
        figure.add_bar(
            x=names, y=(classes[column] * 100).to_list(), name=name, marker={"color": colour, "pattern": {"shape": pattern}},
            hovertemplate="%{x} tokens: %{y:.1f}% of " + name + "<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="group")
    return figure


def efficiency_by_buckets(curve: pl.DataFrame) -> go.Figure:
    """Padding efficiency against the number of buckets, a line a rule.

    Args:
        curve: columns rule, buckets, padding_efficiency; the rule `by_hand` is a single point.
    """
    if curve.is_empty():
        return empty_figure(_NO_LENGTHS, title="efficiency against buckets")
    figure = new_figure(Axis("buckets"), Axis("padding efficiency", "%"), title="what another bucket brings", height=360)
    for number, (key, part) in enumerate(curve.group_by("rule", maintain_order=True)):
        rule = str(key[0]).replace("_", " ")
        by_hand = rule == "by hand"
        figure.add_scatter(
            x=part["buckets"].to_list(), y=(part["padding_efficiency"] * 100).to_list(), name=rule,
            mode="markers" if by_hand else "lines+markers", line={"color": SERIES[number], "dash": DASHES[number]},
            marker={"symbol": "x", "size": 11, "color": SERIES[number]} if by_hand else {"size": 6},
            hovertemplate="%{x} buckets: %{y:.1f}%<extra>" + rule + "</extra>",
        )  # fmt: skip
    return figure
