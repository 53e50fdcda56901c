"""Subcommands for what comes before and after a run: `doctor`, `cache`, `export`, `eval`, `generate`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from dflash.cli.output import AsJson, Runs, Sets, print_result

if TYPE_CHECKING:
    from dflash.model.target_report import TargetReport
from dflash.errors import RefusedInput

if TYPE_CHECKING:
    from dflash.serving.decoding import DecodingSettings

Checkpoint = Annotated[
    str, typer.Argument(help="an exported folder, a run's checkpoint folder, a run's folder, or its name in --runs")
]
Target = Annotated[str | None, typer.Option(help="folder or shipped name; empty: the one the drafter was trained for")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="tokens of an answer, at most")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0: greedy, and held against plain decoding token for token")]
DraftTokens = Annotated[
    str, typer.Option(help="drafted tokens a round: auto (as many as pay), block (all the drafter's block holds), or a number")
]
Seed = Annotated[int, typer.Option(min=0, help="of the draws (temperature > 0)")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda")]


def register(app: typer.Typer) -> None:
    """Add the subcommands to the `dflash` command."""
    app.command("doctor")(doctor)
    app.command("cache")(cache)
    app.command("export")(export)
    app.command("eval")(evaluate)
    app.command("generate")(generate)


def doctor(
    config: Annotated[Path | None, typer.Argument(help="a run's YAML file; empty: only --target is examined")] = None,
    target: Annotated[str | None, typer.Option(help="a target's folder or shipped name: say what of it works")] = None,
    sets: Sets = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Say what a run needs and what this machine has, or what of a target works, before anything starts; refuse what can't."""
    from dflash.config import load_config
    from dflash.doctor import examine
    from dflash.errors import RefusedInput
    from dflash.machine import find_gpus, package_version, takes_gpu
    from dflash.model.target_report import report_target

    if config is None:
        if target is None:
            raise RefusedInput("doctor: give a run's YAML file, or --target with a target's folder or shipped name")
        if sets:
            raise RefusedInput("doctor: --set changes a run's settings; give the run's YAML file too")
        on_gpu = takes_gpu("auto", find_gpus(), package_version("torch") or "")
        _report_target(report_target(target, on_gpu=on_gpu), as_json)
        return
    changes = [*(sets or []), *([f"target.path={target}"] if target else [])]
    examination = examine(load_config(config, changes), runs=runs)
    if as_json:
        print_result(examination.as_dict(), as_json)
    else:
        table = Table(Column("what", no_wrap=True), "needs", "has", "note", box=None)
        for line in examination.lines():
            table.add_row(*line)
        Console().print(table)
        for note in examination.notes:
            print(f"note: {note}")
        for warning in examination.warnings:
            print(f"warning: {warning}")
    examination.refuse_faults()


def _report_target(report: TargetReport, as_json: bool) -> None:
    if as_json:
        print_result(report.as_dict(), as_json)
    else:
        table = Table(Column("what", no_wrap=True), Column("works", no_wrap=True), "note", box=None)
        for line in report.lines():
            table.add_row(*line)
        Console().print(table)
    report.refuse_faults()


