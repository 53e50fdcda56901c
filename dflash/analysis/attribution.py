"""`dflash explain`: what a change of the rate comes from, with its evidence, and what it does not come from.

Two stretches are held against each other, before and after. Each is taken apart into factors (`factors`), and the logarithm of the change is
shared out among those that changed by Shapley values: the mean effect of changing a factor over all orders in which the factors could have
changed. The shares add up to the whole change, also where two faults hide each other (a slow target behind a slow drafter).

A factor is named as a cause only if
- the rate is lower with certainty (the interval of the change excludes none, and it is at least `SMALLEST_DROP`),
- the factor itself got worse by more than its noise (t-test over blocks of both stretches, p < `LARGEST_P`),
- and it explains at least `LEAST_SHARE` of the change, or would have slowed the run by at least `SMALLEST_EFFECT` on its own.
Waiting is named as the pull policy only where drafters starved beside a pool that held something (rule 1 of `bottleneck`); otherwise it is
reported as not explained. Everything else that got worse is listed as ruled out, with the number that rules it out.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from dflash.analysis.bottleneck import Bottleneck, find_bottleneck, find_stragglers, padding_waste, starved_beside_items
from dflash.analysis.eventlog import EventLog
from dflash.analysis.factors import (
    FACTORS,
    PARTS,
    State,
    capacity,
    factor_value,
    fit_costs,
    measure_blocks,
    measure_state,
    with_factor,
    worse_part,
)
from dflash.analysis.flow import Flow, measure_flow

SMALLEST_DROP = 0.05
SMALLEST_EFFECT = 0.05
LEAST_SHARE = 0.25
LARGEST_P = 0.01
TOLD_APART = 0.01
SMALLEST_VARIANCE = 1e-6
FEWEST_BATCHES = 10
PADDING_EXPLAINS = 0.80
LOW_MEMORY_SHARE = 0.05
MOST_UNEXPLAINED = 0.20


@dataclass(frozen=True)
class Cause:
    """One factor that changed.

    Attributes:
        factor: its name in `factors.FACTORS`.
        name: what it is called in a report.
        share: of the logarithm of the change that it explains; shares of all factors add up to 1.
        alone: what this factor by itself would have done to the rate, as a share (-0.3 = 30% less).
        relief: what mending only this would bring now, as a share of the present rate.
        before, after: the factor's value, in its own unit, a larger one slower.
        p: that it changed by chance.
        evidence: in words, with numbers.
    """

    factor: str
    name: str
    share: float
    alone: float
    relief: float
    before: float
    after: float
    p: float
    evidence: str


@dataclass(frozen=True)
class Attribution:
    """Why the rate changed between two stretches.

    Attributes:
        verdict: "regression", "no regression", "unclear" (no factor explains it, or nothing can be said with confidence) or "too little data".
        before, after: the stretches.
        change: after / before - 1, pauses included; low, high: its 95% interval.
        causes: named, the largest share first.
        ruled_out: factor -> the number that rules it out.
        unexplained: share of the change that no named cause explains.
        padding_closure: predicted change if padding were all, and the share of the drop it explains; None if padding didn't change.
    """

    verdict: str
    sentence: str
    before: Flow | None = None
    after: Flow | None = None
    change: float = 0.0
    low: float = 0.0
    high: float = 0.0
    causes: list[Cause] = field(default_factory=list)
    ruled_out: dict[str, str] = field(default_factory=dict)
    unexplained: float = 0.0
    padding_closure: dict[str, float] | None = None
    bottlenecks: dict[str, Bottleneck] = field(default_factory=dict)
    all_factors: list[Cause] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "before_ktok_s": self.before.ktok_s if self.before else None,
            "after_ktok_s": self.after.ktok_s if self.after else None,
            "change_percent": 100 * self.change,
            "interval_percent": [100 * self.low, 100 * self.high],
            "causes": [vars(cause) for cause in self.causes],
            "ruled_out": self.ruled_out,
            "unexplained": self.unexplained,
            "padding_closure": self.padding_closure,
            "bottleneck": {side: vars(found) for side, found in self.bottlenecks.items()},
        }


def attribute(before_log: EventLog, before: tuple[float, float], after_log: EventLog, after: tuple[float, float]) -> Attribution:
    """Explain the change from one stretch to another, of one run or of two.

    Args:
        before_log, after_log: the runs; the same one for a change inside a run.
        before, after: the stretches, begin and end in seconds since each run's first event.
    """
    old_flow, new_flow = measure_flow(before_log, *before), measure_flow(after_log, *after)
    if old_flow is None or new_flow is None or min(len(old_flow.batches), len(new_flow.batches)) < FEWEST_BATCHES:
        return Attribution(
            "too little data", f"A side has no accounts of its workers' time, or fewer than {FEWEST_BATCHES} batches."
        )
    serial = after_log.engine == "inline"
    fit = fit_costs(old_flow.batches, new_flow.batches)
    old, new = measure_state(old_flow, fit, serial=serial), measure_state(new_flow, fit, serial=serial)
    if old is None or new is None or not (old.ktok_s > 0 and new.ktok_s > 0):
        return Attribution("too little data", "A side took no whole optimiser step.")
    blocks = [measure_blocks(before_log, old_flow, fit, serial=serial), measure_blocks(after_log, new_flow, fit, serial=serial)]
    return _explain(old_flow, new_flow, old, new, blocks, low_memory(after_log, new_flow))


def _explain(
    before: Flow, after: Flow, old: State, new: State, blocks: list[list[State]], memory: str | None
) -> Attribution:  # fmt: skip
    change, low, high = _change(old, new, blocks)
    bottlenecks = {
        "before": find_bottleneck(before, serial=old.serial),
        "after": find_bottleneck(after, serial=new.serial),
    }
    factors = _shares(old, new, blocks, before, after, memory)
    closure = padding_closure(before, after)
    common: dict[str, Any] = {
        "before": before, "after": after, "change": change, "low": low, "high": high, "bottlenecks": bottlenecks,
        "padding_closure": closure, "all_factors": factors,
    }  # fmt: skip
    if not math.isfinite(high):
        words = f"The rate changed by {change:+.0%}, measured over too few stretches to say how sure that is, so nothing is named."
        return Attribution("unclear", words, unexplained=1.0, **common)
    if high >= 0 or change > -SMALLEST_DROP:
        words = f"The rate did not fall: {change:+.0%} [{low:+.0%}, {high:+.0%}]."
        return Attribution("no regression", words, ruled_out=_ruled_out(factors, [], dropped=False), **common)
    causes = [cause for cause in factors if _is_cause(cause, bottlenecks["after"], old, new)]
    named = {cause.factor for cause in causes}
    unexplained = 1 - sum(cause.share for cause in factors if cause.factor in named)
    ruled_out = _ruled_out(factors, causes, dropped=True)
    if not causes:
        words = f"The rate fell by {-change:.0%} [{-high:.0%}, {-low:.0%}], and no single factor explains it: {bottlenecks['after'].evidence}."
        return Attribution("unclear", words, ruled_out=ruled_out, unexplained=1.0, **common)
    why = because([cause.name for cause in causes], unexplained)
    words = f"The rate fell by {-change:.0%} [{-high:.0%}, {-low:.0%}] {why}: {'; '.join(cause.evidence for cause in causes)}."
    return Attribution("regression", words, causes=causes, ruled_out=ruled_out, unexplained=unexplained, **common)


def because(names: list[str], unexplained: float) -> str:
    """ "because of A and B", or how much of the change they explain where that is not most of it."""
    what = " and ".join(names)
    if unexplained <= MOST_UNEXPLAINED:
        return f"because of {what}"
    return f"in part because of {what} ({1 - unexplained:.0%} of the change is explained)"


def _change(old: State, new: State, blocks: list[list[State]]) -> tuple[float, float, float]:
    """The change of the committed rate, and an interval from the rates of the blocks."""
    shift = math.log(new.ktok_s / old.ktok_s)
    logs = [np.log([state.ktok_s for state in side if state.ktok_s > 0]) for side in blocks]
    if min(len(side) for side in logs) < 2:
        return math.expm1(shift), -1.0, math.inf
    variance = sum(float(side.var(ddof=1)) / len(side) for side in logs)
    reach = float(stats.t.ppf(0.975, min(len(side) for side in logs) * 2 - 2)) * math.sqrt(variance)
    return math.expm1(shift), math.expm1(shift - reach), math.expm1(shift + reach)


def _shares(old: State, new: State, blocks: list[list[State]], before: Flow, after: Flow, memory: str | None) -> list[Cause]:
    """Every factor with its Shapley share, the one that slows most first."""
    total = math.log(new.ktok_s / old.ktok_s)
    moved = [name for name in FACTORS if name != "waiting" and _size(old, new, name) > 1e-4]
    part = {name: worse_part(old, new, name) for name in FACTORS}
    values = _shapley(old, new, moved)
    values["waiting"] = math.log(new.waiting / old.waiting)
    found = []
    for name in FACTORS:
        alone = _alone(old, new, name)
        cause = Cause(
            factor=name,
            name=_NAMES[name],
            share=values.get(name, 0.0) / total if total else 0.0,
            alone=alone,
            relief=_alone(new, old, name),
            before=factor_value(old, name, part[name]),
            after=factor_value(new, name, part[name]),
            p=_p(blocks, name, part[name]),
            evidence=_evidence(name, old, new, before, after, memory),
        )
        found.append(cause)
    return sorted(found, key=lambda cause: values.get(cause.factor, 0.0))


def _alone(state: State, other: State, name: str) -> float:
    """What changing only this factor does to the rate of `state`, as a share."""
    if name == "waiting":
        return other.waiting / state.waiting - 1
    return capacity(with_factor(state, other, name)) / capacity(state) - 1


def _size(old: State, new: State, name: str) -> float:
    """How far a factor moved, whichever way."""
    parts: tuple[str | None, ...] = PARTS.get(name, (None,))
    return max(abs(math.log(factor_value(new, name, part) / factor_value(old, name, part))) for part in parts)


def _shapley(old: State, new: State, moved: list[str]) -> dict[str, float]:
    """Shapley values of log capacity over the factors that moved; the smallest ones beyond 10 are changed together first."""
    sizes = {name: _size(old, new, name) for name in moved}
    players = sorted(moved, key=lambda name: -sizes[name])[:10]
    worth: dict[frozenset[str], float] = {}
    for count in range(len(players) + 1):
        for group in itertools.combinations(players, count):
            state = old
            for name in group:
                state = with_factor(state, new, name)
            worth[frozenset(group)] = math.log(capacity(state))
    total = len(players)
    values = dict.fromkeys(players, 0.0)
    for members, value in worth.items():
        weight = math.factorial(len(members) - 1) * math.factorial(total - len(members)) / math.factorial(total) if members else 0.0
        for name in members:
            values[name] += weight * (value - worth[members - {name}])
    return values


def _p(blocks: list[list[State]], name: str, part: str | None) -> float:
    """Welch's t-test of a factor over the blocks, one-sided: that it got worse by chance."""
    sides = [np.array([math.log(factor_value(state, name, part)) for state in side]) for side in blocks]
    sides = [side[np.isfinite(side)] for side in sides]
    if min(len(side) for side in sides) < 2:
        return 1.0
    parts = [max(float(side.var(ddof=1)), SMALLEST_VARIANCE) / len(side) for side in sides]
    degrees = sum(parts) ** 2 / sum(each**2 / (len(side) - 1) for each, side in zip(parts, sides, strict=True))
    return float(stats.t.sf((sides[1].mean() - sides[0].mean()) / math.sqrt(sum(parts)), degrees))


