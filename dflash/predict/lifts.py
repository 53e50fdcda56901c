"""What holds a run back: each resource is made 20% larger or faster in turn, and the run is simulated again.

The same seed draws the same noise for the same job number, so that differences of a few tenths of a percent are real. A resource whose 20% bring
nothing is not the bottleneck, however busy it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dflash.config import RunConfig
from dflash.predict.costs import ResolvedCosts, resolve_costs
from dflash.predict.simulation import Simulation, simulate
from dflash.predict.workload import Workload, load_workload

MORE = 1.2
_WORTH_NAMING = 0.01
RESOURCES = {
    "target_speed": "each target 20% faster",
    "drafter_speed": "each drafter 20% faster",
    "prefetch_speed": "reading 20% faster",
    "step_speed": "optimiser step and exchange of gradients 20% faster",
    "copy_speed": "handing features over 20% faster",
    "pool_capacity": "room in the pool for 20% more items and bytes",
    "prefetch_depth": "20% more batches read ahead",
    "cores": "20% more CPU cores (one, at least)",
}
"""Resources and what 20% more of each means."""


@dataclass(frozen=True)
class Lift:
    """What 20% more of one resource brings: Ktok/s then, and the gain relative to now (0.2 = 20%)."""

    resource: str
    meaning: str
    ktok_s: float
    gain: float


def simulate_lifts(
    config: RunConfig,
    now: Simulation,
    *,
    hours: float | None = None,
    workload: Workload | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> list[Lift]:
    """Simulate 20% more of each resource that the costs know of, the most useful first.

    Args:
        config: the run.
        now: its simulation as it is.
        hours: as `simulate`.
        workload: as `simulate`.
        told: is given each resource before it is tried.
    """
    workload = workload or load_workload(config)
    costs = resolve_costs(config)
    lifts = []
    for resource, meaning in RESOURCES.items():
        changed = _with_more(resource, config, costs)
        if changed is None:
            continue
        told(meaning)
        then = simulate(changed[0], hours=hours, workload=workload, costs=changed[1])
        gain = then.ktok_s / now.ktok_s - 1 if now.ktok_s else 0.0
        lifts.append(Lift(resource, meaning, then.ktok_s, gain))
    return sorted(lifts, key=lambda lift: -lift.ktok_s)


def explain_bottleneck(now: Simulation, lifts: list[Lift]) -> str:
    """One sentence: what holds the run back, and what would lift it."""
    if now.deadlock:
        return "nothing moves: " + now.deadlock
    if not lifts:
        return f"{now.bottleneck} are busiest; nothing was tried larger"
    useful = [lift for lift in lifts if lift.gain >= _WORTH_NAMING]
    if not useful:
        return f"{now.bottleneck} are busiest, and no resource alone, made 20% larger, lifts the rate by 1%"
    best = useful[0]
    return f"{now.bottleneck} are busiest; {best.meaning} would lift the rate by {best.gain:.0%} to {best.ktok_s:.1f} Ktok/s"


def _with_more(resource: str, config: RunConfig, costs: ResolvedCosts) -> tuple[RunConfig, ResolvedCosts] | None:
    """The run with 20% more of one resource; None where the costs don't know of it."""
    model = costs.model
    match resource:
        case "target_speed":
            return config, replace(costs, model=model.faster("target", MORE))
        case "drafter_speed":
            return config, replace(costs, model=model.faster("drafter", MORE))
        case "prefetch_speed" if model.prefetch_fixed or model.prefetch_per_token:
            return config, replace(costs, model=model.faster("prefetch", MORE))
        case "step_speed" if model.step_fixed or model.step_per_drafter:
            return config, replace(costs, model=model.faster("step", MORE))
        case "copy_speed" if model.copy_fixed or model.copy_bytes_per_second:
            return config, replace(costs, model=model.faster("copy", MORE))
        case "cores" if costs.cores:
            return config, replace(costs, cores=_more(costs.cores))
        case "pool_capacity":
            pool = config.pool
            more = {"capacity_items": _more(pool.capacity_items), "capacity_bytes": _more(pool.capacity_bytes)}
            return config.model_copy(update={"pool": pool.model_copy(update=more)}), costs
        case "prefetch_depth":
            more = {"prefetch": _more(config.pipeline.prefetch)}
            return config.model_copy(update={"pipeline": config.pipeline.model_copy(update=more)}), costs
    return None


def _more(count: int) -> int:
    return max(count + 1, round(count * MORE))
