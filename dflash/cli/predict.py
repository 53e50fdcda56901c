"""The commands that predict: lengths, boundaries, compare-plans, simulate, calibrate, advise. None needs torch or a GPU."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from dflash.cli.output import AsJson, Runs, Sets, print_result
from dflash.config import build_config, load_config
from dflash.errors import RefusedInput

Html = Annotated[Path | None, typer.Option("--html", help="write a page that opens offline")]
Lengths = Annotated[Path, typer.Argument(help="a prepared data set, or a .parquet, .csv, .npy or .txt file of lengths")]
MOST_GROUPS = 20
_CONFIG = typer.Argument(help="the run's YAML file")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("lengths")(lengths_command)
    app.command("boundaries")(boundaries_command)
    app.command("compare-plans")(compare_plans_command)
    app.command("simulate")(simulate_command)
    app.command("calibrate")(calibrate_command)
    app.command("advise")(advise_command)


def lengths_command(
    lengths: Lengths,
    group_by: Annotated[str | None, typer.Option(help="a column to group by")] = None,
    boundaries: Annotated[
        str | None, typer.Option(help="length classes, as in 0,770,1216,8192; six by equal samples if left out")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="longer ones are left out and counted, tokens")] = None,
    against: Annotated[Path | None, typer.Option(help="another data set or file: how its lengths differ")] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Percentiles, classes, groups, outliers of lengths, and how two data sets differ."""
    from dflash.predict.lengths import length_report
    from dflash.predict.pages import lengths_page

    table, report = length_report(lengths, group_by=group_by, boundaries=numbers(boundaries), limit=limit, against=against)
    for kind, count in table.refused.items():
        _warn(f"{lengths}: {count:,} left out: {kind}")
    if html is not None:
        _write(html, lengths_page(table, report, numbers(boundaries)))
    if as_json:
        print_result(report, True)
        return
    print_result(
        {**{name: report[name] for name in ("source", "samples", "tokens", "mean", "shortest", "median", "longest")}}, False
    )
    print_result(report["percentiles"], False)
    _print_rows(report["classes"])
    if group_by is not None:
        groups = sorted(report["groups"].items(), key=lambda each: -each[1]["tokens"])
        _print_rows([{group_by: name, **_without(each, "percentiles", "classes")} for name, each in groups[:MOST_GROUPS]])
        if len(groups) > MOST_GROUPS:
            print(f" and {len(groups) - MOST_GROUPS} more groups with fewer tokens; --json has them all")
    print_result(report["outliers"], False)
    if against is not None:
        print_result(_without(report["difference"], "percentiles"), False)


