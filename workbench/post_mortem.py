"""From a run that got slower to its cause: choose the run and what it is held against, read the findings, add notes, write the report.

The findings are those of `dflash report`; the command line that writes the same is shown. Notes are kept in the run's folder
(`postmortem.md`), stand in every report of it, and may also be edited there.
"""

from __future__ import annotations

import html
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from dflash.errors import RefusedInput
from dflash.report.page import Page
from dflash.report.postmortem import PostMortem as Findings
from dflash.report.postmortem import investigate, read_notes, write_notes
from dflash.report.sections import check_report_name, postmortem_page, write_report
from dflash.runs.control import settings_changed
from dflash.runs.folder import RunFolder, list_runs, open_run
from dflash.telemetry.reader import read_events
from workbench.page_blocks import page_widgets
from workbench.view import View, button, shows_errors
from workbench.worker import Worker

LARGEST_DROP = "the largest drop found in it"
Against = RunFolder | int | None
"""What a run is held against: None for the largest drop in it, a step of it, or another run (`RunFolder`)."""


class PostMortem(View):
    """Investigate one run of a folder.

    Args:
        run: the run first looked at, as folder, name or `RunFolder`; None: the newest of `runs`, and nothing is looked at unasked.
        runs: folder of the runs to choose from.
        baseline: a run that was not slow.
        at_step: the step from which on the run was slow; not together with `baseline`.

    Raises:
        RefusedInput: no such run, or both a baseline and a step.
    """

    def __init__(
        self,
        run: RunFolder | str | Path | None = None,
        *,
        runs: str | Path = "runs",
        baseline: RunFolder | str | Path | None = None,
        at_step: int | None = None,
    ) -> None:
        super().__init__()
        if baseline is not None and at_step is not None:
            raise RefusedInput("give baseline or at_step, not both: a change is between two runs, or inside one")
        self.folder = Path(runs)
        self.page: Page | None = None
        given = [self._opened(each) for each in (run, baseline) if each is not None]
        self._known = {each.name: each for each in given}
        self.worker = Worker("post-mortem", self._fail)
        self._build()
        self.look_again()
        if run is not None:
            self._list(given[0].name)
            self._choose(given[1] if baseline is not None else at_step)
            self._ask()

    @property
    def chosen(self) -> RunFolder:
        """The run looked at.

        Raises:
            RefusedInput: there is no run.
        """
        if self.pick.value is None:
            raise RefusedInput(self._nothing)
        return self._known[self.pick.value]

    @property
    def _nothing(self) -> str:
        return f"no runs in {self.folder} yet: launch one, or bring one with `dflash import LOG --out {self.folder}/NAME`"

    def command_line(self, out: str | Path) -> str:
        """The command that writes the same report."""
        parts = ["dflash", "report", str(self.chosen.path)]
        against = self.against.value
        if isinstance(against, RunFolder):
            parts += ["--baseline", str(against.path)]
        elif against is not None:
            parts += ["--at", str(against)]
        return shlex.join([*parts, "--out", str(out)])

    def look_again(self) -> None:
        """Read the list of runs again, as when one was launched since."""
        self._known |= {run.name: run for run in (list_runs(self.folder) if self.folder.is_dir() else [])}
        newest = next(reversed(self._known), None)
        if self.pick.value is None:
            self._list(newest)
            self._choose()
        else:
            self._list(self.pick.value)
            self._choose(self.against.value)

    def _list(self, chosen: str | None) -> None:
        """Show the runs known, with one chosen, without acting on it."""
        self.pick.unobserve(self._picked, names="value")
        self.pick.options = list(self._known)
        self.pick.value = chosen
        self.pick.observe(self._picked, names="value")

    def close(self) -> None:
        """End the thread and take the view off the page."""
        self.worker.close()
        for widget in self.findings.children:
            widget.close()
        super().close()

    def _build(self) -> None:
        self.pick = widgets.Dropdown(options=[], description="run", layout={"width": "320px"})
        self.against = widgets.Dropdown(
            options=[(LARGEST_DROP, None)],
            description="held against",
            style={"description_width": "90px"},
            layout={"width": "440px"},
        )
        self.go = button("investigate", self._ask, style="primary")
        self.refresh = button("look for runs", self.look_again)
        self.findings = widgets.VBox([])
        self.notes = widgets.Textarea(
            placeholder="notes: what was seen, tried, decided. Kept with the run as you leave the field; every report of it has them.",
            continuous_update=False, layout={"width": "100%", "height": "110px"},
        )  # fmt: skip
        self.out = widgets.Text(placeholder="report.html or report.md", layout={"flex": "1 1 240px"})
        self.write = button("write report", self._write, style="primary")
        self.pick.observe(self._picked, names="value")
        self.notes.observe(lambda _change: self._keep_notes(), names="value")
        row = widgets.Layout(flex_flow="row wrap", align_items="center")
        self.compose(
            widgets.HBox([self.pick, self.against, self.go, self.refresh], layout=row),
            self.findings,
            self.notes,
            widgets.HBox([self.out, self.write], layout=row),
        )

    # ---- what the user does

    def _picked(self, _change: dict[str, Any]) -> None:
        self._show([])
        self._choose()

    @shows_errors
    def _choose(self, kept: Against = None) -> None:
        """Fill in the run's notes, and the changes and other runs that it can be held against; `kept` of them is chosen."""
        if self.pick.value is None:
            self._say(self._nothing)
            return
        run = self.chosen
        self.notes.value = read_notes(run).rstrip("\n")
        self.out.value = str(run.path / "report.html")
        self._offer(run, [], kept)
        self.worker.submit("changes", partial(self._find_changes, run))

    def _offer(self, run: RunFolder, changes: list[tuple[str, Against]], kept: Against) -> None:
        if isinstance(kept, int) and kept not in [step for _, step in changes]:
            changes = [(f"step {kept}", kept), *changes]
        others: list[tuple[str, Against]] = [(f"run {name}", each) for name, each in self._known.items() if each.path != run.path]
        choices = [(LARGEST_DROP, None), *changes, *others]
        if choices != list(self.against.options):
            self.against.options = choices
        self.against.value = kept if kept in [value for _, value in choices] else None

    @shows_errors
    def _ask(self) -> None:
        run, against = self.chosen, self.against.value
        self.tell("")
        self._say(f"reading the events of {run.name} and looking for causes …")
        self.go.disabled = True
        self.worker.submit("investigate", partial(self._investigate, run, against))

    @shows_errors
    def _keep_notes(self) -> None:
        run = self.chosen
        if self.notes.value.strip() != read_notes(run).strip():
            write_notes(run, self.notes.value)
            self.tell(f"notes kept in {run.path}")

    @shows_errors
    def _write(self) -> None:
        run, out = self.chosen, Path(self.out.value.strip() or self.chosen.path / "report.html")
        check_report_name(out)
        self.tell(f"writing {out} …", good=False)
        self.worker.submit("write", partial(self._write_report, run, self.against.value, out, self.command_line(out)))

    # ---- on the thread

    def _find_changes(self, run: RunFolder) -> None:
        changes = _live_changes(run)
        if changes and run.name == self.pick.value:
            self._offer(run, changes, self.against.value)

    def _investigate(self, run: RunFolder, against: Against) -> None:
        self.page = postmortem_page(_found(run, against))
        self._show(page_widgets(self.page))
        self.go.disabled = False

    def _write_report(self, run: RunFolder, against: Against, out: Path, command: str) -> None:
        write_report(out, _found(run, against))
        self.tell(f"{out} written; the same by: {command}")

    def _fail(self, error: Exception) -> None:
        self._show([])
        self.go.disabled = False
        self.tell_error(error)

    def _say(self, text: str) -> None:
        self._show([widgets.HTML(f'<div class="dflash-note">{html.escape(text)}</div>')])

    def _show(self, made: list[widgets.Widget]) -> None:
        before, self.findings.children = self.findings.children, made
        for widget in before:
            widget.close()

    @staticmethod
    def _opened(run: RunFolder | str | Path) -> RunFolder:
        return run if isinstance(run, RunFolder) else open_run(run)


def _found(run: RunFolder, against: Against) -> Findings:
    if isinstance(against, RunFolder):
        return investigate(run, baseline=against)
    return investigate(run, at_step=against)


def _live_changes(run: RunFolder) -> list[tuple[str, Against]]:
    """The settings changed while the run went on, each as the step from which on it counted."""
    return [
        (f"step {each['step']}: {each['key']} {each.get('old')} → {each.get('new')}"[:90], each["step"])
        for each in settings_changed(read_events(run.events, "change"))
        if isinstance(each.get("step"), int) and each["step"] > 0
    ]
