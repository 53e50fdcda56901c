"""What a live change of a setting would bring, before it is sent: the run simulated for a short while with the old and the new value.

Costs are those the config names (the record's machine when none were calibrated), so only the RATIO of the two rates means something
on another machine, and that is what is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dflash.batching.plan import planned_efficiency
from dflash.config import RunConfig, build_config
from dflash.errors import RefusedInput
from dflash.predict.plans import workload_of
from dflash.predict.simulation import simulate
from dflash.predict.workload import Workload

MOST_SAMPLES = 60_000
HOURS = 0.5


@dataclass(frozen=True)
class ChangeEffect:
    """A setting's old and new value, and what the new one would bring.

    Attributes:
        key, old, new: the setting.
        rate_ratio: predicted Ktok/s, new / old; None when either deadlocks.
        deadlock: which worker would wait for what, when the new one deadlocks.
        padding_efficiency: (old, new) of the plan.
        vr: (old, new), evenness of 32 batches as they were committed in the simulation; None where it can't be measured.
    """

    key: str
    old: Any
    new: Any
    rate_ratio: float | None
    deadlock: str | None
    padding_efficiency: tuple[float, float]
    vr: tuple[float | None, float | None]

    def sentence(self) -> str:
        """In words."""
        if self.deadlock:
            return f"predicted: a deadlock ({self.deadlock})"
        parts = [] if self.rate_ratio is None else [f"rate {100 * (self.rate_ratio - 1):+.0f}%"]
        old, new = self.padding_efficiency
        parts.append(f"padding efficiency {100 * old:.1f}% → {100 * new:.1f}%")
        if None not in self.vr:
            parts.append("mix (vr at 32) {:.3g} → {:.3g}".format(*self.vr))
        return "predicted: " + ", ".join(parts)


def changed(config: RunConfig, key: str, value: Any) -> RunConfig:
    """The config with one setting changed.

    Raises:
        RefusedInput: no such key, or a value out of bounds.
    """
    section, _, name = key.partition(".")
    tree = config.model_dump(mode="json")
    if name not in tree.get(section, {}):
        raise RefusedInput(f"{key}: no such setting")
    tree[section][name] = value
    return build_config(tree, place=key)


def effect_of(config: RunConfig, key: str, value: Any, workload: Workload) -> ChangeEffect:
    """Plan and simulate both, on at most 60,000 of the samples.

    Raises:
        RefusedInput: a setting that doesn't fit the lengths.
    """
    new_config = changed(config, key, value)
    lengths = workload.lengths[workload.kept]
    lengths = lengths[:: max(len(lengths) // MOST_SAMPLES, 1)]
    rates: list[float] = []
    efficiencies: list[float] = []
    mixes: list[float | None] = []
    deadlock = None
    for each in (config, new_config):
        bare = each.model_copy(update={"data": each.data.model_copy(update={"holdout": 0})})
        ran = simulate(bare, hours=HOURS, workload=workload_of(lengths, bare, workload.source))
        rates.append(ran.ktok_s)
        deadlock = ran.deadlock
        efficiencies.append(planned_efficiency(lengths, each.batching, epoch=0))
        mixes.append(ran.mix.get("vr", {}).get("32"))
    section, _, name = key.partition(".")
    return ChangeEffect(
        key=key,
        old=config.model_dump(mode="json")[section][name],
        new=new_config.model_dump(mode="json")[section][name],
        rate_ratio=rates[1] / rates[0] if all(rates) else None,
        deadlock=deadlock,
        padding_efficiency=(efficiencies[0], efficiencies[1]),
        vr=(mixes[0], mixes[1]),
    )
