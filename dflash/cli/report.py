"""Subcommands that read logs and explain them: import, export-events, changes, explain, jumpiness, diff, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dflash.cli.output import AsJson, Runs, plain, print_result
from dflash.errors import RefusedInput

Run = Annotated[str, typer.Argument(help="a run's folder, or its name in --runs")]
At = Annotated[int | None, typer.Option(min=0, help="optimiser step from which on the run was slow")]
Baseline = Annotated[str | None, typer.Option(help="a run that was not slow")]


def register(app: typer.Typer) -> None:
    """Add the subcommands of this room."""
    app.command("import")(import_command)
    app.command("export-events")(export_command)
    app.command("changes")(changes_command)
    app.command("explain")(explain_command)
    app.command("jumpiness")(jumpiness_command)
    app.command("diff")(diff_command)
    app.command("report")(report_command)


def import_command(
    files: Annotated[list[Path], typer.Argument(help="a log (rotated files oldest first), or a folder of TensorBoard files")],
    out: Annotated[Path, typer.Option(help="the run's folder to make; OUT-1, OUT-2, ... if the log holds several runs")],
    mapping: Annotated[
        list[str] | None, typer.Option("--map", metavar="NAME=COLUMN[:UNIT]", help="as in rate=tokens_per_s:tok/s")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="the config the run had, kept with it for comparisons")] = None,
    as_json: AsJson = False,
) -> None:
    """Turn a log into a run: this trainer's console, Megatron, MLPerf, step:N/M, TensorBoard, CSV, JSON lines."""
    from dflash.importing.command import import_logs

    result = import_logs(files, out, mapping=mapping or (), config=config)
    if as_json:
        print_result(result, True)
        return
    console = Console()
    counts = f"{result.lines_read:,} lines read, {result.lines_understood:,} understood, {result.lines_blank:,} blank"
    console.print(f"{result.format}: {counts}, {result.lines_not_understood:,} not understood")
    for name, column in result.mapping.items():
        console.print(f"  {name} = {column}", markup=False)
    for run in result.runs:
        console.print(f"{run['run']}: steps {run['first_step']} to {run['last_step']}, {run['restarts']} restarts", markup=False)
    for entry in result.not_understood[:5]:
        console.print(f"  line {entry['line']}: {entry['text'][:100]}", markup=False)
    for note in result.notes:
        console.print(f"  {note}", markup=False)


