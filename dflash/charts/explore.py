"""The chart that boundaries are dragged on, and the strip that shows what batches and windows hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray

from dflash.batching.analysis import LengthCounts
from dflash.batching.boundaries import bucket_of, length_class_edges
from dflash.batching.plan import EpochPlan
from dflash.charts.style import BLUE, GREEN, GREY, ORANGE, RED, SERIES, Axis, bucket_labels, ramp, template

BINS = 90
STRIP_POINTS = 4_000


def boundary_chart(
    counts: LengthCounts,
    boundaries: Sequence[int],
    padded_tokens: pl.DataFrame | None = None,
    *,
    log: bool = False,
    share: str = "samples",
) -> go.Figure:
    """Histogram (bars) and cumulative share (line) of the lengths, with the inner boundaries as lines that can be dragged.

    Args:
        counts: of the lengths.
        boundaries: K + 1 numbers; shape number i is boundary i + 1.
        padded_tokens: columns up_to and padded_tokens of each bucket, needed for share="padded".
        log: length on a logarithmic axis.
        share: what is counted: samples, tokens, or padded (tokens a bucketed plan computes, padding included).
    """
    longest = int(counts.lengths[-1])
    edges = np.unique(
        np.rint(np.geomspace(max(int(counts.lengths[0]) - 1, 1), longest, BINS + 1) if log else np.linspace(0, longest, BINS + 1))
    )
    weight = _weights(counts, boundaries, padded_tokens, share)
    held = np.bincount(np.clip(np.searchsorted(edges, counts.lengths, side="left") - 1, 0, edges.size - 2), weight, edges.size - 1)
    percent = 100 * held / held.sum()
    at = np.unique(np.linspace(0, counts.lengths.size - 1, 400).astype(int))
    cumulative = 100 * np.cumsum(weight) / weight.sum()
    figure = go.Figure()
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2, y=percent, width=np.diff(edges), name=f"{share} a bin", marker={"color": BLUE, "line": {"width": 0}},
        hovertemplate="around %{x:,.0f} tokens: %{y:.2f}%<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=counts.lengths[at], y=cumulative[at], yaxis="y2", name=f"{share} up to a length", mode="lines", line={"color": ORANGE, "width": 2},
        hovertemplate="%{y:.1f}% up to %{x:,} tokens<extra></extra>",
    )  # fmt: skip
    lines: list[dict[str, Any]] = [
        {
            "type": "line",
            "x0": each,
            "x1": each,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"color": RED, "width": 3, "dash": "dot"},
        }
        for each in boundaries[1:-1]
    ]
    x_range = [math.log10(edges[0]), math.log10(longest)] if log else [0, longest * 1.01]
    figure.update_layout(
        template=template("light"), height=360, shapes=lines, bargap=0, hovermode="closest", uirevision="keep",
        title_text=f"lengths: share of {share}; drag the red lines",
        xaxis={"title": {"text": Axis("length", "tokens").title}, "type": "log" if log else "linear", "range": x_range},
        yaxis={"title": {"text": "share a bin (%)"}, "rangemode": "tozero"},
        yaxis2={"title": {"text": "cumulative (%)"}, "overlaying": "y", "side": "right", "range": [0, 101],
                "showgrid": False, "tickvals": [0, 25, 50, 75, 100]},
        margin={"r": 64},
    )  # fmt: skip
    return figure


def batch_strip(plan: EpochPlan, lengths: NDArray[np.integer], window: int, *, batches: int = 64, title: str = "") -> go.Figure:
    """Lengths inside the plan's first batches: a dot a row, the token-weighted mean of each batch and of each window."""
    batches = min(batches, len(plan))
    ends = plan.offsets[: batches + 1]
    rows = np.asarray(lengths)[plan.samples[: ends[-1]]].astype(np.int64)
    batch = np.repeat(np.arange(batches), np.diff(ends))
    every = max(rows.size // STRIP_POINTS, 1)
    tokens = np.add.reduceat(rows, ends[:-1])
    squares = np.add.reduceat(rows * rows, ends[:-1])
    starts = np.arange(0, batches, window)
    window_mean = np.add.reduceat(squares, starts) / np.add.reduceat(tokens, starts)
    figure = go.Figure()
    figure.add_scatter(
        x=batch[::every], y=rows[::every], mode="markers", name="rows", marker={"color": SERIES[5], "size": 3, "opacity": 0.5}, hoverinfo="skip"
    )  # fmt: skip
    figure.add_scatter(
        x=np.arange(batches), y=squares / tokens, mode="markers", name="mean of a batch", marker={"color": RED, "size": 5, "symbol": "diamond"},
        hovertemplate="batch %{x}: %{y:,.0f} tokens<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=np.repeat([(each, min(each + window, batches)) for each in starts], 1, axis=0).ravel() - 0.5, y=np.repeat(window_mean, 2),
        mode="lines", name=f"mean of a window of {window}", line={"color": GREEN, "width": 3}, hoverinfo="skip",
    )  # fmt: skip
    lines = [
        {
            "type": "line",
            "x0": each - 0.5,
            "x1": each - 0.5,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"color": GREY, "width": 1, "dash": "dot"},
        }
        for each in starts[1:].tolist()
    ]
    figure.update_layout(
        template=template("light"), height=260, shapes=lines, title_text=title or "lengths inside consecutive batches",
        xaxis={"title": {"text": "batch, in the order they run"}},
        yaxis={"title": {"text": "row length (tokens)"}, "type": "log"},
    )  # fmt: skip
    return figure


