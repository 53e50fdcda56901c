"""What all charts of a run share: the axis they run along, its unit, the rows that are shown, and the marks of what happened.

One `View` holds for a page of charts: the axis (time, step or tokens), the range zoomed to, in seconds, steps or tokens, and how many
points a line may have. Charts take it whole, so that zoom and axis are linked by being the same object.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast, get_args

import numpy as np
import plotly.graph_objects as go

from dflash.charts.downsample import Numbers
from dflash.charts.style import GREY, OLIVE, ORANGE, PINK, RED, Axis, escaped, template
from dflash.errors import RefusedInput
from dflash.telemetry.series import Columns, Mark, RunSeries

AxisName = Literal["time", "step", "tokens"]
AXES: tuple[str, ...] = get_args(AxisName)
MOST_MARKS = 100
_TIME_UNITS = (("d", 86_400.0, 3 * 86_400.0), ("h", 3_600.0, 3 * 3_600.0), ("min", 60.0, 180.0), ("s", 1.0, 0.0))
_TOKEN_UNITS = (("G", 1e9, 1e10), ("M", 1e6, 1e7), ("k", 1e3, 0.0))
_MARK_LOOKS = {
    "change": (ORANGE, "dash", "diamond"),
    "refused": (RED, "dot", "x"),
    "restart": (PINK, "dashdot", "triangle-up"),
    "warning": (OLIVE, "dot", "triangle-down"),
    "end": (GREY, "solid", "square"),
}


@dataclass(frozen=True)
class View:
    """What of a run is shown.

    Attributes:
        axis: what charts run along.
        shown: the range zoomed to, in seconds, steps or tokens; None: all.
        points: points a line, at most about.
        window_seconds: rates are means over the last so many seconds.
    """

    axis: AxisName = "step"
    shown: tuple[float, float] | None = None
    points: int = 1500
    window_seconds: float = 60.0


def view_of(axis: str, window_seconds: float) -> View:
    """A view along an axis given by name.

    Raises:
        RefusedInput: there is no such axis.
    """
    if axis not in AXES:
        raise RefusedInput(f"axis {axis}: there is {', '.join(AXES)}")
    return View(axis=cast(AxisName, axis), window_seconds=window_seconds)


@dataclass(frozen=True)
class Scale:
    """The axis as drawn: what it measures, its unit, and how many seconds, steps or tokens a unit is."""

    axis: Axis
    size: float


def scale_of(runs: Sequence[RunSeries], view: View) -> Scale:
    """The unit that suits the longest of the runs."""
    if view.axis == "step":
        return Scale(Axis("optimiser step"), 1.0)
    longest = max(
        (
            float(x[-1])
            for run in runs
            for x in (positions(run, run.steps, view.axis), positions(run, run.samples, view.axis))
            if x.size
        ),
        default=0.0,
    )
    if view.axis == "time":
        return time_scale(longest)
    unit, size, _ = next(each for each in _TOKEN_UNITS if longest >= each[2])
    return Scale(Axis("real tokens committed", f"{unit} tokens"), size)


def time_scale(longest_seconds: float) -> Scale:
    """Time in the unit that suits so many seconds."""
    unit, size, _ = next(each for each in _TIME_UNITS if longest_seconds >= each[2])
    return Scale(Axis("time since the start", unit), size)


def positions(run: RunSeries, rows: Columns, axis: AxisName) -> Numbers:
    """Where the rows stand on an axis, ascending, in seconds, steps or tokens. System samples carry time only; the rest is interpolated."""
    if axis == "time":
        return rows["elapsed_seconds"]
    name = "step" if axis == "step" else ("tokens" if rows is run.evaluations else "committed_tokens")
    if rows is run.systems:
        known = run.samples["elapsed_seconds"]
        if not known.size:
            return np.zeros(len(rows))
        return np.interp(rows["elapsed_seconds"], known, positions(run, run.samples, axis))
    return np.maximum.accumulate(rows[name]) if len(rows) else rows[name]


def figure(
    traces: list[dict[str, Any]],
    scale: Scale,
    y: Axis,
    runs: Sequence[RunSeries],
    view: View,
    *,
    title: str,
    height: int = 300,
    **layout: Any,
) -> go.Figure:
    """A chart along the run's axis, with the marks of the first run and the zoom of the view."""
    shown = None if view.shown is None else [edge / scale.size for edge in view.shown]
    lines, dots = marks_drawn(runs[0].marks, scale, view) if runs else ([], [])
    x_axis = {"title": {"text": scale.axis.title}, "range": shown, "autorange": shown is None}
    y_axis = {"title": {"text": y.title}, "type": "log" if y.log else "linear", "rangemode": "normal" if y.log else "tozero"}
    return go.Figure(
        data=[*traces, *dots],
        layout={
            "template": _template(),
            "title": {"text": title},
            "height": height,
            "xaxis": x_axis,
            "yaxis": {**y_axis, **layout.pop("yaxis", {})},
            "yaxis9": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
            "shapes": lines,
            "uirevision": "keep",
            **layout,
        },
    )


def marks_drawn(marks: Iterable[Mark], scale: Scale, view: View) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Vertical lines for what happened, and a trace of dots at their feet that says what on hovering. The newest hundred."""
    drawn = [mark for mark in marks if mark.kind in _MARK_LOOKS and _is_shown(mark, view)][-MOST_MARKS:]
    if not drawn:
        return [], []
    at = [_position(mark, view) / scale.size for mark in drawn]
    lines = [
        {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
         "line": {"color": _MARK_LOOKS[mark.kind][0], "dash": _MARK_LOOKS[mark.kind][1], "width": 1}}
        for x, mark in zip(at, drawn, strict=True)
    ]  # fmt: skip
    dots = {
        "type": "scatter", "mode": "markers", "x": at, "y": [0.03] * len(at), "yaxis": "y9", "name": "events",
        "showlegend": False, "hovertext": [escaped(f"{mark.kind}: {mark.text}") for mark in drawn], "hoverinfo": "text",
        "marker": {"size": 9, "color": [_MARK_LOOKS[mark.kind][0] for mark in drawn], "symbol": [_MARK_LOOKS[mark.kind][2] for mark in drawn]},
    }  # fmt: skip
    return lines, [dots]


def waiting(message: str, title: str, height: int = 300) -> go.Figure:
    """The chart before its first point: it says what it waits for."""
    nothing = {"visible": False}
    note = {
        "text": "<br>".join(textwrap.wrap(escaped(message), 42)),
        "showarrow": False,
        "x": 0.5,
        "y": 0.5,
        "xref": "paper",
        "yref": "paper",
    }
    layout = {
        "template": _template(),
        "title": {"text": title},
        "height": height,
        "xaxis": nothing,
        "yaxis": nothing,
        "annotations": [note],
    }
    return go.Figure(layout=layout)


def _position(mark: Mark, view: View) -> float:
    return {"time": mark.elapsed_seconds, "step": float(mark.step), "tokens": mark.tokens}[view.axis]


def _is_shown(mark: Mark, view: View) -> bool:
    return view.shown is None or view.shown[0] <= _position(mark, view) <= view.shown[1]


@lru_cache(1)
def _template() -> go.layout.Template:
    return template("light")
