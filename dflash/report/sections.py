"""A post-mortem in words and charts: the page that `dflash report` writes.

The first screen is for a reader who knows nothing of the run: what happened, by how much, why, how sure, what to do. Then: timeline, before and
after, attribution, what was changed, loss health, what was ruled out, log lines, and how to reproduce it, with the gaps that are known.
"""

from __future__ import annotations

import math
import time
from typing import Any

import polars as pl

from dflash.analysis.attribution import Attribution, Cause
from dflash.analysis.bottleneck import Bottleneck
from dflash.analysis.jumpiness import loss_rows
from dflash.charts import regression as charts
from dflash.report.page import Block, Callout, Chart, Code, Fact, Facts, Items, Page, Section, Table, Text
from dflash.report.postmortem import PostMortem, log_lines

_ADVICE = {
    "waiting": "Pull the oldest item (pool.policy=oldest) and let the order of the plan make the mix (batching.order=stratified).",
    "padding": "Batch rows of like length (batching.strategy=jittered, or packed where the target allows it).",
    "length mix": "Expect it where the data changed; widen the stage that is now the bottleneck, or plan anew (dflash boundaries).",
    "target speed": "Look at what changed in the target: weights' precision, attention kernel, driver, other work on its devices.",
    "drafter speed": "Look at what changed in the drafter: its shape, anchors, attention kernel, compile, other work on its devices.",
    "metrics": "Count accuracy and streak on fewer batches (telemetry.metrics_every).",
    "prefetch speed": "Give it more readers (pipeline.prefetch_workers), or look at the disk.",
    "hand-over": "Look at free memory and the object store: features that are spilled to disk are handed over at the disk's pace.",
    "target straggler": "Look at that device (clock, temperature, other processes), or take it out.",
    "drafter straggler": "Look at that device (clock, temperature, other processes): every window waits for its slowest drafter.",
    "optimiser step": "Look at the exchange of gradients between drafters; a larger window (optim.accumulate) has fewer of them.",
    "evaluation": "Evaluate less often (evaluation.every), or on fewer conversations (data.holdout).",
    "checkpoint": "Write checkpoints less often (checkpoint.every), or to a faster disk.",
    "compile": "Compile once: shapes that keep changing make it compile again.",
    "workers": "Bring the lost workers back.",
}  # fmt: skip


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
        lead=_lead(post),
        sections=[section for section in sections if section.blocks],
        footer="Written by `dflash report`. Every figure is defined in docs/regressions.md.",
    )


def headline(post: PostMortem) -> tuple[str, str]:
    """The verdict in a word (regression, suspected regression, improvement, steady, unclear) and in a sentence."""
    change = _change(post)
    if change is None:
        return "steady", post.changes.sentence
    value, low, high = change
    size = f"{abs(value):.0%} [{_interval(value, low, high)}]"
    if high < 0 and value <= -0.05:
        cause = _cause_words(post)
        sure = "regression" if post.confirmed else "suspected regression"
        words = f"Throughput fell by {size}" + (
            f", because of {cause}" if post.confirmed and cause else f"; {cause}" if cause else "; the cause is unclear"
        )
        return sure, words + "."
    if low > 0 and value >= 0.05:
        return "improvement", f"Throughput rose by {size}."
    return "steady", f"No change of throughput that can be told from the noise: {value:+.0%} [{low:+.0%}, {high:+.0%}]."


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


def _change(post: PostMortem) -> tuple[float, float, float] | None:
    """Change with its interval: of the whole rate with pauses where there are accounts, of plain training otherwise."""
    if post.attribution is not None:
        return post.attribution.change, post.attribution.low, post.attribution.high
    if post.ratio is not None:
        return post.ratio.change, post.ratio.low, post.ratio.high
    return None


def _rates(post: PostMortem) -> tuple[float, float] | None:
    if post.attribution is not None and post.attribution.before is not None and post.attribution.after is not None:
        return post.attribution.before.ktok_s, post.attribution.after.ktok_s
    return (post.ratio.before, post.ratio.after) if post.ratio is not None else None