def pool_by_policy(pools: Mapping[str, Sequence[float]], boundaries: Sequence[int]) -> go.Figure:
    """Mean items of the simulated pool in each length bucket, a group of bars a pull policy."""
    figure = go.Figure()
    colours, dark = ramp(len(boundaries) - 1), ramp(len(boundaries) - 1, "dark")
    for bucket, label in enumerate(bucket_labels(boundaries)):
        figure.add_bar(
            y=list(pools), x=[items[bucket] for items in pools.values()], name=label, orientation="h",
            marker={"color": colours[bucket]}, meta={"dark": {"marker": {"color": dark[bucket]}}},
            hovertemplate="%{y}, " + label + " tokens: %{x:.1f} items<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        template=template("light"), height=150 + 30 * len(pools), barmode="stack",
        title_text="simulated pool: mean items by length bucket (tokens)", legend={"traceorder": "normal"},
        xaxis={"title": {"text": "items in the pool, mean"}}, yaxis={"autorange": "reversed", "type": "category"},
    )  # fmt: skip
    return figure


def class_mix(plan: EpochPlan, lengths: NDArray[np.integer], window: int, *, windows: int = 24) -> go.Figure:
    """Share of tokens of 16 equal-token length classes in each of the plan's first windows: even columns are what is wanted."""
    whole = np.asarray(lengths)
    edges = length_class_edges(whole)
    windows = max(min(windows, len(plan) // window), 1)
    ends = plan.offsets[np.minimum(np.arange(windows + 1) * window, len(plan))]
    rows = whole[plan.samples[: ends[-1]]].astype(np.int64)
    of_window = np.repeat(np.arange(windows), np.diff(ends))
    classes = edges.size - 1
    held = np.bincount(of_window * classes + bucket_of(rows, edges), rows, windows * classes).reshape(windows, classes)
    share = 100 * held / np.maximum(held.sum(axis=1, keepdims=True), 1)
    figure = go.Figure()
    figure.add_heatmap(
        x=np.arange(windows), y=bucket_labels(edges.tolist()), z=np.round(share.T, 2), zmin=0,
        colorbar={"title": {"text": "%"}, "thickness": 12},
        hovertemplate="window %{x}, %{y} tokens: %{z:.1f}%<extra></extra>",
    )  # fmt: skip
    figure.update_layout(
        template=template("light"), height=300, title_text=f"tokens by length class in consecutive windows of {window}",
        xaxis={"title": {"text": "window"}}, yaxis={"title": {"text": "row length (tokens)"}, "type": "category"},
    )  # fmt: skip
    return figure


def _weights(
    counts: LengthCounts, boundaries: Sequence[int], padded_tokens: pl.DataFrame | None, share: str
) -> NDArray[np.float64]:
    """What each distinct length counts for."""
    if share == "samples" or (share == "padded" and padded_tokens is None):
        return counts.samples.astype(np.float64)
    tokens = (counts.lengths * counts.samples).astype(np.float64)
    if share == "tokens" or padded_tokens is None:
        return tokens
    bucket = bucket_of(counts.lengths, boundaries)
    a_sample = np.zeros(len(boundaries) - 1)
    a_sample[padded_tokens["bucket"].to_numpy()] = (padded_tokens["padded_tokens"] / padded_tokens["samples"]).to_numpy()
    return counts.samples * a_sample[bucket]
