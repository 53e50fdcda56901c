"""The static pages of prediction: lengths, boundaries, plans side by side, a simulated run."""

from __future__ import annotations

from typing import Any

from dflash.batching.analysis import LengthTable, default_classes, histogram, shares_by_class, summary
from dflash.charts.lengths import class_shares, efficiency_by_buckets, length_histogram, length_shares
from dflash.charts.plans import lift_bars, pool_items, speed_against_mix, worker_shares
from dflash.predict.boundaries import BoundaryAdvice
from dflash.predict.lifts import Lift, explain_bottleneck
from dflash.predict.plans import PlanRow, plan_frame
from dflash.predict.simulation import Simulation
from dflash.report.page import Block, Callout, Chart, Fact, Facts, Items, Page, Section, Table

_MOST_LINES = 8


def lengths_page(table: LengthTable, report: dict[str, Any], boundaries: list[int] | None = None) -> Page:
    """The page of `dflash lengths`; `report` is what the command prints with --json."""
    whole = table.whole
    classes = boundaries or default_classes(whole)
    figures = summary(whole)
    facts = [
        Fact("samples", f"{figures['samples']:,}"),
        Fact("tokens", f"{figures['tokens']:,}"),
        Fact("mean", f"{figures['mean']:,.0f} tokens"),
        Fact("median", f"{figures['median']:,} tokens"),
        Fact(
            "longest", f"{figures['longest']:,} tokens", f"{report['outliers']['at_longest_share']:.1%} of the samples stand there"
        ),
    ]
    percentiles = figures["percentiles"]
    sections = [
        Section("Distribution", [
            Chart(length_histogram(histogram(whole), classes), "share of samples and of tokens by length; dotted: class boundaries"),
            Table([f"{each}%" for each in percentiles], [list(percentiles.values())], "percentiles of the samples, tokens"),
        ]),
        Section("Classes", [
            Chart(class_shares(shares_by_class(whole, classes)), "samples and tokens of each length class"),
            _frame_table(report["classes"], "shares by class"),
        ]),
    ]  # fmt: skip
    if table.group_by is not None:
        largest = dict(sorted(table.groups.items(), key=lambda each: -each[1].total_tokens)[:_MOST_LINES])
        rows = [
            [name, each.total_samples, each.total_tokens, each.percentile(50), each.percentile(95)]
            for name, each in table.groups.items()
        ]
        sections.append(Section(f"By {table.group_by}", [
            Chart(length_shares(largest), f"cumulative shares of the {len(largest)} groups with most tokens"),
            Table([table.group_by, "samples", "tokens", "median", "95%"], rows),
        ]))  # fmt: skip
    if "difference" in report:
        sections.append(_difference_section(table, report))
    lead: list[Block] = [Facts(facts)]
    if table.refused:
        lines = [f"{count:,} {kind}" for kind, count in table.refused.items()]
        lead.append(Callout("Samples that are no lengths were left out", lines, "bad"))
    return Page("Lengths", sections, lead, kicker="dflash lengths", subtitle=table.source)


def boundaries_page(advice: BoundaryAdvice, source: str, table: LengthTable) -> Page:
    """The page of `dflash boundaries`."""
    rows = [[rule, str(each["boundaries"]), each["padding_efficiency"]] for rule, each in advice.rules.items()]
    chart = efficiency_by_buckets(advice.curve)
    return Page(
        "Length boundaries",
        [
            Section("Rules", [Table(["rule", "boundaries", "padding efficiency of the plan"], rows)]),
            Section("How many buckets", [Chart(chart, "rows padded to the longest of their bucket; a plan does a little better")]),
            Section(
                "On the lengths", [Chart(length_histogram(histogram(table.whole), advice.boundaries), "dotted: the boundaries")]
            ),
        ],
        [Facts([Fact("boundaries", str(advice.boundaries)), Fact("padding efficiency", f"{advice.padding_efficiency:.1%}")])],
        kicker="dflash boundaries",
        subtitle=source,
    )


