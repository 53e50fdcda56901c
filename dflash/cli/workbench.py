"""The command of the workbench's static twin: dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash.cli.output import AsJson, Runs, print_result


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("dashboard")(dashboard_command)


def dashboard_command(
    run: Annotated[list[str], typer.Argument(help="a run's folder, or its name in --runs; several are laid over each other")],
    out: Annotated[Path, typer.Option(help="HTML file to write")],
    axis: Annotated[str, typer.Option(help="time, step, tokens")] = "time",
    window_seconds: Annotated[float, typer.Option(min=1, help="rates are means over so many seconds")] = 60.0,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a run's charts as one page that opens offline."""
    from dflash.charts.run_axis import view_of
    from dflash.report.dashboard import write_dashboard
    from dflash.runs.folder import open_run

    view = view_of(axis, window_seconds)
    print_result(write_dashboard([open_run(each, runs) for each in run], out, view=view), as_json)