def _interval(value: float, low: float, high: float) -> str:
    bounds = sorted((abs(low), abs(high))) if value < 0 else [low, high]
    return " to ".join("over 1,000%" if bound > 10 else f"{bound:.0%}" for bound in bounds)


def _cause_words(post: PostMortem) -> str:
    if post.attribution is not None and post.attribution.causes:
        return " and ".join(cause.name for cause in post.attribution.causes)
    if post.suspicion is not None and post.suspicion.factor is not None:
        return post.suspicion.sentence[0].lower() + post.suspicion.sentence[1:].removesuffix(".")
    return ""


def _lead(post: PostMortem) -> list[Block]:
    verdict, sentence = headline(post)
    lines = [
        cause.evidence[0].upper() + cause.evidence[1:] + "." for cause in (post.attribution.causes if post.attribution else [])
    ]
    if not lines and post.suspicion is not None:
        lines.append(post.suspicion.evidence[0].upper() + post.suspicion.evidence[1:] + ".")
    first = next((suspect for suspect in post.suspects if suspect.verdict == "can have caused it"), None)
    if first is not None:
        lines.append(f"Changed before it: {first.key}, from {first.old} to {first.new}.")
    advice = _advice(post)
    if advice:
        lines.append(f"What to do: {advice[0]}")
    tone: Any = {"regression": "bad", "suspected regression": "bad", "improvement": "good"}.get(verdict, "neutral")
    return [Callout(sentence, lines, tone), Facts(_facts(post, verdict))]


def _facts(post: PostMortem, verdict: str) -> list[Fact]:
    facts = []
    rates, change = _rates(post), _change(post)
    if rates is not None and change is not None:
        unit = post.series.unit
        facts += [
            Fact("before", f"{rates[0]:.3g} {unit}", _rows(post, 0)),
            Fact("after", f"{rates[1]:.3g} {unit}", _rows(post, 1)),
            Fact("change", f"{change[0]:+.0%}", f"95% interval {_interval(*change)} {'less' if change[0] < 0 else 'more'}"),
        ]
        if change[0] < 0:
            facts.append(Fact("a day of work now takes", f"{24 * rates[0] / rates[1]:.0f} h", _lost(post, rates)))
    sure = "confirmed: from accounts of time" if post.confirmed else "suspected" if "regression" in verdict else "–"
    facts.append(Fact("cause", sure, _confidence(post)))
    return facts


def _rows(post: PostMortem, side: int) -> str:
    return "" if post.ratio is None else f"{(post.ratio.points_before, post.ratio.points_after)[side]:,} {post.series.source}"


def _lost(post: PostMortem, rates: tuple[float, float]) -> str:
    """Hours lost in the stretch after, and device hours where the devices are known."""
    hours = (post.after[1] - post.after[0]) / 3_600 * (1 - rates[1] / rates[0])
    started = post.log.rare["run_started"]
    devices = sum(int(started[-1].get(kind) or 0) for kind in ("targets", "drafters")) if started else 0
    return f"{hours:.2g} h lost in this log" + (f", {hours * devices:.2g} device hours" if devices else "")


def _confidence(post: PostMortem) -> str:
    if post.attribution is not None and post.attribution.causes:
        return f"explains {1 - post.attribution.unexplained:.0%} of the change"
    if post.ratio is not None and post.ratio.provisional:
        return "provisional: fewer than 20 rows on a side"
    return "gauges only, no accounts of time" if post.suspicion is not None else ""