def plans_page(rows: list[PlanRow], source: str) -> Page:
    """The page of `dflash compare-plans`."""
    best = [row for row in rows if row.frontier]
    columns = [
        "plan",
        "Ktok/s",
        "days",
        "efficiency",
        "fill",
        "batches",
        "largest",
        "vr 1",
        "vr 8",
        "vr 16",
        "vr 32",
        "reuse",
        "frontier",
    ]
    cells = [
        [
            row.plan, row.ktok_s, row.eta_days, row.padding_efficiency, row.fill, row.batches, row.max_padded_tokens,
            row.vr["1"], row.vr["8"], row.vr["16"], row.vr["32"], row.membership_reuse, row.frontier,
        ]
        for row in rows
    ]  # fmt: skip
    stuck = [f"{row.plan}: {row.deadlock}" for row in rows if row.deadlock]
    lead: list[Block] = [Items([f"{row.plan}: {row.ktok_s:.1f} Ktok/s at vr {row.vr['32'] or 0:.2g}" for row in best])]
    if stuck:
        lead.append(Callout("Plans that deadlock", stuck, "bad"))
    chart = Chart(speed_against_mix(plan_frame(rows)), "up is faster, left is more even; plans off the frontier are beaten in both")
    sections = [Section("Speed against mix", [chart]), Section("All plans", [Table(columns, cells)])]
    return Page("Plans compared", sections, lead, kicker="dflash compare-plans", subtitle=source)


def simulation_page(run: Simulation, lifts: list[Lift], title: str) -> Page:
    """The page of `dflash simulate`."""
    low_high = "" if run.interval is None else f"95%: {run.interval[0]:.1f} to {run.interval[1]:.1f}"
    facts = [
        Fact("throughput", f"{run.ktok_s:.1f} Ktok/s", low_high),
        Fact("whole run", "never" if run.eta_days is None else f"{run.eta_days:.1f} days"),
        Fact("bottleneck", run.bottleneck),
        Fact(
            "pool",
            f"{run.pool['items']:.1f} items",
            f"at most {run.pool['capacity_items']}; peak {run.pool['peak_bytes'] / 2**30:.1f} GiB",
        ),
        Fact("simulated", f"{run.hours:.2f} h", f"{run.batches:,} batches, {run.steps:,} steps"),
    ]
    lead: list[Block] = [Facts(facts), Callout(explain_bottleneck(run, lifts), tone="bad" if run.deadlock else "neutral")]
    if run.warnings:
        lead.append(Callout("To doubt", list(run.warnings), "bad"))
    mix = [[name, *figures.values()] for name, figures in run.mix.items()]
    sections = [
        Section("Workers", [Chart(worker_shares(run.workers), "share of time each worker spends in each state")]),
        Section("Pool", [Chart(pool_items(run.pool["by_bucket"], run.pool["boundaries"]), "items ready, mean over time")]),
    ]
    if lifts:
        chart = lift_bars([lift.meaning for lift in lifts], [lift.gain for lift in lifts])
        sections.append(Section("What would lift it", [Chart(chart, "gain of Ktok/s from 20% more of one resource at a time")]))
    if mix and run.mix["vr"]:
        windows = [f"{window} batches" for window in run.mix["vr"]]
        sections.append(
            Section("Mix of the windows as trained", [Table(["figure", *windows], mix, "1 = as random, less is more even")])
        )
    return Page(title, sections, lead, kicker="dflash simulate", subtitle=f"lengths: {run.lengths}; costs: {run.costs}")


def _frame_table(rows: list[dict[str, Any]], caption: str) -> Table:
    return Table(list(rows[0]), [list(row.values()) for row in rows], caption)


def _difference_section(table: LengthTable, report: dict[str, Any]) -> Section:
    found = report["difference"]
    rows = [[f"{key}%", each["first"], each["second"], each["ratio"]] for key, each in found["percentiles"].items()]
    words = f"{found['verdict']}: PSI {found['psi']:.3f}, KS {found['ks']:.3f} at {found['ks_at']:,} tokens, mean x {found['mean_ratio']:.3f}"
    return Section(
        "Against " + str(report["against"]), [Callout(words), Table(["percentile", "here", "there", "ratio"], rows, "tokens")]
    )  # fmt: skip
