"""The charts of a run as one page that opens offline: the static twin of the live charts, drawn by the same functions."""

from __future__ import annotations

from pathlib import Path

from dflash.charts.run import CHARTS, describe_progress
from dflash.charts.run_axis import View
from dflash.report.page import Block, Chart, Code, Items, Page, Section, Table, write_page
from dflash.runs.folder import RunFolder
from dflash.telemetry.series import RunSeries

_SECTIONS = {
    "Learning": ("loss", "acceptance", "schedule"),
    "Flow": ("throughput", "queues", "pool_over_time", "pool_now"),
    "Time and machine": ("workers", "workers_now", "devices"),
}


def write_dashboard(runs: list[RunFolder], out: Path, *, view: View | None = None) -> dict[str, int | str]:
    """Write the page; the first run is the one looked at, others are laid over it.

    Returns:
        out, runs, steps (of the first run), bytes.

    Raises:
        RefusedInput: `out` is a folder.
        RunFailed: it can't be written.
    """
    series = [read_series(run) for run in runs]
    write_page(out, dashboard(runs, series, view or View(axis="time")))
    return {"out": str(out), "runs": len(runs), "steps": len(series[0].steps), "bytes": out.stat().st_size}


def read_series(run: RunFolder) -> RunSeries:
    """All of a run's events so far, as columns."""
    series = RunSeries(run.events, run.name)
    while series.update():
        pass
    return series


def dashboard(runs: list[RunFolder], series: list[RunSeries], view: View) -> Page:
    """The page of runs whose events are read."""
    sections = [
        Section(title, [Chart(CHARTS[name](series, view), _caption(name)) for name in names]) for title, names in _SECTIONS.items()
    ]
    return Page(
        title=f"Run {runs[0].name}" + (f" and {len(runs) - 1} more" if len(runs) > 1 else ""),
        kicker="dflash dashboard",
        subtitle=describe_progress(runs[0].state(), series[0], runs[0].reason()),
        lead=[Items([describe_progress(run.state(), each, run.reason()) for run, each in zip(runs[1:], series[1:], strict=True)])]
        if runs[1:]
        else [],
        sections=[*sections, Section("What happened", _happened(runs[0], series[0]))],
        footer="Hover for values, drag to zoom, double-click to undo; click a name in a legend to hide its line.",
    )


def _happened(run: RunFolder, series: RunSeries) -> list[Block]:
    rows = [[round(mark.elapsed_seconds, 1), mark.step, mark.kind, mark.text] for mark in series.marks]
    table = Table(
        ["seconds", "step", "event", "what"], rows[-200:], caption="changes, restarts, checkpoints and warnings, the newest 200"
    )
    return [table, Code((run.path / "config.yaml").read_text(encoding="utf-8"), caption="config.yaml", folded=True)]


def _caption(name: str) -> str:
    return " ".join((CHARTS[name].__doc__ or name).replace("`window_seconds`", "window named in its title").split())
