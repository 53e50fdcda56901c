"""The whole workbench as one tabbed view."""

from __future__ import annotations

from pathlib import Path

import ipywidgets as widgets

from dflash.config import RunConfig, load_config
from dflash.runs.folder import RunFolder, list_runs
from workbench.batching_lab import BatchingLab
from workbench.length_explorer import LengthExplorer
from workbench.live_charts import LiveCharts
from workbench.post_mortem import PostMortem
from workbench.run_console import RunConsole
from workbench.run_launcher import RunLauncher
from workbench.run_table import RunTable
from workbench.view import View, shows_errors

TABS = ("lengths", "batching", "launch", "run", "runs", "post-mortem")


class Workbench(View):
    """Explore, batch, launch, steer, compare and explain; see `app`."""

    def __init__(self, *, data: str | Path | None, config: RunConfig | str | Path | None, runs: str | Path) -> None:
        super().__init__()
        self.runs = Path(runs)
        self.config = load_config(config) if isinstance(config, str | Path) else config
        source = data or (self.config.data.path if self.config else None)
        self._source, self._views = source, dict[str, View]()
        self.places = {name: widgets.VBox([]) for name in TABS}
        self.tabs = widgets.Tab(children=list(self.places.values()), titles=TABS)
        self.tabs.observe(lambda _change: self._open(), names="selected_index")
        self.launcher = RunLauncher(config, runs=runs, on_launch=self.attach) if config is not None else None
        self.table = RunTable(runs, on_pick=self.compare)
        self._put("launch", self.launcher, "give app(config=...) a config or its YAML file to launch runs from here")
        self.places["runs"].children = [self.table.widget]
        self.post_mortem = PostMortem(runs=runs)
        self.places["post-mortem"].children = [self.post_mortem.widget]
        known = list_runs(self.runs) if self.runs.is_dir() else []
        if known:
            self.attach(known[-1], show=False)
        else:
            self._put("run", None, f"no run in {self.runs} yet: launch one")
        self.compose(self.tabs)
        self.tabs.selected_index = 0 if source else TABS.index("runs")
        self._open()

    def attach(self, run: RunFolder, *, show: bool = True) -> None:
        """Watch and steer a run."""
        self._watch([run], RunConsole(run), show)

    def compare(self, runs: list[RunFolder]) -> None:
        """Lay several runs over each other; the first is the one steered."""
        self._watch(runs, RunConsole(runs[0]), True)

    def close(self) -> None:
        """End all views; runs go on."""
        for view in (*self._views.values(), self.launcher, self.table, self.post_mortem):
            if view is not None:
                view.close()
        super().close()

    def _watch(self, runs: list[RunFolder], console: RunConsole, show: bool) -> None:
        for name in ("console", "charts"):
            if name in self._views:
                self._views.pop(name).close()
        self._views |= {"console": console, "charts": LiveCharts(runs)}
        self.places["run"].children = [self._views["console"].widget, self._views["charts"].widget]
        if show:
            self.tabs.selected_index = TABS.index("run")

    @shows_errors
    def _open(self) -> None:
        """Make the views of lengths when they are first looked at: a large data set is not read before. Runs may have come since, too."""
        name = TABS[self.tabs.selected_index or 0]
        if name == "post-mortem":
            self.post_mortem.look_again()
        if name not in ("lengths", "batching") or name in self._views:
            return
        if self._source is None:
            self._put(name, None, "give app(data=...) a prepared data set or a file of lengths")
            return
        make = LengthExplorer if name == "lengths" else BatchingLab
        self._views[name] = made = make(self._source, config=self.config)
        self.places[name].children = [made.widget]

    def _put(self, place: str, view: View | None, otherwise: str) -> None:
        self.places[place].children = [view.widget if view else widgets.HTML(f'<div class="dflash-note">{otherwise}</div>')]


def app(
    *, data: str | Path | None = None, config: RunConfig | str | Path | None = None, runs: str | Path = "runs", **unknown: object
) -> Workbench:
    """The workbench in one line: `workbench.app(data="tokens", config="run.yaml")`.

    Args:
        data: a prepared data set or a file of lengths; None: the config's.
        config: what runs are launched from.
        runs: folder of the runs.

    Raises:
        TypeError: another keyword.
    """
    if unknown:
        raise TypeError(
            f"app has no {', '.join(unknown)}; it takes data, config and runs, as in app(data='tokens', config='run.yaml')"
        )
    return Workbench(data=data, config=config, runs=runs)
