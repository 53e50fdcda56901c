"""A post-mortem in words and charts: the page that `dflash report` writes.

The first screen is for a reader who knows nothing of the run: what happened, by how much, why, how sure, what to do. Then: timeline, before and
after, attribution, what was changed, loss health, what was ruled out, log lines, and how to reproduce it, with the gaps that are known.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import polars as pl

from dflash.analysis.attribution import Attribution, Cause
from dflash.analysis.bottleneck import Bottleneck
from dflash.analysis.jumpiness import loss_rows
from dflash.charts import regression as charts
from dflash.errors import RefusedInput
from dflash.report.counterfactual import Counterfactual, simulate_without
from dflash.report.headline import advice, cause_words, headline, lead
from dflash.report.markdown import render_markdown
from dflash.report.page import Block, Chart, Code, Items, Page, Section, Table, Text, duration, write_document, write_page
from dflash.report.postmortem import PostMortem, log_lines


def postmortem_page(post: PostMortem) -> Page:
    """The whole page."""
    sections = [
        _timeline(post), _before_after(post), _why(post), _changed(post), _loss(post), _ruled_out(post), _lines(post), _what_to_do(post),
        _reproduce(post),
    ]  # fmt: skip
    subject = post.run.name if post.baseline is None else f"{post.run.name} against {post.baseline.name}"
    return Page(
        title=_title(post),
        kicker=f"Post-mortem: {subject}",
        subtitle=_subtitle(post),
        lead=lead(post),
        sections=[section for section in sections if section.blocks],
        footer="Written by `dflash report`. Every figure is defined in docs/regressions.md.",
    )


def write_report(out: Path, post: PostMortem) -> None:
    """Write the page: an .html file that opens offline, or an .md file for a pull request.

    Raises:
        RefusedInput: another ending, or `out` is a folder.
        RunFailed: the file can't be written.
    """
    check_report_name(out)
    page = postmortem_page(post)
    if out.suffix == ".md":
        write_document(out, render_markdown(page))
    else:
        write_page(out, page)


def check_report_name(out: Path) -> None:
    """Refuse a name that is no report's, before any work is done for it.

    Raises:
        RefusedInput: neither .html nor .md.
    """
    if out.suffix not in (".html", ".md"):
        raise RefusedInput(f"{out}: a report is an .html or an .md file")


def _title(post: PostMortem) -> str:
    return headline(post)[1].removesuffix(".")


def _subtitle(post: PostMortem) -> str:
    parts = [f"run {post.run.path}"]
    if post.log.origin > 1e8:
        parts.append(time.strftime("began %Y-%m-%d %H:%M UTC", time.gmtime(post.log.origin)))
    if post.log.imported:
        parts.append(
            f"imported from {', '.join(map(str, post.log.imported.get('sources', [])))} ({post.log.imported.get('format')})"
        )
    return ", ".join(parts)


def _timeline(post: PostMortem) -> Section:
    events: list[tuple[float, str]] = [(event["at"], _started(event)) for event in post.log.rare["run_started"]]
    for change in post.changes.changes:
        ratio = change.ratio
        lag = "" if change.detection_seconds is None else f"; could be told from noise {duration(change.detection_seconds)} later"
        size = f"{ratio.change:+.0%} [{ratio.low:+.0%}, {ratio.high:+.0%}]"
        events.append((change.at_seconds, f"rate {ratio.before:.3g} to {ratio.after:.3g} {post.series.unit} ({size}){lag}"))
    for event in post.log.rare["change"]:
        events.append((event["at"], _command_words(event)))
    events += [(event["at"], f"worker lost: {event.get('worker')}") for event in post.log.rare["worker_lost"]]
    events += [(event["at"], f"warning: {event.get('message')}") for event in post.log.rare["warning"][:20]]
    events += [(event["at"], f"ended: {event.get('state')}") for event in post.log.rare["run_ended"]]
    rows = [(duration(at), words) for at, words in sorted(events, key=lambda event: event[0])]
    blocks: list[Block] = [Table(["time", "what"], rows[:200])]
    stalls = post.changes.stalls
    if stalls:
        listed = [(duration(stall.at_seconds), stall.step, stall.phase, f"{stall.lost_seconds:.1f} s") for stall in stalls[:20]]
        caption = (
            f"{len(stalls)} stalls (rows slower than 1.5 times the median), {duration(post.changes.stalled_seconds)} lost in all"
        )
        blocks.append(Table(["time", "step", "phase", "lost"], listed, caption, folded=True))
    return Section("Timeline", blocks)


def _before_after(post: PostMortem) -> Section:
    blocks: list[Block] = []
    if post.baseline_series is not None:
        for by in ("time", "tokens"):
            figure = charts.draw_two_rates(post.baseline_series, post.series, by=by)
            blocks.append(
                Chart(
                    figure,
                    f"Throughput before and after by {'time' if by == 'time' else 'work done'}, each run from its own start.",
                )
            )
    else:
        edges = [post.at_seconds] if post.at_seconds is not None else [change.at_seconds for change in post.changes.changes]
        for by in ("time", "tokens"):
            figure = charts.draw_rate(post.series, changes=edges, ratio=post.ratio, by=by)
            blocks.append(Chart(figure, f"Throughput by {'time' if by == 'time' else 'work done'}; the dashed line is the change."))
    noise = post.changes.noise
    few = post.changes.verdict == "too little data"
    unseen = f"In this log a lasting change below {post.changes.detectable:.0%} could not have been told from it."
    unseen = "The log is too short to search it for further changes." if few else unseen
    left_out = ", ".join(f"{count} rows of {phase}" for phase, count in post.changes.masked.items())
    blocks.append(Text(
        f"Noise: {noise.sigma:.1%} a row, autocorrelation {noise.phi:.2f}. {unseen} "
        f"Left out: {left_out or 'nothing'}."
    ))  # fmt: skip
    return Section("Before and after", blocks)


def _why(post: PostMortem) -> Section:
    if post.attribution is None:
        return _why_from_gauges(post)
    found = post.attribution
    assert found.before is not None
    assert found.after is not None
    blocks: list[Block] = [Text(found.sentence)]
    blocks.append(
        Chart(charts.draw_states({"before": found.before, "after": found.after}), "Where each kind of worker's time went.")
    )
    blocks.append(
        Chart(
            charts.draw_factors(found.all_factors),
            "What each factor's change does to the rate by itself. Effects of factors that hide each other don't add up.",
        )
    )
    if found.causes:
        blocks.append(
            Table(
                ["cause", "share of the change", "by itself", "mending only this", "evidence"],
                [_cause_row(cause) for cause in found.causes],
            )
        )
        blocks.append(Text(_counterfactual(found)))
        simulated = simulate_without(post)
        if simulated is not None:
            blocks.append(Text(_simulated(simulated)))
    edges = [post.at_seconds] if post.at_seconds is not None else []
    blocks.append(Chart(charts.draw_pool(post.log, changes=edges), "Items in the pool by length bucket."))
    if found.padding_closure is not None:
        closure = found.padding_closure
        blocks.append(Text(
            f"Padding closure: padding went from {closure['waste_before']:.0%} to {closure['waste_after']:.0%} of all tokens, which by itself "
            f"predicts {closure['predicted_ktok_s']:.3g} Ktok/s and explains {closure['explained']:.0%} of the change."
        ))  # fmt: skip
    rows = [(side, _bottleneck_words(bottleneck), bottleneck.evidence) for side, bottleneck in found.bottlenecks.items()]
    blocks.append(Table(["stretch", "bottleneck", "evidence"], rows))
    faults = [f"{side}: {fault}" for side, bottleneck in found.bottlenecks.items() for fault in bottleneck.instruments]
    blocks.append(
        Items(faults)
        if faults
        else Text("Self-check: workers' states sum to wall time within 1%, queues obey Little's law within 10%.")
    )
    return Section("Why", blocks)


def _why_from_gauges(post: PostMortem) -> Section:
    if post.suspicion is None or post.gauges is None:
        return Section(
            "Why",
            [Text("The run has no accounts of its workers' time for both stretches, so nothing is attributed.")]
            if post.ratio
            else [],
        )
    names = {
        "rate": f"rate ({post.series.unit})", "target_batches_per_second": "targets (batches/s)",
        "drafter_batches_per_second": "drafters (batches/s)",
        "tokens_per_batch": "real tokens a batch", "pooled": "items in the pool", "prefetched": "batches waiting for targets",
    }  # fmt: skip
    before, after = post.gauges
    rows = [(label, getattr(before, name) if before else None, getattr(after, name)) for name, label in names.items()]
    blocks: list[Block] = [
        Text(f"{post.suspicion.sentence} {post.suspicion.evidence[0].upper()}{post.suspicion.evidence[1:]}."),
        Text("A log has gauges but no accounts of time, so this is what the gauges are consistent with, not a proof."),
        Table(["gauge (mean over the lines)", "before", "after"], rows),
    ]
    if after.by_bucket is not None:
        blocks.append(Chart(charts.draw_pool(post.log), "Items in the pool by length bucket, from the log's gauge."))
    return Section("Why", blocks)


def _cause_row(cause: Cause) -> tuple[str, str, str, str, str]:
    return cause.name, f"{cause.share:.0%}", f"{cause.alone:+.0%}", f"{cause.relief:+.0%}", cause.evidence


def _counterfactual(found: Attribution) -> str:
    assert found.after is not None
    gain = sum(math.log1p(cause.relief) for cause in found.causes) if len(found.causes) == 1 else None
    if gain is None:
        return "Several causes hide each other: mending one alone brings what the table says, mending all of them what the run had before."
    rate = found.after.ktok_s
    return f"Without this change the rate would now be about {rate * math.exp(gain):.3g} Ktok/s instead of {rate:.3g}."


def _simulated(simulated: Counterfactual) -> str:
    return (
        f"Simulated with the seconds measured before: {simulated.with_change:.3g} Ktok/s with the settings as they are, "
        f"{simulated.without_change:.3g} with {', '.join(simulated.undone)} (lengths: {simulated.lengths})."
    )


def _bottleneck_words(bottleneck: Bottleneck) -> str:
    stragglers = ", ".join(f"{name} at {share:.0%}" for name, share in bottleneck.stragglers.items())
    return bottleneck.name + (f" (straggling: {stragglers})" if stragglers and bottleneck.name != "straggler" else "")


def _changed(post: PostMortem) -> Section:
    blocks: list[Block] = []
    if post.suspects:
        rows = [
            (s.what, s.key, str(s.old), str(s.new), s.when, s.verdict, None if s.explains is None else f"{s.explains:.0%}")
            for s in post.suspects[:60]
        ]
        columns = ["what", "key", "before", "after", "when", "as a cause", "acts on causes of"]
        blocks.append(Table(columns, rows, "Everything that was changed, the likeliest first"))
    else:
        blocks.append(Text("No change is on record: no live change near it, and " + _no_difference(post)))
    if post.comparison is not None:
        if post.comparison.code:
            blocks.append(Code(post.comparison.code, "Code that differs, uncommitted changes included", folded=True))
        blocks += [Text(note) for note in post.comparison.notes]
    frames = post.before_log.batches, post.log.batches
    if all(len(frame) for frame in frames):
        before = _inside(frames[0], post.before) if post.baseline is None else frames[0]
        after = _inside(frames[1], post.after)
        if len(before) and len(after):
            blocks.append(Chart(charts.draw_lengths(before, after), "Lengths of what was trained on, before and after."))
    return Section("What was changed", blocks)


def _no_difference(post: PostMortem) -> str:
    if post.comparison is None:
        return "there is no second run to compare with."
    known = "as far as it is known " if post.comparison.notes else ""
    return f"{known}nothing differs between the runs' configs, code, environment and data."


def _inside(frame: pl.DataFrame, stretch: tuple[float, float]) -> pl.DataFrame:
    return frame.filter((pl.col("at") >= stretch[0]) & (pl.col("at") <= stretch[1]))


def _loss(post: PostMortem) -> Section:
    found = post.jumpiness
    if found.verdict == "too little data" and not found.rows:
        return Section("Loss", [])
    _, rows = loss_rows(post.log)
    edges = [post.at_seconds] if post.at_seconds is not None else []
    blocks: list[Block] = [Text(f"{found.verdict.capitalize()}. {found.sentence}")]
    if len(rows):
        blocks.append(
            Chart(
                charts.draw_loss(rows, found.spikes, changes=edges),
                "Loss with its trend; spikes stand out by more than 7 times the usual noise.",
            )
        )
    if found.spikes:
        listed = [
            (s.step, s.loss, s.z, s.grad_z, ", ".join(str(each.get("batch")) for each in s.batches)) for s in found.spikes[:20]
        ]
        blocks.append(Table(["step", "loss", "z", "gradient norm z", "batches, the worst first"], listed, "Spikes", folded=True))
    return Section("Loss", blocks)


def _ruled_out(post: PostMortem) -> Section:
    ruled_out = post.attribution.ruled_out if post.attribution else post.suspicion.ruled_out if post.suspicion else {}
    return Section("Ruled out", [Table(["not the cause", "because"], list(ruled_out.items()))] if ruled_out else [])


def _lines(post: PostMortem) -> Section:
    lines = log_lines(post)
    return Section("Log lines", [Code("\n".join(lines), "The log around the change")] if lines else [])


def _what_to_do(post: PostMortem) -> Section:
    blocks: list[Block] = []
    to_do = advice(post)
    if to_do:
        blocks.append(Items(to_do))
        trigger = next((s for s in post.suspects if s.verdict == "can have caused it"), None)
        root = cause_words(post)
        if trigger is not None:
            when = f" ({trigger.when})" if trigger.when else ""
            blocks.append(Text(f"Trigger: {trigger.key} went from {trigger.old} to {trigger.new}{when}. Root cause: {root}."))
        else:
            blocks.append(Text(f"Root cause: {root}. What triggered it is not on record."))
    if post.notes.strip():
        blocks.append(Text(f"Author's notes.\n\n{post.notes}"))
    return Section("What to do", blocks)


def _reproduce(post: PostMortem) -> Section:
    command = f"dflash report {post.run.path}"
    if post.baseline is not None:
        command += f" --baseline {post.baseline.path}"
    elif post.at_step is not None:
        command += f" --at {post.at_step}"
    gaps = list(post.log.imported.get("notes", []))
    if post.attribution is None:
        gaps.append("no accounts of the workers' time: the cause is suspected, not proved")
    if post.ratio is not None and post.ratio.provisional:
        gaps.append("fewer than 20 rows on a side: the size of the change is provisional")
    if post.log.imported.get("clock") in ("order", "step_seconds"):
        gaps.append("the log has no clock: times are made up from the order of its lines or its step times")
    blocks: list[Block] = [Code(f"{command} --out report.html", "This page again")]
    if gaps:
        blocks += [Text("Known gaps:"), Items(gaps)]
    return Section("Reproduce", blocks)


def _command_words(event: dict[str, Any]) -> str:
    """A live command and the run's answer."""
    who = f", by {event.get('who')}"
    if not event.get("accepted"):
        return f"refused ({event.get('reason')}): {event.get('key') or event.get('action')}{who}"
    if event.get("key"):
        return f"changed live: {event['key']} from {event.get('old')} to {event.get('new')}{who}"
    return f"command: {event.get('action')}{who}"


def _started(event: dict[str, Any]) -> str:
    return "log begins" if event.get("imported") and not event.get("step") else f"session begins at step {event.get('step')}"
