"""Advice: the settings that would train fastest at a required mix, within the memory there is.

Searched: strategy (jittered, packed, bucketed with 6, 12 or 32 optimal buckets, shuffled, sorted; stratified or not), the split of the
workers into targets and drafters, and the anchor budget. Combinations are ranked by what their slower side allows, on 30,000 lengths
that stand for all; the best of each kind are then simulated on the whole data set, and the three fastest that hold the mix are named.
`sorted` is left out when there is more than one epoch, since its batches are the same in each. The stratified window is the optimiser's
own: any other loses the mix. The pool is pulled in plan order, with as many items as memory holds.

Fewer anchors make a step cheaper and teach less by it, so the budget is never lowered below `least_anchors`; a speed-up bought that way
is named as such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dflash.batching.boundaries import optimal_boundaries
from dflash.batching.figures import plan_figures
from dflash.batching.plan import plan_epoch
from dflash.config import RunConfig, build_config
from dflash.errors import RefusedInput
from dflash.pipeline.jobs import PlannedBatch, Produce, Train
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.plans import PlanStream
from dflash.predict.costs import ResolvedCosts, resolve_costs
from dflash.predict.simulation import Simulation, simulate
from dflash.predict.workload import Workload, load_workload

SEARCH_SAMPLES = 30_000
MIX_WINDOW = "32"
BEST = 3
_KINDS = 8
_BUCKETS = (6, 12, 32)


@dataclass(frozen=True)
class Suggestion:
    """One way to run.

    Attributes:
        ktok_s: simulated.
        gain: over the config as it is (0.2 = 20%).
        vr: evenness of the plan's windows of 32 batches, 1 = as random.
        reason: one sentence.
        patch: what to hand to `train --set`.
    """

    ktok_s: float
    gain: float
    vr: float | None
    reason: str
    patch: list[str]


@dataclass(frozen=True)
class Advice:
    """The config as it is, and the best suggestions, fastest first; none when nothing holds the mix."""

    now: Simulation
    now_vr: float | None
    mix: float
    suggestions: list[Suggestion]
    tried: int


@dataclass(frozen=True)
class _Candidate:
    """Settings with the rate that their slower side allows."""

    patch: tuple[str, ...]
    kind: str
    targets: int
    drafters: int
    anchors: int
    ktok_s: float
    target_ktok_s: float
    drafter_ktok_s: float
    efficiency: float
    vr: float | None


def advise(
    config: RunConfig,
    *,
    workload: Workload | None = None,
    mix: float = 0.2,
    least_anchors: int | None = None,
    hours: float | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Search for faster settings.

    Args:
        config: the run as it is, with its costs.
        workload: its samples; None: as the config says.
        mix: the largest `vr` of windows of 32 batches that is acceptable.
        least_anchors: anchors a conversation, at least; None: the config's, so that the budget is left alone.
        hours: simulated for each of the best.
        told: is given what is being worked on.

    Raises:
        RefusedInput: settings or costs that can't be used; memory that holds no batch a target.
    """
    workload = workload or load_workload(config)
    costs = resolve_costs(config)
    told("the config as it is")
    now = simulate(config, hours=hours, workload=workload, costs=costs)
    now_vr = _planned_vr(config, workload)
    candidates = _search(config, _thinned(workload), costs, least_anchors or config.drafter.anchors)
    holding = [each for each in candidates if each.vr is not None and each.vr <= mix]
    best: dict[tuple[str, int], _Candidate] = {}
    for each in sorted(holding, key=lambda each: -each.ktok_s):
        best.setdefault((each.kind, each.targets), each)
    found = []
    for candidate in list(best.values())[:_KINDS]:
        told(candidate.kind)
        patch = [*candidate.patch, *_pool_patch(config, workload, candidate)]
        patched = patched_config(config, patch)
        run = simulate(patched, hours=hours, workload=workload, costs=costs)
        vr = _planned_vr(patched, workload)
        if not run.deadlock and vr is not None and vr <= mix:
            gain = run.ktok_s / now.ktok_s - 1 if now.ktok_s else float("inf")
            found.append(Suggestion(run.ktok_s, gain, vr, _reason(config, candidate, run), patch))
    found.sort(key=lambda each: -each.ktok_s)
    return Advice(now, now_vr, mix, found[:BEST], len(candidates))


def patched_config(config: RunConfig, patch: list[str]) -> RunConfig:
    """The config with a suggestion's patch."""
    return build_config(config.model_dump(mode="json"), patch, place="advice")


def _search(config: RunConfig, sample: Workload, costs: ResolvedCosts, least_anchors: int) -> list[_Candidate]:
    workers = config.pipeline.targets + config.pipeline.drafters
    splits = [(targets, workers - targets) for targets in range(1, workers)]
    budgets = [each for each in (config.drafter.anchors >> halvings for halvings in range(3)) if each >= least_anchors]
    found = []
    for kind, settings in _batchings(config, sample):
        changed = patched_config(config, settings)
        plan = plan_epoch(sample.lengths, changed.batching, epoch=0, window=changed.window)
        figures = plan_figures(plan, sample.lengths, changed.batching)
        batches = PlanStream(sample.lengths, sample.kept, changed, Ledger()).describe_plan(plan)
        target = sum(costs.model.seconds(Produce(worker=0, batch=batch)) for batch in batches)
        for anchors in budgets:
            drafter = _drafter_seconds(batches, sample, anchors, costs)
            for targets, drafters in splits:
                step = costs.model.step_fixed + costs.model.step_per_drafter * (drafters - 1)
                of_targets = target / targets
                of_drafters = drafter / drafters + step * len(batches) / config.optim.accumulate
                of_cores = (target + drafter) / costs.cores if costs.cores else 0.0
                found.append(
                    _Candidate(
                        patch=(*settings, *_topology_patch(config, targets, drafters, anchors)),
                        kind=kind,
                        targets=targets,
                        drafters=drafters,
                        anchors=anchors,
                        ktok_s=_ktok(sample, max(of_targets, of_drafters, of_cores)),
                        target_ktok_s=_ktok(sample, of_targets),
                        drafter_ktok_s=_ktok(sample, of_drafters),
                        efficiency=figures.padding_efficiency,
                        vr=figures.vr[MIX_WINDOW],
                    )
                )
    return found