def export_command(
    run: Run,
    out: Annotated[Path, typer.Option(help="folder to write")],
    to: Annotated[str, typer.Option(help="tensorboard, parquet or csv")] = "parquet",
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a run's events for other tools."""
    from dflash.runs.export import export_events
    from dflash.runs.folder import open_run

    print_result(export_events(open_run(run, runs), out, to), as_json)


def changes_command(run: Run, runs: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """Find when and by how much the throughput changed, and what stalled."""
    from dflash.analysis.changes import find_changes
    from dflash.analysis.eventlog import load_events
    from dflash.runs.folder import open_run

    found = find_changes(load_events(open_run(run, runs)))
    if as_json:
        print(json.dumps(plain(found.as_dict())))
        return
    print(found.sentence)
    if found.stalls:
        print(f"{len(found.stalls)} stalls, {found.stalled_seconds:,.0f} s lost")


def explain_command(run: Run, baseline: Baseline = None, at: At = None, runs: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """Say what a slow-down comes from, with evidence, and what it does not come from."""
    from dflash.report.counterfactual import simulate_without
    from dflash.report.headline import headline

    post = _investigate(run, baseline, at, runs)
    verdict, sentence = headline(post)
    simulated = simulate_without(post)
    found: dict[str, Any] = {"verdict": verdict, "sentence": sentence}
    if post.attribution is not None:
        found |= {key: value for key, value in post.attribution.as_dict().items() if key not in ("verdict", "sentence")}
    elif post.suspicion is not None:
        found |= {
            "consistent_with": post.suspicion.factor,
            "evidence": post.suspicion.evidence,
            "ruled_out": post.suspicion.ruled_out,
        }
    found["counterfactual"] = None if simulated is None else vars(simulated)
    found["suspects"] = [vars(suspect) for suspect in post.suspects]
    if as_json:
        print(json.dumps(plain(found)))
        return
    print(sentence)
    for cause in post.attribution.causes if post.attribution else []:
        print(f"  {cause.name}: {cause.share:.0%} of the change; {cause.evidence}; mending only this: {cause.relief:+.0%}")
    if post.suspicion is not None:
        print(f"  {post.suspicion.evidence}")
    if simulated is not None:
        print(
            f"  simulated: {simulated.with_change:.3g} Ktok/s as it is, {simulated.without_change:.3g} with {', '.join(simulated.undone)}"
        )
    for name, why in found.get("ruled_out", {}).items():
        print(f"  not {name}: {why}")


def jumpiness_command(
    run: Run,
    same_order: Annotated[str | None, typer.Option(help="a run of the same data in the same order")] = None,
    samples: Annotated[bool, typer.Option("--samples", help="also the samples of each spike's worst batch")] = False,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Judge whether a jumpy loss is the diversity of the batches or a training that comes apart."""
    from dflash.analysis.eventlog import load_events
    from dflash.analysis.jumpiness import judge_jumpiness
    from dflash.analysis.samples import samples_of
    from dflash.runs.folder import open_run

    other = load_events(open_run(same_order, runs)) if same_order else None
    log = load_events(open_run(run, runs))
    found = judge_jumpiness(log, other)
    worst = [str(spike.batches[0]["batch"]) for spike in found.spikes if spike.batches]
    held = samples_of(log, worst) if samples and worst else {}
    if as_json:
        print(json.dumps(plain({**found.as_dict(), "samples": held})))
        return
    print(f"{found.verdict}: {found.sentence}")
    for spike in found.spikes[:20]:
        batches = ", ".join(str(batch.get("batch")) for batch in spike.batches)
        print(f"  step {spike.step}: loss {spike.loss:.4f}, z {spike.z:.1f}; batches {batches}")
    for batch, ids in held.items():
        print(f"  batch {batch}: samples {', '.join(map(str, ids))}")


def diff_command(
    old: Annotated[str, typer.Argument(help="the run before")],
    new: Annotated[str, typer.Argument(help="the run after")],
    ignore: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="keys left out, as in 'telemetry.*'")] = None,
    align: Annotated[str, typer.Option(help="what results are aligned by: time, step, tokens")] = "step",
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show what differs between two runs: config, code, environment, data, results."""
    from dflash.analysis.comparison import compare_runs
    from dflash.runs.folder import open_run

    if align not in ("time", "step", "tokens"):
        raise RefusedInput(f"--align {align}: one of time, step, tokens")
    found = compare_runs(open_run(old, runs), open_run(new, runs), ignore=ignore or (), align=align)  # type: ignore[arg-type]
    if as_json:
        print(json.dumps(plain(found.as_dict())))
        return
    console = Console()
    for name, rows in (("config", found.config), ("data", found.data), ("environment", found.environment)):
        table = Table(name, "before", "after")
        for each in rows:
            table.add_row(each.key, str(each.old), str(each.new))
        console.print(table) if rows else console.print(f"{name}: no difference")
    print(found.code or "code: no difference on record")
    for note in found.notes:
        print(note)


def report_command(
    run: Run,
    out: Annotated[Path, typer.Option(help="file to write: .html (opens offline), or .md for a pull request")],
    baseline: Baseline = None,
    at: At = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a post-mortem: what changed, when, why, how sure, and what to do."""
    from dflash.report.headline import headline
    from dflash.report.sections import check_report_name, write_report

    check_report_name(out)
    post = _investigate(run, baseline, at, runs)
    write_report(out, post)
    verdict, sentence = headline(post)
    print_result({"report": str(out), "verdict": verdict, "sentence": sentence}, as_json)


def _investigate(run: str, baseline: str | None, at: int | None, runs: Path) -> Any:
    from dflash.report.postmortem import investigate
    from dflash.runs.folder import open_run

    return investigate(open_run(run, runs), baseline=open_run(baseline, runs) if baseline else None, at_step=at)