def _is_cause(cause: Cause, bottleneck: Bottleneck, old: State, new: State) -> bool:
    if cause.factor == "waiting" and bottleneck.name != "pull policy":
        return False
    if cause.p >= LARGEST_P or cause.after / cause.before < 1 + TOLD_APART:
        return False
    return cause.alone <= -SMALLEST_EFFECT or (cause.share >= LEAST_SHARE and cause.relief >= SMALLEST_EFFECT)


def _ruled_out(factors: list[Cause], causes: list[Cause], *, dropped: bool) -> dict[str, str]:
    named = {cause.factor for cause in causes}
    found = {}
    for cause in factors:
        if cause.factor in named:
            continue
        change = cause.after / cause.before - 1
        if abs(change) < TOLD_APART:
            found[cause.name] = f"it changed by {change:+.1%}"
        elif cause.alone > -SMALLEST_EFFECT:
            found[cause.name] = f"it changed by {change:+.0%}, which by itself changes the rate by {cause.alone:+.1%}"
        elif dropped:
            found[cause.name] = f"it changed by {change:+.0%}, no more than its noise (p = {cause.p:.2g})"
    return found


def padding_closure(before: Flow, after: Flow) -> dict[str, float] | None:
    """The rate predicted from padding alone, before x (1 - waste after) / (1 - waste before), and the share of the drop that explains."""
    waste = padding_waste(before), padding_waste(after)
    if abs(waste[1] - waste[0]) < TOLD_APART:
        return None
    predicted = before.ktok_s * (1 - waste[1]) / (1 - waste[0])
    drop = math.log(before.ktok_s / after.ktok_s)
    explained = math.log(before.ktok_s / predicted) / drop if drop > 0 else float("nan")
    return {"waste_before": waste[0], "waste_after": waste[1], "predicted_ktok_s": predicted, "explained": explained}