def cache(
    config: Annotated[Path, typer.Argument(help="a run's YAML file")],
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Compute the target's features of a run's data once, for `target.features: cached`. Resumable."""
    from dflash.config import load_config
    from dflash.pipeline.filling import fill_cache

    print_result(fill_cache(load_config(config, sets or []), progress=True, show=_warn), as_json)


def export(
    run: Checkpoint,
    out: Annotated[Path, typer.Option(help="folder to write")],
    overwrite: Annotated[bool, typer.Option(help="replace an earlier export")] = False,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a drafter in the layout serving engines load: config.json and bfloat16 tensors."""
    from dflash.serving.checkpoint import find_drafter
    from dflash.serving.export import export_drafter

    print_result(export_drafter(find_drafter(run, runs, _warn), out, overwrite=overwrite), as_json)


def evaluate(
    checkpoint: Checkpoint,
    target: Target = None,
    data: Annotated[
        str | None, typer.Option(help="prepared data set; empty: the drafter's own, the part held out of training")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="prompts, at most")] = 32,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    draft_tokens: DraftTokens = "auto",
    untrained: Annotated[
        bool, typer.Option("--untrained", help="measure an untrained drafter of the same shape beside it")
    ] = False,
    device: Device = "auto",
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Measure a drafter in real speculative decoding: acceptance length, accuracy by place, target calls saved, speed, losslessness."""
    from dflash.serving.checkpoint import find_drafter
    from dflash.serving.command import evaluate_drafter

    evaluation = evaluate_drafter(
        find_drafter(checkpoint, runs, _warn),
        target=target,
        data=data,
        settings=_settings(max_new_tokens, temperature, seed, draft_tokens),
        limit=limit,
        warn=_warn,
        untrained=untrained,
        device=device,
        progress=True,
    )
    fields = asdict(evaluation)
    if as_json:
        print_result({**fields, **fields.pop("trained")}, as_json)
        return
    print(f"{evaluation.checkpoint} on {evaluation.data}, target {evaluation.target}")
    measured = {"trained": fields["trained"]} | ({"untrained": fields["untrained"]} if evaluation.untrained else {})
    _print_acceptance(measured)


def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Option(help="what the user says; - reads standard input")],
    target: Target = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    draft_tokens: DraftTokens = "auto",
    raw: Annotated[bool, typer.Option("--raw", help="take the prompt as it is, without the chat template")] = False,
    device: Device = "auto",
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Answer a prompt by speculative decoding, and show what the drafter saved."""
    from dflash.serving.checkpoint import find_drafter
    from dflash.serving.command import generate_text

    answer = generate_text(
        find_drafter(checkpoint, runs, _warn),
        sys.stdin.read() if prompt == "-" else prompt,
        target=target,
        settings=_settings(max_new_tokens, temperature, seed, draft_tokens),
        raw=raw,
        device=device,
    )
    if as_json:
        print_result({"text": answer.text, **asdict(answer.acceptance)}, as_json)
        return
    print(answer.text)
    _print_acceptance({"": asdict(answer.acceptance)})


def _settings(max_new_tokens: int, temperature: float, seed: int, draft_tokens: str) -> DecodingSettings:
    from dflash.serving.decoding import DecodingSettings

    if draft_tokens not in ("auto", "block") and not draft_tokens.isdecimal():
        raise RefusedInput(f"--draft-tokens {draft_tokens}: give auto, block, or a number of at least 1")
    if draft_tokens == "auto":
        return DecodingSettings(max_new_tokens, temperature, seed, "auto")
    return DecodingSettings(max_new_tokens, temperature, seed, int(draft_tokens) if draft_tokens.isdecimal() else None)


def _print_acceptance(measured: dict[str, dict[str, Any]]) -> None:
    table = Table("", *measured)
    rows = {
        "prompts": "{prompts}",
        "tokens": "{tokens:,}",
        "acceptance length": "{acceptance_length:.3f}",
        "target calls, plain / with drafter": "{plain_target_calls:,} / {target_calls:,}",
        "target calls saved": "{target_calls_saved:.1%}",
        "tokens/s, plain / with drafter": "{plain_tokens_per_second:.1f} / {tokens_per_second:.1f}",
        "speed-up over plain decoding": "{speedup:.2f}",
        "the same, drafting whole blocks": "{whole_block_speedup:.2f}",
        "drafted tokens a round": "{drafted_a_round:.1f}",
        "answers as in plain decoding": "{same} of {prompts}",
    }
    for name, form in rows.items():
        table.add_row(name, *(form.format(**each, same=_same(each)) for each in measured.values()))
    slots = range(max(len(each["accuracy_by_slot"]) for each in measured.values()))
    for slot in slots:
        cells = (f"{each['accuracy_by_slot'][slot]:.1%} / {each['accepted_to_slot'][slot]:.1%}" for each in measured.values())
        table.add_row(f"slot {slot + 1}: right / accepted up to here", *cells)
    for name, field in (("plain", "plain_seconds_by_part"), ("with drafter", "seconds_by_part")):
        table.add_row(f"time, {name}", *(_shares(each[field]) for each in measured.values()))
    Console().print(table)
    for name, each in measured.items():
        for difference in each["differences"]:
            _warn(
                f"{name or 'this answer'}: sample {difference['sample_id']} differs from token {difference['at']} on; "
                f"the target's two best logits there are {difference['logit_gap']:.2g} apart (next to 0: rounding)"
            )


def _shares(seconds: dict[str, float]) -> str:
    """Where the seconds went, in percent, parts below half a percent left out."""
    total = sum(seconds.values()) or 1.0
    return ", ".join(f"{part} {100 * each / total:.0f}%" for part, each in seconds.items() if each >= total / 200)


def _same(acceptance: dict[str, Any]) -> str:
    return "drawn" if acceptance["lossless"] is None else str(acceptance["prompts"] - len(acceptance["differences"]))


def _warn(line: str) -> None:
    print(f"dflash: {line}", file=sys.stderr, flush=True)