def _timeline(post: PostMortem) -> Section:
    events: list[tuple[float, str]] = [(event["at"], _started(event)) for event in post.log.rare["run_started"]]
    for change in post.changes.changes:
        ratio = change.ratio
        lag = "" if change.detection_seconds is None else f"; could be told from noise {_duration(change.detection_seconds)} later"
        words = f"rate {ratio.before:.3g} to {ratio.after:.3g} {post.series.unit} ({ratio.change:+.0%} [{ratio.low:+.0%}, {ratio.high:+.0%}]){lag}"
        events.append((change.at_seconds, words))
    for event in post.log.rare["change"]:
        kind = "changed live" if event.get("accepted") else f"refused ({event.get('reason')})"
        what = f"{event.get('key') or event.get('action')}: {event.get('old')} to {event.get('new')}, by {event.get('who')}"
        events.append((event["at"], f"{kind}: {what}"))
    events += [(event["at"], f"worker lost: {event.get('worker')}") for event in post.log.rare["worker_lost"]]
    events += [(event["at"], f"warning: {event.get('message')}") for event in post.log.rare["warning"][:20]]
    events += [(event["at"], f"ended: {event.get('state')}") for event in post.log.rare["run_ended"]]
    rows = [(_duration(at), words) for at, words in sorted(events, key=lambda event: event[0])]
    blocks: list[Block] = [Table(["time", "what"], rows[:200])]
    stalls = post.changes.stalls
    if stalls:
        listed = [(_duration(stall.at_seconds), stall.step, stall.phase, f"{stall.lost_seconds:.1f} s") for stall in stalls[:20]]
        caption = (
            f"{len(stalls)} stalls (rows slower than 1.5 times the median), {_duration(post.changes.stalled_seconds)} lost in all"
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
    blocks.append(Text(
        f"Noise: {noise.sigma:.1%} a row, autocorrelation {noise.phi:.2f}. In this log a lasting change below {post.changes.detectable:.0%} "
        f"could not have been told from it. Left out: {', '.join(f'{count} rows of {phase}' for phase, count in post.changes.masked.items()) or 'nothing'}."
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
    edges = [post.at_seconds] if post.at_seconds is not None else []
    blocks.append(Chart(charts.draw_pool(post.log, changes=edges), "Items in the pool by length bucket."))
    if found.padding_closure is not None:
        closure = found.padding_closure
        blocks.append(Text(
            f"Padding closure: padding went from {closure['waste_before']:.0%} to {closure['waste_after']:.0%} of all tokens, which by itself predicts "
            f"{closure['predicted_ktok_s']:.3g} Ktok/s and explains {closure['explained']:.0%} of the change."
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
        "rate": f"rate ({post.series.unit})", "target_batches_per_second": "targets (batches/s)", "drafter_batches_per_second": "drafters (batches/s)",
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
    return f"Without this change the rate would now be about {found.after.ktok_s * math.exp(gain):.3g} Ktok/s instead of {found.after.ktok_s:.3g}."


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
    return (
        "nothing differs between the runs' configs, code, environment and data."
        if post.comparison
        else "there is no second run to compare with."
    )


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


def _advice(post: PostMortem) -> list[str]:
    if post.attribution is not None:
        return [f"{_ADVICE[cause.factor]} Expected: {cause.relief:+.0%}." for cause in post.attribution.causes]
    if post.suspicion is not None and post.suspicion.factor is not None and "regression" in headline(post)[0]:
        return [_ADVICE[post.suspicion.factor]]
    return []


def _what_to_do(post: PostMortem) -> Section:
    blocks: list[Block] = []
    advice = _advice(post)
    if advice:
        blocks.append(Items(advice))
        trigger = next((s for s in post.suspects if s.verdict == "can have caused it"), None)
        root = _cause_words(post)
        if trigger is not None:
            blocks.append(
                Text(
                    f"Trigger: {trigger.key} went from {trigger.old} to {trigger.new}{f' ({trigger.when})' if trigger.when else ''}. Root cause: {root}."
                )
            )
        else:
            blocks.append(Text(f"Root cause: {root}. What triggered it is not on record."))
    if post.notes.strip():
        blocks.append(Text(f"Author's notes.\n\n{post.notes}"))
    return Section("What to do", blocks)


def _reproduce(post: PostMortem) -> Section:
    command = f"dflash report {post.run.path}"
    if post.baseline is not None:
        command += f" --baseline {post.baseline.path}"
    elif post.at_seconds is not None:
        row = post.series.frame.filter(pl.col("at") > post.at_seconds).head(1)
        command += f" --at {row['step'][0]}" if len(row) else ""
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


def _started(event: dict[str, Any]) -> str:
    return "log begins" if event.get("imported") and not event.get("step") else f"session begins at step {event.get('step')}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