def low_memory(log: EventLog, flow: Flow) -> str | None:
    """What the system samples of a stretch say about memory running out; None if nothing."""
    inside = [
        event for event in log.rare["system"] if flow.begin <= event["at"] <= flow.end and event.get("memory_available_bytes")
    ]
    if not inside:
        return None
    least = min(inside, key=lambda event: event["memory_available_bytes"])
    total = least["memory_available_bytes"] + (least.get("memory_used_bytes") or 0)
    if least["memory_available_bytes"] >= LOW_MEMORY_SHARE * total:
        return None
    return f"only {least['memory_available_bytes'] / 2**30:.1f} GiB of {total / 2**30:.0f} GiB memory were free"


_NAMES = {
    "target speed": "a slower target",
    "padding": "padding",
    "length mix": "a different length mix of the data",
    "drafter speed": "a slower drafter",
    "metrics": "the cost of metrics",
    "prefetch speed": "slower prefetch",
    "hand-over": "memory pressure or transport (hand-over of features)",
    "target straggler": "a straggling target",
    "drafter straggler": "a straggling drafter",
    "optimiser step": "slower optimiser steps",
    "evaluation": "evaluation pauses",
    "checkpoint": "checkpoints",
    "compile": "compilation",
    "workers": "fewer workers",
    "waiting": "the pull policy",
}


