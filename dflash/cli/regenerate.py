"""Subcommands that make better training text: `regenerate`, `split`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash.cli.output import AsJson, print_result


def register(app: typer.Typer) -> None:
    """Add the subcommands to the `dflash` command."""
    app.command("regenerate")(regenerate)
    app.command("split")(split)


def regenerate(
    inputs: Annotated[list[Path], typer.Argument(help="what `dflash prepare` reads: chats, or questions alone")],
    out: Annotated[Path, typer.Option(help="JSONL file to write")],
    target: Annotated[str | None, typer.Option(help="folder of a causal language model, or a shipped target's name")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="tokens of an answer, at most")] = 512,
    temperature: Annotated[float, typer.Option(help="0: greedy; else logits are divided by it and tokens drawn")] = 0.0,
    top_p: Annotated[float, typer.Option(help="draw from the likeliest tokens that have this probability together")] = 1.0,
    seed: Annotated[int, typer.Option(help="of the draws")] = 0,
    limit: Annotated[int | None, typer.Option(help="chats, at most")] = None,
    leave_out: Annotated[str, typer.Option(help="chats to leave out: some of cut,looping,refused,not_round_trip")] = "",
    token_budget: Annotated[int, typer.Option(help="tokens of cache: rows x longest row")] = 65_536,
    chat_template: Annotated[Path | None, typer.Option(help="Jinja file used instead of the tokenizer's template")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16")] = "auto",
    overwrite: Annotated[bool, typer.Option(help="replace answers made from other inputs or with other options")] = False,
    as_json: AsJson = False,
) -> None:
    """Replace each assistant turn by the target's own answer. Resumable; a drafter learns far better from such chats."""
    from dflash.cli.data import read_text
    from dflash.errors import RefusedInput
    from dflash.regenerate.command import regenerate_by_target
    from dflash.regenerate.options import RegenerateOptions

    options = RegenerateOptions(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        token_budget=token_budget,
        limit=limit,
        leave_out=tuple(part.strip() for part in leave_out.split(",") if part.strip()),
        overwrite=overwrite,
    )
    template = None if chat_template is None else read_text(chat_template)
    if target is None:
        raise RefusedInput("who is to answer? give --target, the folder of a model or a shipped target's name")
    figures = regenerate_by_target(
        inputs, out, target, options=options, chat_template=template, device=device, dtype=dtype, progress=True
    )
    print_result(figures, as_json)


def split(
    inputs: Annotated[list[Path], typer.Argument(help="what `dflash prepare` reads")],
    out: Annotated[Path | None, typer.Option(help="folder for train.jsonl and holdout.jsonl")] = None,
    train: Annotated[Path | None, typer.Option(help="file for the training rows, instead of --out")] = None,
    holdout: Annotated[Path | None, typer.Option(help="file for the rows held out, instead of --out")] = None,
    share: Annotated[float, typer.Option(help="part of the rows to hold out")] = 0.05,
    rows: Annotated[int | None, typer.Option(min=1, help="rows to hold out, instead of a share")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the choice")] = 0,
    overwrite: Annotated[bool, typer.Option(help="replace files that are there")] = False,
    as_json: AsJson = False,
) -> None:
    """Split rows into a training and a hold-out file that share no question, nearly identical ones included."""
    from dflash.errors import RefusedInput
    from dflash.regenerate.split import split_rows

    if out is not None:
        train, holdout = train or out / "train.jsonl", holdout or out / "holdout.jsonl"
    if train is None or holdout is None:
        raise RefusedInput("where to? give --out DIR, or --train FILE and --holdout FILE")
    print_result(split_rows(inputs, train, holdout, share=share, rows=rows, seed=seed, overwrite=overwrite), as_json)
