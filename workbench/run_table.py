"""All runs of a folder: state, rate, loss, acceptance, how their configs differ, notes; sort, filter, and pick some to compare."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from dflash.runs.compare import config_differences, read_note, write_note
from dflash.runs.folder import RunFolder, list_runs
from dflash.runs.table import describe_run
from workbench.tables import table_html
from workbench.ticker import Ticker
from workbench.view import View, button, shows_errors

HEADS = {
    "run": "run", "state": "state", "step": "step", "total_steps": "of", "loss": "loss", "acceptance_length": "acceptance length",
    "ktok_s": "Ktok/s", "last_event": "last event",
}  # fmt: skip


class RunTable(View):
    """The runs of a folder.

    Args:
        runs: the folder.
        on_pick: called with the runs that were picked when `compare` is pressed.
        refresh_seconds: between looks at the folder.
    """

    def __init__(
        self, runs: str | Path = "runs", *, on_pick: Callable[[list[RunFolder]], None] | None = None, refresh_seconds: float = 5.0
    ) -> None:
        super().__init__()
        self.runs = Path(runs)
        self.rows: list[dict[str, Any]] = []
        self._folders: dict[str, RunFolder] = {}
        self._on_pick = on_pick
        self._build()
        self._look()
        self._ticker = Ticker(self._tick, refresh_seconds, f"runs in {self.runs}")
        self._ticker.start()

    @property
    def picked(self) -> list[RunFolder]:
        """The runs picked, in the order of the table."""
        return [self._folders[name] for name in self.pick.value]

    def close(self) -> None:
        """End the thread and take the table off the page."""
        self._ticker.close()
        super().close()

    def _build(self) -> None:
        heads = [(head, name) for name, head in HEADS.items()]
        self.sort = widgets.Dropdown(options=heads, value="last_event", description="sort by", layout={"width": "220px"})
        self.down = widgets.ToggleButton(value=True, description="largest first", layout={"width": "110px"})
        self.words = widgets.Text(placeholder="filter: words in name, state or differences", layout={"flex": "1 1 220px"})
        self.table = widgets.HTML()
        self.pick = widgets.SelectMultiple(options=[], description="pick", rows=6, layout={"width": "420px"})
        self.compare = button("compare", self._compare, style="primary")
        self.note = widgets.Text(placeholder="note on the run picked", continuous_update=False, layout={"flex": "1 1 220px"})
        self.keep = button("keep note", self._keep_note)
        for control in (self.sort, self.down, self.words):
            control.observe(lambda _change: self._show(), names="value")
        row = widgets.Layout(flex_flow="row wrap", align_items="center")
        self.compose(
            widgets.HBox([self.sort, self.down, self.words], layout=row),
            self.table,
            widgets.HBox([self.pick, self.compare], layout=row),
            widgets.HBox([self.note, self.keep], layout=row),
        )

    @shows_errors
    def _compare(self) -> None:
        picked = self.picked
        self.tell("" if picked else "pick one run or more first", good=False)
        if picked and self._on_pick is not None:
            self._on_pick(picked)

    @shows_errors
    def _keep_note(self) -> None:
        for run in self.picked:
            write_note(run, self.note.value)
        self._look()

    def _tick(self) -> bool:
        try:
            self._look()
        except Exception as error:
            self.tell_error(error)
        return self.widget.comm is not None

    def _look(self) -> None:
        folders = list_runs(self.runs)
        differences = config_differences(folders)
        rows = [{**describe_run(run), "differs": differences[run.name], "note": read_note(run)} for run in folders]
        if rows != self.rows or not self.table.value:
            self.rows, self._folders = rows, {run.name: run for run in folders}
            self._show()

    def _show(self) -> None:
        wanted = self.words.value.lower().split()
        rows = [row for row in self.rows if all(word in " ".join(map(str, row.values())).lower() for word in wanted)]
        key = self.sort.value
        known = sorted((row for row in rows if row[key] is not None), key=lambda row: row[key], reverse=self.down.value)
        rows = known + [row for row in rows if row[key] is None]
        if not self.rows:
            self.table.value = f'<div class="dflash-note">no runs in {html.escape(str(self.runs))} yet; launch one</div>'
        else:
            details = [" · ".join(filter(None, (row["note"], row["differs"]))) for row in rows]
            self.table.value = table_html(list(HEADS.values()), [[row[name] for name in HEADS] for row in rows], details=details)
        shown, kept = [row["run"] for row in rows], self.pick.value
        self.pick.options = shown
        self.pick.value = [name for name in kept if name in shown]