def _evidence(name: str, old: State, new: State, before: Flow, after: Flow, memory: str | None) -> str:
    ratio = factor_value(new, name) / factor_value(old, name) - 1
    match name:
        case "padding":
            return f"padding was {padding_waste(before):.0%} of all tokens and is {padding_waste(after):.0%}"
        case "length mix":
            lengths = f"{_length(before):,.0f} to {_length(after):,.0f} tokens"
            costs = [new.costs[name] / old.costs[name] - 1 for name in ("target mix", "drafter mix")]
            return f"conversations went from {lengths}, which makes a token cost the target {costs[0]:+.0%} and the drafter {costs[1]:+.0%}"
        case "target straggler" | "drafter straggler":
            kind = name.partition(" ")[0]
            slow = {worker: share for worker, share in find_stragglers(after).items() if worker.startswith(kind)}
            which = (
                ", ".join(f"{worker} at {share:.0%} of the fastest" for worker, share in slow.items())
                or "the slowest worker fell behind"
            )
            return which
        case "hand-over":
            shares = [max(flow.share("target", "copy"), flow.share("drafter", "copy")) for flow in (before, after)]
            return f"workers spend {shares[1]:.0%} of their time handing over, was {shares[0]:.0%}" + (
                f"; {memory}" if memory else ""
            )
        case "evaluation" | "checkpoint" | "compile":
            return f"{name} takes {new.pauses[name]:.0%} of the time, was {old.pauses[name]:.0%}"
        case "optimiser step":
            return f"optimiser steps take {new.pauses['step']:.0%} of the time, was {old.pauses['step']:.0%}"
        case "waiting":
            return (
                f"drafters starved {after.share('drafter', 'starved'):.0%} of the time (was {before.share('drafter', 'starved'):.0%}), "
                f"{starved_beside_items(after):.0%} beside a pool that held items"
            )
        case "workers":
            return f"workers were {old.counts} and are {new.counts}"
        case "metrics":
            return f"metrics add {new.costs['metrics'] - 1:.0%} to a drafter's time, was {old.costs['metrics'] - 1:.0%}"
    stage = {"target speed": "the target's seconds for the same batch", "drafter speed": "the drafter's seconds for the same batch"}
    return f"{stage.get(name, 'prefetch seconds a token')} went up by {ratio:.0%}"


def _length(flow: Flow) -> float:
    """Token-weighted mean length of the conversations drafted."""
    return float(flow.batches["length_squared"].sum()) / max(float(flow.batches["tokens"].sum()), 1.0)
