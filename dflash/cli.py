"""The `dflash` command: thin. Each subcommand reads its arguments, calls one function, and prints what it returns.

With `--json` the last line on standard output is one JSON object; progress and warnings go to standard error. Exit codes: 0 done, 1 failed,
2 wrong usage or refused input, 130 stopped at once.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.table import Table

from dflash import cli_predict, cli_report, cli_serving, cli_workbench
from dflash.cli_output import AsJson, Runs, Sets, plain, print_result
from dflash.config import BatchingConfig, Order, Strategy, build_config, load_config, parse_override
from dflash.errors import DFlashError, RefusedInput, in_words

app = typer.Typer(
    help="Train DFlash drafters: prepare text, plan batches, train targets -> pool -> drafters, resume.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command("sample-data")
def sample_data(
    out: Annotated[Path, typer.Option(help="file to write: .jsonl, .jsonl.gz or .jsonl.zst")],
    limit: Annotated[int | None, typer.Option(min=1, help="chats, at most")] = None,
    seed: Annotated[int, typer.Option(min=0, help="order of the chats")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a real corpus with no download: documented Python on this machine, as chats."""
    from dflash.data.sample import write_sample_corpus

    print_result(write_sample_corpus(out, limit=limit, seed=seed), as_json)


@app.command()
def prepare(
    inputs: Annotated[list[Path], typer.Argument(help="files or folders of .jsonl[.gz|.zst], .parquet, or save_to_disk folders")],
    tokenizer: Annotated[str, typer.Option(help="folder of a tokenizer, or a shipped target's name")],
    out: Annotated[Path, typer.Option(help="folder to write")],
    loss_on: Annotated[str, typer.Option(help="assistant turns that are supervised: all, last")] = "all",
    max_length: Annotated[int, typer.Option(help="tokens a row, at most")] = 8192,
    over_long: Annotated[str, typer.Option(help="a longer row is: cut, reject")] = "cut",
    chat_template: Annotated[Path | None, typer.Option(help="Jinja file used instead of the tokenizer's template")] = None,
    workers: Annotated[int, typer.Option(help="processes; 0: one a core")] = 0,
    overwrite: Annotated[bool, typer.Option(help="replace a data set made from other inputs or options")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn text into a token data set: chat template, loss mask, Parquet shards. Resumable."""
    from dflash.data.options import PrepareOptions
    from dflash.data.prepare import prepare as prepare_dataset

    template = None if chat_template is None else _read_text(chat_template)
    options = PrepareOptions(
        loss_on=cast(Any, loss_on),
        max_length=max_length,
        over_long=cast(Any, over_long),
        chat_template=template,
        workers=workers,
        overwrite=overwrite,
    )
    print_result(prepare_dataset(inputs, tokenizer, out, options=options, progress=True), as_json)


@app.command()
def plan(
    lengths: Annotated[Path, typer.Argument(help="a file of lengths, or a prepared data set")],
    strategy: Annotated[str, typer.Option(help=", ".join(get_args(Strategy)))] = "jittered",
    order: Annotated[str, typer.Option(help=", ".join(get_args(Order)))] = "stratified",
    boundaries: Annotated[str | None, typer.Option(help="length buckets, as in 0,770,1216,8192")] = None,
    token_budget: Annotated[int, typer.Option(help="tokens a batch, at most")] = 49_152,
    window: Annotated[int, typer.Option(help="batches an optimiser window")] = 32,
    jitter: Annotated[int, typer.Option(help="tokens of jitter (jittered)")] = 32,
    max_rows: Annotated[int | None, typer.Option(help="rows a batch, at most")] = None,
    seed: Annotated[int, typer.Option(help="with the epoch it decides membership and order")] = 0,
    epoch: Annotated[int, typer.Option(min=0, help="from 0")] = 0,
    out: Annotated[Path | None, typer.Option(help="Parquet file for the plan: batch, sample")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan one epoch's batches and measure padding, fill and window mix."""
    from dflash.batching.command import plan_command

    values = {
        "strategy": strategy,
        "order": order,
        "boundaries": _numbers(boundaries),
        "token_budget": token_budget,
        "window": window,
        "jitter": jitter,
        "max_rows": max_rows,
        "seed": seed,
    }
    settings = _batching(values)
    print_result(plan_command(lengths, settings, window=window, epoch=epoch, out=out), as_json)


@app.command()
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


@app.command()
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


@app.command()
def attach(run: Annotated[str, typer.Argument(help="a run's folder, or its name in --runs")], runs: Runs = Path("runs")) -> None:
    """Follow a run's progress lines until it ends; Ctrl-C leaves, and does nothing to the run."""
    from dflash.runs.attach import follow
    from dflash.runs.folder import open_run

    folder = open_run(run, runs)
    state, reason = follow(folder, print), folder.reason()
    print(f"{run} is {state}" + (f": {reason}" if reason else ""))


@app.command()
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


@app.command("runs")
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


for room in (cli_predict, cli_serving, cli_report, cli_workbench):
    room.register(app)


def main() -> None:
    """Run the command line; errors the package raises on purpose are printed without a traceback."""
    # Threads of a parallel section that spin while they wait take the core from those they wait for, as soon as anything else runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except DFlashError as error:
        print(f"dflash: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None:  # no file of the user's: a fault of ours, to be seen whole
            raise
        print(f"dflash: {in_words(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as error:
        print(f"dflash: {error or 'stopped'}", file=sys.stderr)
        sys.exit(130)


def _start(run: Any, background: bool, as_json: bool) -> None:
    from dflash.runs.launch import drive

    if background:
        print_result({"run": str(run.path), "pid": drive(run)}, as_json)
        return
    from dflash.cli_view import run_view
    from dflash.pipeline.train import drive_run
    from dflash.runs.table import total_steps_of

    with run_view(sys.stderr if as_json else sys.stdout, lambda: total_steps_of(run.events)) as show:
        outcome = drive_run(run, show)
    print_result(outcome, as_json)


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.replace("[", "").replace("]", "").split(",")]
    except ValueError as error:
        raise RefusedInput(f"--boundaries {text}: expected whole numbers with commas, as in 0,770,1216,8192") from error


def _batching(values: dict[str, Any]) -> BatchingConfig:
    tree = {"data": {"path": "-"}, "target": {"path": "-"}, "batching": values}
    return build_config(tree, place="dflash plan").batching


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedInput(f"{path}: can't be read: {error}") from error
