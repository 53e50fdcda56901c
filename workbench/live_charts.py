"""Charts of runs while they go on.

One daemon thread reads what is new in the runs' event files and is the only one that draws. It draws when something came, when the reader
zoomed or chose another axis, and otherwise leaves the page alone: a run that stands still or has ended costs a look at its folder
every few seconds. Nothing blocks a cell. Zooming redraws the range at full detail, on every chart at once.
"""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from dflash.charts.run import CHARTS, describe_progress
from dflash.charts.run_axis import View as RunView
from dflash.charts.run_axis import scale_of, view_of
from dflash.runs.folder import RunFolder, open_run
from dflash.telemetry.series import RunSeries
from workbench.chart import Chart
from workbench.ticker import Ticker
from workbench.view import View, shows_errors

IDLE_SECONDS = 5.0
AlongRun = frozenset(CHARTS) - {"pool_now", "workers_now"}


class LiveCharts(View):
    """Charts of one run, or of several laid over each other (the first is the one whose pool, workers and machine are shown).

    Args:
        runs: a run's folder, name or `RunFolder`, or several.
        charts: names from `dflash.charts.run.CHARTS`, in the order shown; empty: all.
        axis: time, step or tokens.
        window_seconds: rates are means over the last so many seconds.
        refresh_seconds: between looks at the run; 0.5 or more.
    """

    def __init__(
        self,
        runs: RunFolder | str | Path | Sequence[RunFolder | str | Path],
        *,
        charts: Sequence[str] = (),
        axis: str = "step",
        window_seconds: float = 60.0,
        refresh_seconds: float = 1.0,
    ) -> None:
        super().__init__()
        unknown = set(charts) - set(CHARTS)
        if unknown:
            raise TypeError(f"LiveCharts: no chart {', '.join(sorted(unknown))}; there are {', '.join(CHARTS)}")
        several = [runs] if isinstance(runs, RunFolder | str | Path) else list(runs)
        self.runs = [run if isinstance(run, RunFolder) else open_run(run) for run in several]
        self.series = [RunSeries(run.events, run.name) for run in self.runs]
        self.figures: dict[str, go.Figure] = {}
        self.tick_seconds = 0.0
        self._ticks = 0
        self._refresh_seconds = max(refresh_seconds, 0.5)
        self._view = view_of(axis, window_seconds)
        self._drawn_view: RunView | None = None
        self._drawn_at = float("-inf")
        self._state = ""
        self._build(charts or tuple(CHARTS))
        self._tick()
        self._ticker = Ticker(self._tick_safely, self._refresh_seconds, f"live charts of {self.runs[0].name}")
        self._ticker.start()

    @property
    def view(self) -> RunView:
        """What is shown; set it to zoom or change the axis."""
        return self._view

    @view.setter
    def view(self, view: RunView) -> None:
        self._view = view
        self._ticker.wake()

    def catch_up(self, seconds: float = 30.0) -> None:
        """Wait until what the runs have written by now is drawn (or the time is up): for scripts, and for notebooks run top to bottom."""
        ticks, deadline = self._ticks, time.monotonic() + seconds
        while (self._ticks < ticks + 2 or any(series.has_more for series in self.series)) and time.monotonic() < deadline:
            self._ticker.wake()
            time.sleep(0.02)

    def close(self) -> None:
        """End the thread and take the charts off the page."""
        self._ticker.close()
        for chart in self.charts.values():
            chart.close()
        super().close()

    def _build(self, names: Sequence[str]) -> None:
        axis = widgets.ToggleButtons(
            options=["time", "step", "tokens"], value=self._view.axis, tooltips=["", "", "real tokens committed"]
        )
        axis.style.button_width = "64px"
        axis.observe(self._choose_axis, names="value")
        window = widgets.Dropdown(
            options=[("10 s", 10.0), ("1 min", 60.0), ("5 min", 300.0), ("30 min", 1800.0)], description="rates over",
            layout={"width": "180px"},
        )  # fmt: skip
        window.value = self._view.window_seconds if self._view.window_seconds in (10.0, 60.0, 300.0, 1800.0) else 60.0
        window.observe(self._choose_window, names="value")
        whole = widgets.Button(description="whole run", tooltip="undo the zoom", layout={"width": "96px"})
        whole.on_click(self._show_whole)
        self.pause_button = widgets.ToggleButton(
            description="hold", tooltip="stop redrawing; the run goes on", layout={"width": "72px"}
        )
        self.pause_button.observe(lambda change: self._ticker.wake(), names="value")
        self.status = widgets.HTML()
        self.charts = {
            name: Chart(CHARTS[name](self.series, self._view), name=name, config={"doubleClick": "autosize"}) for name in names
        }
        for name in AlongRun.intersection(names):
            self.charts[name].on_relayout(self._zoom)
        grid = widgets.Box(list(self.charts.values()))
        grid.add_class("dflash-grid")
        controls = widgets.HBox([axis, window, whole, self.pause_button], layout={"flex_flow": "row wrap"})
        self.compose(controls, self.status, grid)

    # ---- the reader's choices; on any thread

    def _choose_axis(self, change: dict[str, Any]) -> None:
        self.view = replace(self._view, axis=change["new"], shown=None)

    def _choose_window(self, change: dict[str, Any]) -> None:
        self.view = replace(self._view, window_seconds=change["new"])

    def _show_whole(self, _button: widgets.Button) -> None:
        self.view = replace(self._view, shown=None)

    @shows_errors
    def _zoom(self, changes: dict[str, Any]) -> None:
        if changes.get("xaxis.autorange"):
            self.view = replace(self._view, shown=None)
        edges = changes.get("xaxis.range") or [changes.get("xaxis.range[0]"), changes.get("xaxis.range[1]")]
        if None not in edges:
            size = scale_of(self.series, self._view).size
            self.view = replace(self._view, shown=(float(edges[0]) * size, float(edges[1]) * size))

    # ---- the one thread that reads and draws

    def _tick_safely(self) -> bool:
        try:
            return self._tick()
        except Exception as error:
            self.tell_error(f"the run's events can't be shown: {error}. Trying again.")
            self._ticker.seconds = IDLE_SECONDS
            return self._on_page()

    def _tick(self) -> bool:
        if not self._on_page():
            return False
        started = time.thread_time()
        came = [series.update() for series in self.series]
        if (any(came) and not self.pause_button.value and self._due()) or self._view != self._drawn_view:
            self._draw()
        self._tell_state()
        self.tick_seconds = time.thread_time() - started
        self._ticks += 1
        self._pace(any(came))
        return True

    def _due(self) -> bool:
        """While a long run is being read, at the usual pace; what came last is always drawn."""
        reading = any(series.has_more for series in self.series)
        return not reading or time.monotonic() - self._drawn_at >= self._refresh_seconds

    def _draw(self) -> None:
        view = self._view
        for name, chart in self.charts.items():
            self.figures[name] = CHARTS[name](self.series, view)
            chart.show(self.figures[name])
        self._drawn_view = view
        self._drawn_at = time.monotonic()

    def _pace(self, came: bool) -> None:
        """Look often at a run that goes on, seldom at one that has ended, at once when there is more to read."""
        if not hasattr(self, "_ticker"):
            return
        running = any(run.is_driven() for run in self.runs)
        self._ticker.seconds = self._refresh_seconds if came or running else IDLE_SECONDS
        if any(series.has_more for series in self.series):
            self._ticker.wake()

    def _tell_state(self) -> None:
        lines = [describe_progress(run.state(), series, run.reason()) for run, series in zip(self.runs, self.series, strict=True)]
        state = "<br>".join(html.escape(line) for line in lines)
        if state != self._state:
            self._state = state
            self.status.value = f'<div class="dflash-note">{state}</div>'

    def _on_page(self) -> bool:
        """False once the widget was closed."""
        return self.widget.comm is not None