def _drafter_seconds(batches: list[PlannedBatch], sample: Workload, anchors: int, costs: ResolvedCosts) -> float:
    blocks = sample.blocks
    jobs = (Train(worker=0, batch=batch, anchors=anchors, with_metrics=False) for batch in batches)
    return sum(costs.model.seconds(job, blocks.of(job.batch.samples, anchors)) for job in jobs)


def _topology_patch(config: RunConfig, targets: int, drafters: int, anchors: int) -> list[str]:
    patch = [] if targets == config.pipeline.targets else [f"pipeline.targets={targets}", f"pipeline.drafters={drafters}"]
    return patch if anchors == config.drafter.anchors else [*patch, f"drafter.anchors={anchors}"]


def _ktok(sample: Workload, seconds: float) -> float:
    return sample.tokens / 1_000 / max(seconds, 1e-12)


def _batchings(config: RunConfig, sample: Workload) -> list[tuple[str, list[str]]]:
    """Ways to put batches together, by name, as patches."""
    window = [] if config.batching.window is None else ["batching.window=null"]
    ways = [
        (f"{strategy}, {order}", [f"batching.strategy={strategy}", f"batching.order={order}", *window])
        for strategy in ("jittered", "packed", "shuffled", *(["sorted"] if config.optim.epochs == 1 else []))
        for order in ("stratified", "random")
    ]
    distinct = int(np.unique(sample.lengths).size)
    for buckets in (each for each in _BUCKETS if each <= distinct):
        boundaries = optimal_boundaries(
            sample.lengths, buckets, limit=config.batching.boundaries[-1] if config.batching.boundaries else None
        )
        cut = f"batching.boundaries={boundaries}"
        ways.append(
            (f"{buckets} optimal buckets, stratified", ["batching.strategy=bucketed", "batching.order=stratified", cut, *window])
        )
    return ways


def _thinned(workload: Workload) -> Workload:
    """Every n-th sample by length, so that a plan of them pads as one of all does, nearly."""
    kept = workload.kept
    order = kept[np.argsort(workload.lengths[kept], kind="stable")]
    if order.size > SEARCH_SAMPLES:
        order = order[((np.arange(SEARCH_SAMPLES) + 0.5) * (order.size / SEARCH_SAMPLES)).astype(np.int64)]
    return Workload(
        workload.lengths[order],
        np.arange(order.size),
        workload.supervised[order],
        workload.feature_bytes_per_token,
        workload.source,
    )


def _planned_vr(config: RunConfig, workload: Workload) -> float | None:
    plan = plan_epoch(workload.lengths, config.batching, epoch=0, window=config.window, sample_ids=workload.kept)
    return plan_figures(plan, workload.lengths, config.batching).vr[MIX_WINDOW]


def _pool_patch(config: RunConfig, workload: Workload, candidate: _Candidate) -> list[str]:
    """Plan order, and as many items as memory holds (none of the config's is given up unless memory asks for it)."""
    item_bytes = config.batching.token_budget * workload.feature_bytes_per_token
    holds = config.pool.capacity_bytes // item_bytes
    if holds < candidate.targets:
        raise RefusedInput(
            f"pool.capacity_bytes={config.pool.capacity_bytes:,} holds {holds} full batches of {item_bytes:,} bytes, fewer than the "
            f"{candidate.targets} targets make at a time; raise it, or lower batching.token_budget"
        )
    wanted = min(max(config.pool.capacity_items, 2 * (candidate.targets + candidate.drafters)), holds)
    patch = [] if config.pool.policy == "oldest" else ["pool.policy=oldest"]
    return patch if wanted == config.pool.capacity_items else [*patch, f"pool.capacity_items={wanted}"]


def _reason(config: RunConfig, candidate: _Candidate, run: Simulation) -> str:
    padding = "no padding" if candidate.efficiency > 0.999 else f"{1 - candidate.efficiency:.1%} padding"
    words = f"{candidate.kind}: {padding}"
    if candidate.targets != config.pipeline.targets:
        words += (
            f"; {candidate.targets} targets to {candidate.drafters} drafters balance {candidate.target_ktok_s:.1f} against "
            f"{candidate.drafter_ktok_s:.1f} Ktok/s"
        )
    if candidate.anchors != config.drafter.anchors:
        words += f"; {candidate.anchors} anchors instead of {config.drafter.anchors}, which teach less a conversation"
    if candidate.kind.startswith("packed"):
        words += "; needs a target that packs (flash_attention_2), others pad up to an eighth"
    return f"{words}; {run.bottleneck} are busiest"
