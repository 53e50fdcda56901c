"""How every chart looks: colours that the colour-blind can tell apart, a light and a dark template, axes with units, the empty state.

Hues are Okabe and Ito's eight (Color Universal Design, 2008), each darkened or lightened where needed to stand out from its background with
a contrast of 3:1 (WCAG 1.4.11). Hue is never the only sign: charts add dashes, markers or labels. Buckets and classes, being ordered, take
steps of one ramp (cividis, made for colour-blind readers), not hues.

A figure built here carries the light template; `themed` gives it the other one. Charts don't set colours of text, grid or paper themselves,
so that changing the template is all a page or a widget has to do to change the theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

Theme = Literal["light", "dark"]

BLUE, ORANGE, GREEN, RED, SKY, PINK, OLIVE, GREY = (
    "#0072b2", "#c77700", "#009068", "#d55e00", "#2a91c9", "#c0609a", "#8f8500", "#767676",
)  # fmt: skip
SERIES = (BLUE, RED, GREEN, PINK, ORANGE, SKY, OLIVE, GREY)
"""Colours of unordered series, in the order they are used. Each stands out 3:1 from both backgrounds."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""The second sign of an unordered series, beside its colour."""

STATE_COLOURS = {
    "busy": BLUE,
    "starved": RED,
    "blocked": ORANGE,
    "copy": SKY,
    "evaluation": PINK,
    "checkpoint": OLIVE,
    "compile": GREY,
}
"""One colour a state of a worker, the same on every chart."""

BACKGROUND = {"light": "#ffffff", "dark": "#16181c"}
INK = {"light": "#1d2126", "dark": "#e4e6ea"}
GRID = {"light": "#e3e6ea", "dark": "#343941"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Axis:
    """What an axis shows. `unit` is empty only for counts and names; `log` makes it logarithmic."""

    label: str
    unit: str = ""
    log: bool = False

    @property
    def title(self) -> str:
        """Label and unit as shown: "throughput (Ktok/s)"."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


def new_figure(x: Axis, y: Axis, *, title: str = "", height: int = 320) -> go.Figure:
    """An empty figure with titled axes in the light template. `height` in pixels; the width is what the page gives."""
    figure = go.Figure()
    figure.update_layout(template=template("light"), height=height, title_text=title or None, margin_t=None if title else 36)
    figure.update_xaxes(title_text=x.title, type="log" if x.log else None)
    figure.update_yaxes(title_text=y.title, type="log" if y.log else None)
    return figure


def empty_figure(message: str, *, title: str = "", height: int = 200) -> go.Figure:
    """The figure shown when there is nothing to draw: it says why, and what would fill it."""
    figure = go.Figure()
    figure.update_layout(template=template("light"), height=height, title_text=title or None)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.add_annotation(text=escaped(message), showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper", font_size=14)
    return figure


def themed(figure: go.Figure, theme: Theme) -> go.Figure:
    """The same figure in the other template; changed in place and returned."""
    figure.update_layout(template=template(theme))
    return figure


def ramp(steps: int, theme: Theme = "light") -> list[str]:
    """Colours of so many ordered things (length buckets, classes), from dark to light; ends that vanish in the background are cut off."""
    low, high = (0.0, 0.85) if theme == "light" else (0.2, 1.0)
    if steps == 1:
        return list(sample_colorscale("Cividis", [(low + high) / 2]))
    places = [min(low + (high - low) * step / (steps - 1), 1.0) for step in range(steps)]  # a hair above 1 would be refused
    return list(sample_colorscale("Cividis", places))


def bucket_labels(boundaries: Sequence[int]) -> list[str]:
    """Names of length buckets in tokens: a boundary belongs to the bucket below it. [0, 770, 1216] -> "1-770", "771-1216"."""
    return [f"{left + 1}-{right}" for left, right in pairwise(boundaries)]


def escaped(text: str) -> str:
    """Text for a plotly label, where tags would be read as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def template(theme: Theme) -> go.layout.Template:
    """The plotly template of a theme."""
    ink, paper, grid = INK[theme], BACKGROUND[theme], GRID[theme]
    axis: dict[str, Any] = {
        "gridcolor": grid, "linecolor": grid, "zerolinecolor": grid, "ticks": "outside", "tickcolor": grid,
        "automargin": True, "title": {"standoff": 8},
    }  # fmt: skip
    return go.layout.Template(
        layout={
            "colorway": list(SERIES),
            "font": {"family": FONT, "size": 13, "color": ink},
            "title": {"x": 0, "xref": "paper", "y": 0.98, "yanchor": "top", "font": {"size": 15}},
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "xaxis": axis,
            "yaxis": axis,
            "margin": {"l": 64, "r": 20, "t": 68, "b": 48},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
            "hoverlabel": {"bgcolor": paper, "bordercolor": grid, "font": {"color": ink}, "align": "left"},
            "hovermode": "closest",
            "colorscale": {"sequential": "Cividis"},
            "coloraxis": {"colorbar": {"outlinewidth": 0, "ticks": "outside"}},
            "annotationdefaults": {"font": {"color": ink}, "arrowcolor": ink},
            "shapedefaults": {"line": {"color": ink}},
        },
        data={"heatmap": [{"colorscale": "Cividis"}]},
    )
