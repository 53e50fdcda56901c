"""What the rate would have been without the change, by the simulator: the coordinator itself, with the seconds a batch that the run measured.

The cost model is read off the batches of the stretch before (the same fit that the attribution uses), the settings are the run's own, and
those that can have caused the change are set back to what they were. Both are simulated, so that what the simulator leaves out is left out of
both. Only changed settings can be undone this way: a slower device can't, and for that the attribution's own estimate stands.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash.analysis.factors import fit_costs
from dflash.config import RunConfig, build_config
from dflash.errors import DFlashError
from dflash.pipeline.engines.simulated import CostModel
from dflash.predict.costs import ResolvedCosts
from dflash.predict.simulation import simulate
from dflash.predict.workload import load_workload
from dflash.report.postmortem import PostMortem

HOURS = 1.0


@dataclass(frozen=True)
class Counterfactual:
    """Simulated Ktok/s with the settings as they are and with `undone` (section.key=old value) set back."""

    with_change: float
    without_change: float
    undone: list[str]
    lengths: str


def simulate_without(post: PostMortem) -> Counterfactual | None:
    """Simulate the run with and without the settings that can have caused the change; None where that can't be done."""
    guilty = [each for each in post.suspects if each.what in ("setting", "live change") and each.verdict == "can have caused it"]
    found = post.attribution
    if not guilty or found is None or found.before is None or found.after is None:
        return None
    try:
        config = post.run.config()
        tree = config.model_dump(mode="json")
        for suspect in guilty:
            section, _, key = suspect.key.partition(".")
            tree[section][key] = suspect.old
        before = build_config(tree, place="without the change")
        costs = _measured(post, config)
        workload = load_workload(config)
        rates = [simulate(each, hours=HOURS, workload=workload, costs=costs).ktok_s for each in (config, before)]
    except (DFlashError, KeyError):
        return None
    return Counterfactual(rates[0], rates[1], [f"{each.key}={each.old}" for each in guilty], workload.source)


def _measured(post: PostMortem, config: RunConfig) -> ResolvedCosts:
    """The costs of the stretch before."""
    assert post.attribution is not None
    assert post.attribution.before is not None
    assert post.attribution.after is not None
    flow = post.attribution.before
    fit = fit_costs(flow.batches, post.attribution.after.batches)
    tokens = float(flow.batches["tokens"].sum())
    model = CostModel(
        prefetch_per_token=float(flow.batches["prefetch_seconds"].sum()) / tokens,
        target_per_padded_token=float(fit.target[0]),
        target_per_length_squared=float(fit.target[1]),
        drafter_per_token=float(fit.drafter[0]),
        drafter_per_row=float(fit.drafter[1]),
        drafter_metrics=fit.metrics,
        step_fixed=flow.step_share * flow.seconds / max(flow.steps, 1),
    )
    return ResolvedCosts(model, config.simulation.cores, f"measured on {post.before_log.run.name}")
