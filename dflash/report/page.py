"""One HTML file that opens offline: text, tables and any number of interactive charts.

The page carries plotly.js once (the `cartesian` bundle, 1.5 MB: scatter, bar, histogram, heatmap, box, contour; the full one has 4.8 MB and the
`basic` one draws heatmaps and boxes wrong without an error) and each chart as JSON without its template, since both templates are on the
page once and follow the reader's light or dark setting. Printing redraws the charts light and to the width of the paper.

Everything that comes from a run (names, notes, log lines) is escaped; beyond that, the page's content policy runs no script but the two
that are on it, known by their hashes, and loads nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import plotly.graph_objects as go
import plotly.io
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dflash.charts.style import template
from dflash.errors import RefusedInput, RunFailed

_HERE = Path(__file__).parent
_CARTESIAN = frozenset({
    "scatter", "bar", "box", "heatmap", "histogram", "histogram2d", "histogram2dcontour", "contour", "violin", "image",
})  # fmt: skip


@dataclass(frozen=True)
class Text:
    """Plain text; blank lines part paragraphs."""

    text: str

    @property
    def paragraphs(self) -> list[str]:
        """The text by paragraph."""
        return [part.strip() for part in self.text.split("\n\n") if part.strip()]


@dataclass(frozen=True)
class Callout:
    """What a reader must not miss: one sentence, and a few lines under it."""

    lead: str
    lines: Sequence[str] = ()
    tone: Literal["good", "bad", "neutral"] = "neutral"


@dataclass(frozen=True)
class Fact:
    """One figure with its name; `note` says how it was got or how sure it is."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """A few figures side by side."""

    facts: Sequence[Fact]


@dataclass(frozen=True)
class Items:
    """A list of short sentences."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Text as it is, in a fixed font: commands, log lines, diffs. `folded` shows only the caption until it is clicked."""

    text: str
    caption: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under column names. Numbers are aligned and shortened; None shows as a dash."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    folded: bool = False

    @property
    def cells(self) -> list[list[str]]:
        """The rows as they are shown."""
        return [[shown(value) for value in row] for row in self.rows]

    @property
    def numeric(self) -> set[int]:
        """Columns that hold numbers only."""
        columns = ([row[at] for row in self.rows if row[at] is not None] for at in range(len(self.columns)))
        return {at for at, values in enumerate(columns) if values and all(_is_number(value) for value in values)}


@dataclass(frozen=True)
class Chart:
    """A figure with the sentence that says what it shows; the sentence is also its text for screen readers."""

    figure: go.Figure
    caption: str

    @property
    def height(self) -> int:
        """Pixels kept for it before it is drawn."""
        return int(self.figure.layout.height or 320)


Block = Text | Callout | Facts | Items | Code | Table | Chart


@dataclass(frozen=True)
class Section:
    """A heading and what is under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A page: title, what comes before the first heading, sections."""

    title: str
    sections: Sequence[Section] = ()
    lead: Sequence[Block] = ()
    kicker: str = ""
    subtitle: str = ""
    footer: str = ""


@dataclass
class _Charts:
    """Names the page's charts as the template meets them."""

    used: list[Chart] = field(default_factory=list)

    def name(self, chart: Chart) -> str:
        self.used.append(chart)
        return f"chart-{len(self.used)}"

    def json(self, chart: Chart) -> Markup:
        kinds = {trace.type for trace in chart.figure.data} - _CARTESIAN
        if kinds:
            raise ValueError(f"the offline page draws no {', '.join(sorted(kinds))}; it knows {', '.join(sorted(_CARTESIAN))}")
        bare = chart.figure.to_dict()
        bare["layout"].pop("template", None)
        return _script_json(plotly.io.to_json(bare, validate=False))


def render_page(page: Page) -> str:
    """The page as HTML text."""
    script, bundle = _asset("page.js"), _asset("plotly-cartesian.min.js")
    themes = json.dumps({"light": template("light").to_plotly_json(), "dark": template("dark").to_plotly_json()})
    return _environment().get_template("page.html.j2").render(
        page=page,
        charts=_Charts(),
        css=Markup(_asset("page.css")),
        bundle=Markup(bundle),
        script=Markup(script),
        script_hashes=Markup(f"'sha256-{_hash(bundle)}' 'sha256-{_hash(script)}'"),
        themes=_script_json(themes),
    )  # fmt: skip


def write_page(path: Path, page: Page) -> None:
    """Write the page to one HTML file; its folder is made.

    Raises:
        RefusedInput: the path is a folder.
        RunFailed: the file can't be written.
    """
    write_document(path, render_page(page))


def write_document(path: Path, text: str) -> None:
    """Write a text file whole; its folder is made. Errors as of `write_page`."""
    if path.is_dir():
        raise RefusedInput(f"{path} is a folder: give the name of the file to write")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"{path}: can't be written ({error.strerror})") from error


def shown(value: Any) -> str:
    """A value as tables show it: 3 or 4 significant digits, thousands apart, a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value != value or abs(value) == float("inf"):
            return "–"
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return str(value)


def duration(seconds: float) -> str:
    """Time as reports tell it: 0.4 s, 98 s, 12 min, 3.5 h."""
    if seconds < 600:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _script_json(text: str) -> Markup:
    """JSON that can't end the script element it stands in."""
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028"))


@cache
def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")


@cache
def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
