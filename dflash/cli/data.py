"""Subcommands from text to a plan: `sample-data`, `prepare`, `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from dflash.cli.output import AsJson, print_result, print_table
from dflash.config import BatchingConfig, Order, Strategy, build_config
from dflash.errors import RefusedInput

_ODD = "join (drop what can't be joined), drop-turn, drop-row"


def register(app: typer.Typer) -> None:
    """Add the subcommands to the `dflash` command."""
    app.command("sample-data")(sample_data)
    app.command("prepare")(prepare)
    app.command("plan")(plan)


def sample_data(
    out: Annotated[Path, typer.Option(help="file to write: .jsonl, .jsonl.gz or .jsonl.zst")],
    limit: Annotated[int | None, typer.Option(min=1, help="chats, at most")] = None,
    seed: Annotated[int, typer.Option(min=0, help="order of the chats")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a real corpus with no download: documented Python on this machine, as chats."""
    from dflash.data.sample import write_sample_corpus

    print_result(write_sample_corpus(out, limit=limit, seed=seed), as_json)


def prepare(
    inputs: Annotated[
        list[Path], typer.Argument(help="files or folders of .jsonl or .json [.gz|.zst], .parquet, or save_to_disk folders")
    ],
    tokenizer: Annotated[str, typer.Option(help="folder of a tokenizer, or a shipped target's name")],
    out: Annotated[Path, typer.Option(help="folder to write")],
    loss_on: Annotated[str, typer.Option(help="assistant turns that are supervised: all, last")] = "all",
    max_length: Annotated[int, typer.Option(help="tokens a row, at most")] = 8192,
    over_long: Annotated[str, typer.Option(help="a longer row is: cut, reject")] = "cut",
    odd_turns: Annotated[
        str, typer.Option(help="two turns of one role in a row, turns before the first question or behind the last answer: " + _ODD)
    ] = "join",
    parts: Annotated[str, typer.Option(help="images and other parts that are not text: drop-row, drop-part")] = "drop-row",
    reasoning: Annotated[str, typer.Option(help="the assistant's thinking is supervised or only read: loss, context")] = "loss",
    chat_template: Annotated[Path | None, typer.Option(help="Jinja file used instead of the tokenizer's template")] = None,
    workers: Annotated[int, typer.Option(help="processes; 0: one a core")] = 0,
    overwrite: Annotated[bool, typer.Option(help="replace a data set made from other inputs or options")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn text into a token data set: chat template, loss mask, Parquet shards. Resumable."""
    from dflash.data import losses
    from dflash.data.options import PrepareOptions
    from dflash.data.prepare import prepare as prepare_dataset

    template = None if chat_template is None else read_text(chat_template)
    options = PrepareOptions(
        loss_on=cast(Any, loss_on),
        max_length=max_length,
        over_long=cast(Any, over_long),
        odd_turns=cast(Any, odd_turns),
        parts=cast(Any, parts),
        reasoning=cast(Any, reasoning),
        chat_template=template,
        workers=workers,
        overwrite=overwrite,
    )
    report = prepare_dataset(inputs, tokenizer, out, options=options, progress=True)
    if as_json:
        print_result(report, as_json)
        return
    print_result({name: value for name, value in report.as_dict().items() if name not in ("reasons", "losses")}, as_json)
    print_table(
        f"Dropped rows, kept rows that were changed, dropped turns and tokens ({out / 'rejected.jsonl'} lists the rows)",
        ("why", "rows", "changed", "turns", "tokens", "to keep them"),
        losses.table(report.losses),
    )


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


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        RefusedInput: it can't be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedInput(f"{path}: can't be read: {error}") from error