def boundaries_command(
    lengths: Lengths,
    buckets: Annotated[int, typer.Option(min=1, help="length buckets")] = 6,
    token_budget: Annotated[int, typer.Option(min=1, help="padded tokens a batch, at most")] = 49_152,
    limit: Annotated[int | None, typer.Option(min=1, help="the last boundary; the longest length if left out")] = None,
    attention: Annotated[
        float, typer.Option(min=0, help="share of a token's cost that grows with its row's length, per token")
    ] = 0.0,
    by_hand: Annotated[str | None, typer.Option(help="boundaries to compare with, as in 0,770,1216,8192")] = None,
    most_buckets: Annotated[int | None, typer.Option(min=1, help="where the curve against buckets ends")] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Where to cut lengths into buckets, and what that saves."""
    from dflash.batching.analysis import table_of
    from dflash.data.lengths import read_lengths
    from dflash.predict.boundaries import advise_boundaries
    from dflash.predict.pages import boundaries_page

    found = read_lengths(lengths)
    tree = {
        "data": {"path": "-"},
        "target": {"path": "-"},
        "batching": {"token_budget": token_budget, "boundaries": numbers(by_hand)},
    }
    settings = build_config(tree, place="dflash boundaries").batching
    advice = advise_boundaries(
        found, settings, buckets=buckets, limit=limit, attention=attention, by_hand=settings.boundaries, most_buckets=most_buckets
    )
    if html is not None:
        _write(html, boundaries_page(advice, str(lengths), table_of(found)))
    if as_json:
        print_result(advice.as_dict(), True)
        return
    _print_rows([{"rule": rule, **each} for rule, each in advice.rules.items()])
    best = advice.curve.filter(advice.curve["rule"] == "optimal")
    print_result({f"{row['buckets']} buckets": row["padding_efficiency"] for row in best.to_dicts()}, False)


def compare_plans_command(
    lengths: Lengths,
    plans: Annotated[Path, typer.Option("--plans", help="YAML file: a name and its settings for each plan")],
    hours: Annotated[float | None, typer.Option(min=0.01, help="simulated for each")] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Plans side by side: padding, mix, predicted Ktok/s and days."""
    from dflash.data.lengths import read_lengths
    from dflash.predict.pages import plans_page
    from dflash.predict.plans import compare_plans, read_plans

    chosen = read_plans(plans)
    with _working("planning and simulating") as tell:
        rows = compare_plans(read_lengths(lengths), chosen, source=str(lengths), hours=hours, told=tell)
    if html is not None:
        _write(html, plans_page(rows, str(lengths)))
    if as_json:
        print_result({"plans": [vars(row) for row in rows], "frontier": [row.plan for row in rows if row.frontier]}, True)
        return
    figures = ("ktok_s", "eta_days", "padding_efficiency", "fill", "batches", "max_padded_tokens", "bottleneck")
    _print_rows([{"plan": row.plan, **{name: getattr(row, name) for name in figures}} for row in rows])
    _print_rows([
        {"plan": row.plan, "vr 1/8/16/32": _mix(row.vr), "chi 1/8/16/32": _mix(row.chi), "reuse": row.membership_reuse, "frontier": row.frontier}
        for row in rows
    ])  # fmt: skip
    for row in rows:
        if row.deadlock:
            _warn(f"{row.plan}: {row.deadlock}")


def simulate_command(
    config: Annotated[Path, _CONFIG],
    sets: Sets = None,
    hours: Annotated[float | None, typer.Option(min=0.001, help="simulated at most; simulation.hours if left out")] = None,
    lifts: Annotated[bool, typer.Option(help="also try 20% more of each resource")] = True,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a run: throughput, bottleneck, and what would lift it. A deadlock is shown with its cause."""
    from dflash.predict.lifts import explain_bottleneck, simulate_lifts
    from dflash.predict.pages import simulation_page
    from dflash.predict.simulation import simulate
    from dflash.predict.workload import load_workload

    settings = load_config(config, sets or [])
    workload = load_workload(settings)
    with _working("simulating") as tell:
        run = simulate(settings, hours=hours, workload=workload)
        tried = simulate_lifts(settings, run, hours=hours, workload=workload, told=tell) if lifts and not run.deadlock else []
    for warning in run.warnings:
        _warn(warning)
    if html is not None:
        _write(html, simulation_page(run, tried, f"Simulation of {config.name}"))
    why = explain_bottleneck(run, tried)
    if as_json:
        print_result({**vars(run), "why": why, "lifts": [vars(lift) for lift in tried]}, True)
        return
    names = (
        "ktok_s",
        "interval",
        "eta_days",
        "bottleneck",
        "padding_efficiency",
        "hours",
        "steps",
        "batches",
        "stages",
        "lengths",
        "costs",
    )
    print_result({**{name: getattr(run, name) for name in names}, "why": why}, False)
    _print_rows([{"worker": name, **shares} for name, shares in run.workers.items()])
    print_result({"pool": _without(run.pool, "boundaries"), "prefetch": run.prefetch, "mix": run.mix}, False)
    if tried:
        _print_rows([{"20% more": lift.meaning, "ktok_s": lift.ktok_s, "gain": f"{lift.gain:+.1%}"} for lift in tried])


def calibrate_command(
    runs: Annotated[list[str], typer.Argument(help="runs that trained: folders, or names in --runs")],
    out: Annotated[Path, typer.Option(help="costs file to write")],
    folder: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Fit the cost model to the events of real runs, and say what they can't tell."""
    from dflash.predict.calibration import calibrate
    from dflash.predict.costs import write_costs
    from dflash.runs.folder import open_run

    found = calibrate([open_run(run, folder) for run in runs])
    write_costs(out, found.file)
    for warning in [*found.unknown, *found.warnings]:
        _warn(warning)
    terms = {name: term.model_dump() for name, term in found.file.terms.items()}
    if as_json:
        about, file = found.file.about.model_dump(), found.file
        summary = {"out": str(out), "about": about, "cores": file.cores, "noise": file.noise, "terms": terms}
        print_result({**summary, "stages": found.stages, "unknown": found.unknown, "warnings": found.warnings}, True)
        return
    _print_rows([{"term": name, **values} for name, values in terms.items() if values["known"]])
    _print_rows([{"stage": name, **values} for name, values in found.stages.items()])
    print_result({"noise": found.file.noise, "cores": found.file.cores, "wrote": str(out)}, False)


def advise_command(
    config: Annotated[Path, _CONFIG],
    sets: Sets = None,
    lengths: Annotated[str | None, typer.Option(help="file of lengths, data or lognormal; simulation.lengths if left out")] = None,
    costs: Annotated[Path | None, typer.Option(help="costs file; the config's terms if left out")] = None,
    mix: Annotated[float, typer.Option(min=0, help="largest vr of 32 batches that will do, 1 = as random")] = 0.2,
    least_anchors: Annotated[
        int | None, typer.Option(min=1, help="anchors a conversation, at least; the config's if left out")
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0.01, help="simulated for each of the best")] = None,
    as_json: AsJson = False,
) -> None:
    """Search for the fastest settings at a required mix; the three best as patches for `train --set`."""
    from dflash.predict.advice import advise

    named = {"simulation.lengths": lengths, "simulation.costs": costs}
    overrides = [f"{key}={value}" for key, value in named.items() if value is not None]
    with _working("searching") as tell:
        found = advise(
            load_config(config, [*(sets or []), *overrides]), mix=mix, least_anchors=least_anchors, hours=hours, told=tell
        )
    for warning in found.now.warnings:
        _warn(warning)
    if as_json:
        suggestions = [vars(each) for each in found.suggestions]
        now = {"ktok_s": found.now.ktok_s, "vr": found.now_vr, "bottleneck": found.now.bottleneck, "deadlock": found.now.deadlock}
        print_result({"now": now, "mix": found.mix, "tried": found.tried, "suggestions": suggestions}, True)
        return
    print(f"now: {found.now.ktok_s:.1f} Ktok/s, vr {found.now_vr or float('nan'):.2g}; {found.tried} settings weighed")
    if not found.suggestions:
        print(f"none of them holds vr <= {mix:g}: raise --mix")
    for number, each in enumerate(found.suggestions, 1):
        print(f"{number}. {each.ktok_s:.1f} Ktok/s ({each.gain:+.0%}), vr {each.vr or 0:.2g}: {each.reason}")
        print("   " + " ".join(f"--set {shlex.quote(part)}" for part in each.patch))


def numbers(text: str | None) -> list[int] | None:
    """Boundaries given as text.

    Raises:
        RefusedInput: they are not whole numbers with commas.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.strip("[] ").split(",")]
    except ValueError as error:
        raise RefusedInput(f"boundaries {text}: expected whole numbers with commas, as in 0,770,1216,8192") from error


@contextmanager
def _working(words: str) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error while work goes on; what it gives is told what is being worked on."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(words)
        yield lambda what: progress.update(task, description=f"{words}: {what}")


def _write(path: Path, page: Any) -> None:
    from dflash.report.page import write_page

    write_page(path, page)
    print(f"wrote {path}", file=sys.stderr)


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*names, box=None)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mix(figures: dict[str, float | None]) -> str:
    return "/".join("-" if value is None else f"{value:.2g}" for value in figures.values())


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
