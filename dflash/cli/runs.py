"""Subcommands of a run's life: `train`, `resume`, `attach`, `control`, `runs`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dflash.cli.output import AsJson, Runs, Sets, plain, print_result
from dflash.config import load_config
from dflash.errors import RefusedInput
from dflash.overrides import parse_override


def register(app: typer.Typer) -> None:
    """Add the subcommands to the `dflash` command."""
    app.command("train")(train)
    app.command("resume")(resume)
    app.command("attach")(attach)
    app.command("control")(control)
    app.command("runs")(runs_command)


def train(
    config: Annotated[Path, typer.Argument(help="the run's YAML file")],
    sets: Sets = None,
    name: Annotated[str | None, typer.Option(help="name of the run; its folder is made in --runs")] = None,
    background: Annotated[bool, typer.Option("--background", help="detach: the run outlives this terminal")] = False,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Train a drafter. Ctrl-C once: checkpoint and stop; twice: stop now."""
    from dflash.runs.folder import create_run

    run = create_run(runs, name, load_config(config, sets or []))
    _start(run, background, as_json)


def resume(
    run: Annotated[str, typer.Argument(help="a run's folder, or its name in --runs")],
    sets: Sets = None,
    background: Annotated[bool, typer.Option("--background", help="detach: the run outlives this terminal")] = False,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Go on with a run from its newest whole checkpoint, inside the epoch."""
    from dflash.runs.folder import change_config, open_run

    folder = open_run(run, runs)
    if sets:
        change_config(folder, sets)
    _start(folder, background, as_json)


def attach(run: Annotated[str, typer.Argument(help="a run's folder, or its name in --runs")], runs: Runs = Path("runs")) -> None:
    """Follow a run's progress lines until it ends; Ctrl-C leaves, and does nothing to the run."""
    from dflash.runs.attach import follow
    from dflash.runs.folder import open_run

    folder = open_run(run, runs)
    state, reason = follow(folder, print), folder.reason()
    print(f"{run} is {state}" + (f": {reason}" if reason else ""))


def control(
    run: Annotated[str, typer.Argument(help="a run's folder, or its name in --runs")],
    action: Annotated[str, typer.Argument(help="set, pause, continue, checkpoint, stop")],
    key: Annotated[str | None, typer.Argument(help="for set: the setting, as in pool.policy")] = None,
    value: Annotated[str | None, typer.Argument(help="for set: its new value (YAML)")] = None,
    wait: Annotated[float, typer.Option(help="seconds to wait for the run's answer; 0: don't")] = 30.0,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Steer a run while it trains; the run answers with what it changed, or why it refused."""
    from dflash.runs.control import await_answer, send_command
    from dflash.runs.folder import open_run

    folder = open_run(run, runs)
    parsed = parse_override(f"{key}={value}")[2] if action == "set" and key and value is not None else None
    sent = send_command(folder, action, key=key, value=parsed)
    if not wait:
        print_result({"id": sent}, as_json)
        return
    answer = await_answer(folder, sent, wait)
    print_result({name: answer.get(name) for name in ("id", "action", "key", "old", "new", "accepted", "reason", "step")}, as_json)
    if not answer["accepted"]:
        raise RefusedInput(f"{folder.name} refused: {answer['reason']}")


def runs_command(runs: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """List runs: running, finished, stopped, failed, crashed."""
    from dflash.runs.table import describe_runs

    rows = describe_runs(runs)
    if as_json:
        print(json.dumps({"runs": plain(rows)}))
        return
    if not rows:
        print(f"no runs in {runs}")
        return
    table = Table("run", "state", "step", "of", "loss", "acceptance", "Ktok/s", "last event")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(table)


def _start(run: Any, background: bool, as_json: bool) -> None:
    from dflash.runs.launch import drive

    if background:
        print_result({"run": str(run.path), "pid": drive(run)}, as_json)
        return
    from dflash.cli.view import run_view
    from dflash.pipeline.train import drive_run
    from dflash.runs.table import total_steps_of
    from dflash.serving.held_out import HeldOutDecoding

    with run_view(sys.stderr if as_json else sys.stdout, lambda: total_steps_of(run.events)) as show:
        outcome = drive_run(run, show, HeldOutDecoding)
    print_result(outcome, as_json)
