"""A post-mortem in one screen: the verdict, the figures, the cause, what to do."""

from __future__ import annotations

import math
from typing import Any

from dflash.analysis.attribution import Attribution, because
from dflash.report.page import Block, Callout, Fact, Facts, duration
from dflash.report.postmortem import PostMortem

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


def headline(post: PostMortem) -> tuple[str, str]:
    """The verdict in a word (regression, suspected regression, improvement, steady, unclear) and in a sentence."""
    change = _change(post)
    if change is None:
        return post.changes.verdict, post.changes.sentence
    value, low, high = change
    size = f"{abs(value):.0%} [{_sizes(low, high)}]"
    if high < 0 and value <= -0.05:
        cause = cause_words(post)
        sure = "regression" if post.confirmed else "suspected regression"
        if post.attribution is not None and post.confirmed and cause:
            why = f", {because([each.name for each in post.attribution.causes], post.attribution.unexplained)}"
        else:
            why = f"; {cause}" if cause else "; the cause is unclear"
        return sure, f"Throughput fell by {size}{why}."
    if low > 0 and value >= 0.05:
        return "improvement", f"Throughput rose by {size}."
    sure = f"[{low:+.0%}, {high:+.0%}]" if high < 10 else "with too few rows for an interval"
    return "steady", f"No change of throughput that can be told from the noise: {value:+.0%} {sure}."


def _accounted(post: PostMortem) -> Attribution | None:
    """The attribution, where its accounts are enough for an interval of the change (or there is nothing else to go by)."""
    found = post.attribution
    return found if found is not None and (math.isfinite(found.high) or post.ratio is None) else None


def _change(post: PostMortem) -> tuple[float, float, float] | None:
    """Change with its interval: of the whole rate with pauses where there are accounts enough, of plain training otherwise."""
    found = _accounted(post) or post.ratio
    return None if found is None else (found.change, found.low, found.high)


def _rates(post: PostMortem) -> tuple[float, float] | None:
    found = _accounted(post)
    if found is not None and found.before is not None and found.after is not None and math.isfinite(found.high):
        return found.before.ktok_s, found.after.ktok_s
    return (post.ratio.before, post.ratio.after) if post.ratio is not None else None


def _interval(value: float, low: float, high: float) -> str:
    """The interval in words: 17% to 49% less, or with signs where it reaches both ways."""
    if low < 0 < high:
        return f"{low:+.0%} to {'over +1,000%' if high > 10 else f'{high:+.0%}'}"
    return f"{_sizes(low, high)} {'less' if value < 0 else 'more'}"


def _sizes(low: float, high: float) -> str:
    """The interval without its direction, the smaller end first."""
    return " to ".join("over 1,000%" if size > 10 else f"{size:.0%}" for size in sorted((abs(low), abs(high))))


def cause_words(post: PostMortem) -> str:
    """The causes named, in words; empty if none is."""
    if post.attribution is not None and post.attribution.causes:
        return " and ".join(cause.name for cause in post.attribution.causes)
    if post.suspicion is not None and post.suspicion.factor is not None:
        return post.suspicion.sentence[0].lower() + post.suspicion.sentence[1:].removesuffix(".")
    return ""


def lead(post: PostMortem) -> list[Block]:
    """What stands above the first heading: why in a sentence, and the figures."""
    verdict, sentence = headline(post)
    lines = [
        cause.evidence[0].upper() + cause.evidence[1:] + "." for cause in (post.attribution.causes if post.attribution else [])
    ]
    if not lines and post.suspicion is not None:
        lines.append(post.suspicion.evidence[0].upper() + post.suspicion.evidence[1:] + ".")
    first = next((suspect for suspect in post.suspects if suspect.verdict == "can have caused it"), None)
    if first is not None:
        lines.append(f"Changed before it: {first.key}, from {first.old} to {first.new}.")
    to_do = advice(post)
    if to_do:
        lines.append(f"What to do: {to_do[0]}")
    tone: Any = {"regression": "bad", "suspected regression": "bad", "improvement": "good"}.get(verdict, "neutral")
    first_line, *rest = lines or [sentence]
    return [Callout(first_line, rest, tone), Facts(_facts(post, verdict))]


def _facts(post: PostMortem, verdict: str) -> list[Fact]:
    facts = []
    rates, change = _rates(post), _change(post)
    if rates is not None and change is not None:
        unit = post.series.unit
        facts += [
            Fact("before", f"{rates[0]:.3g} {unit}", _rows(post, 0)),
            Fact("after", f"{rates[1]:.3g} {unit}", _rows(post, 1)),
            Fact("change", f"{change[0]:+.0%}", f"95% interval {_interval(*change)}"),
        ]
        if change[0] < 0:
            facts.append(Fact("a day of work now takes", f"{24 * rates[0] / rates[1]:.0f} h", _lost(post, rates)))
    sure = "confirmed: from accounts of time" if post.confirmed else "suspected" if "regression" in verdict else "–"
    facts.append(Fact("cause", sure, _confidence(post)))
    return facts


def _rows(post: PostMortem, side: int) -> str:
    return "" if post.ratio is None else f"{(post.ratio.points_before, post.ratio.points_after)[side]:,} {post.series.source}"


def _lost(post: PostMortem, rates: tuple[float, float]) -> str:
    """Time lost in the stretch after, and that of all devices where they are known."""
    seconds = (post.after[1] - post.after[0]) * (1 - rates[1] / rates[0])
    started = post.log.rare["run_started"]
    devices = sum(int(started[-1].get(kind) or 0) for kind in ("targets", "drafters")) if started else 0
    return f"{duration(seconds)} lost in this log" + (f", {duration(seconds * devices)} of device time" if devices else "")


def _confidence(post: PostMortem) -> str:
    if post.attribution is not None and post.attribution.causes:
        share = 1 - post.attribution.unexplained
        return "explains all of the change" if share >= 0.95 else f"explains {share:.0%} of the change"
    if post.ratio is not None and post.ratio.provisional:
        return "provisional: fewer than 20 rows on a side"
    return "gauges only, no accounts of time" if post.suspicion is not None else ""


def advice(post: PostMortem) -> list[str]:
    """What to do about each cause, with the gain to expect."""
    if post.attribution is not None:
        return [f"{_ADVICE[cause.factor]} Expected: {cause.relief:+.0%}." for cause in post.attribution.causes]
    if post.suspicion is not None and post.suspicion.factor is not None and "regression" in headline(post)[0]:
        return [_ADVICE[post.suspicion.factor]]
    return []
