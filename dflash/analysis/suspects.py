"""What was changed, ranked by whether it can have caused what was found.

Suspects are the settings that differ between two runs, the changes made live, code, environment and data. Each setting acts on certain factors
of the rate (`factors.FACTORS`); one that acts on a named cause ranks first, the more of the drop that cause explains the higher; code and
environment can act on any; a setting that acts on none of them ranks last, with the words "can't have".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash.analysis.attribution import Cause
from dflash.analysis.comparison import Comparison
from dflash.analysis.eventlog import Event

_ACTS_ON: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("pool.", ("waiting",)),
    ("batching.strategy", ("padding", "length mix", "waiting")),
    ("batching.order", ("waiting", "length mix")),
    ("batching.seed", ()),
    ("batching.window", ("waiting",)),
    ("batching.", ("padding", "length mix", "waiting")),
    ("telemetry.metrics_every", ("metrics",)),
    ("telemetry.", ()),
    ("evaluation.", ("evaluation",)),
    ("data.holdout", ("evaluation",)),
    ("data.", ("length mix", "padding")),
    ("checkpoint.", ("checkpoint",)),
    ("target.", ("target speed", "hand-over")),
    ("drafter.compile", ("compile", "drafter speed")),
    ("drafter.", ("drafter speed", "metrics", "length mix", "hand-over")),
    ("pipeline.prefetch", ("prefetch speed",)),
    ("pipeline.", ("workers", "target speed", "drafter speed", "hand-over", "optimiser step")),
    ("optim.accumulate", ("optimiser step", "waiting")),
    ("optim.", ()),
)  # fmt: skip
_ANY = ("code", "environment")


@dataclass(frozen=True)
class Suspect:
    """One thing that was changed.

    Attributes:
        what: "setting", "live change", "code", "environment" or "data".
        key: what exactly.
        old, new: its values.
        verdict: "can have caused it", "may have" (acts on anything) or "can't have".
        explains: share of the drop that the causes it acts on explain; None where nothing was attributed.
        when: for a live change, the step and who; empty otherwise.
    """

    what: str
    key: str
    old: Any
    new: Any
    verdict: str
    explains: float | None
    when: str = ""


def rank_suspects(comparison: Comparison | None, changes: Sequence[Event], causes: Sequence[Cause]) -> list[Suspect]:
    """Everything that was changed, the likeliest first.

    Args:
        comparison: of the two runs; None within one run.
        changes: accepted `change` events of the stretch around the change.
        causes: those named by the attribution.
    """
    shares = {cause.factor: max(cause.share, 0.01) for cause in causes}
    found = [
        _suspect("live change", str(event.get("key")), event.get("old"), event.get("new"), shares, _when(event))
        for event in changes
    ]
    if comparison is not None:
        found += [_suspect("setting", each.key, each.old, each.new, shares) for each in comparison.config]
        found += [_suspect("data", each.key, each.old, each.new, shares) for each in comparison.data if each.key != "batches"]
        found += [_suspect("environment", each.key, each.old, each.new, shares) for each in comparison.environment]
        if comparison.code:
            found.append(_suspect("code", "commit", *comparison.commits, shares))
    order = {"can have caused it": 0, "may have": 1, "can't have": 2}
    return sorted(found, key=lambda suspect: (order[suspect.verdict], -(suspect.explains or 0.0), _directness(suspect, shares)))


def _directness(suspect: Suspect, shares: dict[str, float]) -> int:
    """Place of the first named cause among the factors the setting acts on: its main effect comes first."""
    acts = _acts_on(suspect.key)
    return next((place for place, factor in enumerate(acts) if factor in shares), len(acts))


def _acts_on(key: str) -> tuple[str, ...]:
    return next((factors for prefix, factors in _ACTS_ON if key.startswith(prefix)), ())


def _suspect(what: str, key: str, old: Any, new: Any, shares: dict[str, float], when: str = "") -> Suspect:
    if what in _ANY or not shares:
        return Suspect(what, key, old, new, "may have", None, when)
    acts = ("length mix", "padding") if what == "data" else _acts_on(key)
    explains = sum(shares.get(factor, 0.0) for factor in acts)
    return Suspect(what, key, old, new, "can have caused it" if explains > 0 else "can't have", explains, when)


def _when(event: Event) -> str:
    return f"step {event.get('step')}, by {event.get('who', 'unknown')}"
