"""A plotly chart as a widget that can be redrawn twice a second.

plotly's FigureWidget ships its 5 MB program with every instance, keeps a second copy of the figure that a page opened later sees stale, and
answers each update with messages of its own. This one sends the figure as one value, so that any page shows what is current; plotly.js comes
once a page, in its cartesian build; and the theme is followed in the browser, where it is known. Any plotly figure of cartesian traces
(scatter, bar, histogram, heatmap, box) will do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import anywidget
import plotly.graph_objects as go
import traitlets
from ipywidgets import widget_serialization

from dflash.charts.style import template

Relayout = Callable[[dict[str, Any]], None]


class ChartLibrary(anywidget.AnyWidget):  # type: ignore[misc]
    """What all charts of a page share: plotly.js and the two templates. One a kernel; see `library`."""

    _esm = "export default {}"
    code = traitlets.Unicode().tag(sync=True)
    templates = traitlets.Dict().tag(sync=True)


@lru_cache(1)
def library() -> ChartLibrary:
    """The kernel's one `ChartLibrary`."""
    clear = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}  # the page's own background shows through
    templates = {theme: template(theme).update(layout=clear).to_plotly_json() for theme in ("light", "dark")}
    code = files("dflash.report").joinpath("assets", "plotly-cartesian.min.js").read_text(encoding="utf-8")
    return ChartLibrary(code=code, templates=templates)


class Chart(anywidget.AnyWidget):  # type: ignore[misc]
    """One chart. Set `figure` (from any thread) with `show`; `name` finds it on the page.

    `config` is plotly.js's own; {"edits": {"shapePosition": True}} lets lines be dragged.
    """

    _esm = Path(__file__).with_name("chart.js")
    _css = ".dflash-chart { width: 100%; overflow: hidden; } .dflash-chart .js-plotly-plot { width: 100%; }"
    name = traitlets.Unicode().tag(sync=True)
    figure = traitlets.Dict().tag(sync=True)
    config = traitlets.Dict().tag(sync=True)
    library = traitlets.Instance(ChartLibrary).tag(sync=True, **widget_serialization)

    def __init__(self, figure: go.Figure, *, name: str = "", config: dict[str, Any] | None = None) -> None:
        self._listeners: list[Relayout] = []
        super().__init__(figure=as_message(figure), name=name, config=config or {}, library=library())
        self.on_msg(self._hear)

    def show(self, figure: go.Figure) -> None:
        """Draw another figure in place of the one shown; zoom and hidden traces stay unless the figure sets a range."""
        self.figure = as_message(figure)

    def on_relayout(self, listener: Relayout) -> None:
        """Call `listener` with plotly's relayout changes: {"xaxis.range[0]": 1.5, ...}, {"shapes[2].x0": 770.2, ...}."""
        self._listeners.append(listener)

    def _hear(self, _widget: anywidget.AnyWidget, message: dict[str, Any], _buffers: list[bytes]) -> None:
        if message.get("kind") == "relayout":
            for listener in self._listeners:
                listener(message["changes"])


def as_message(figure: go.Figure) -> dict[str, Any]:
    """The figure as JSON values, number columns as base64 of their bytes, without its template."""
    message: dict[str, Any] = figure.to_dict()
    layout = {key: value for key, value in message["layout"].items() if key != "template"}
    return {"data": message["data"], "layout": layout}
