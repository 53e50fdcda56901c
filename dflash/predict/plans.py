"""The what-if table: plans of one data set side by side, what each costs and how it mixes.

A plans file is YAML: a name and what differs from `common` for each plan, every setting as in a run's config.

    common:                       # optional; the machine and what all plans share
      pipeline: {targets: 5, drafters: 3}
      simulation: {costs: costs.yaml}
    plans:
      sorted:    {batching: {strategy: sorted, order: random}}
      jittered:  {batching: {strategy: jittered, order: stratified}, pool: {policy: oldest}}

Each plan is planned whole for two epochs (padding, fill, mix, reuse) and simulated for a while (Ktok/s, days). A plan is on the frontier when no
other is both faster and at least as even: those are the only ones worth choosing from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from numpy.typing import NDArray

from dflash.batching.figures import WINDOWS, plan_figures
from dflash.batching.plan import plan_epoch
from dflash.config import RunConfig, build_config
from dflash.errors import RefusedInput
from dflash.pipeline.plans import split_holdout
from dflash.predict.simulation import simulate
from dflash.predict.workload import Workload, feature_bytes_per_token

MIX_WINDOW = "32"
_EMPTY: dict[str, dict[str, Any]] = {
    "data": {"path": "-"},
    "target": {"path": "-"},
    "pipeline": {"engine": "simulated", "targets": 5, "drafters": 3, "prefetch": 64, "prefetch_workers": 4},
}
"""What a plans file leaves out: the field record's topology."""


@dataclass(frozen=True)
class PlanRow:
    """One plan of the table.

    Attributes:
        plan: its name.
        strategy, order, policy: what it is.
        padding_efficiency, fill, batches, max_padded_tokens, membership_reuse, vr, chi: as `dflash plan`.
        ktok_s, eta_days, bottleneck, deadlock: as `dflash simulate`.
        frontier: no other plan is faster and at least as even (by vr at 32).
    """

    plan: str
    strategy: str
    order: str
    policy: str
    padding_efficiency: float
    fill: float
    batches: int
    max_padded_tokens: int
    membership_reuse: float | None
    vr: dict[str, float | None]
    chi: dict[str, float | None]
    ktok_s: float
    eta_days: float | None
    bottleneck: str
    deadlock: str | None
    frontier: bool = False


def read_plans(path: str | Path) -> dict[str, RunConfig]:
    """The plans of a file, by name.

    Raises:
        RefusedInput: it can't be read, holds no plans, or a setting is unknown or refused (named with the plan).
    """
    place = Path(path)
    try:
        tree = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RefusedInput(f"{place}: can't be read as a plans file ({error})") from error
    plans = tree.get("plans") if isinstance(tree, dict) else None
    if not isinstance(plans, dict) or not plans:
        raise RefusedInput(f"{place}: holds no plans; expected `plans:` with a name and its settings for each, as in\n" + EXAMPLE)
    unknown = sorted(set(tree) - {"plans", "common"})
    if unknown:
        raise RefusedInput(f"{place}: unknown key {unknown[0]}; a plans file has common and plans")
    common = _mapping(tree.get("common") or {}, place, "common")
    return {str(name): _config(common, _mapping(each or {}, place, name), f"{place}: plan {name}") for name, each in plans.items()}


EXAMPLE = """    plans:
      sorted: {batching: {strategy: sorted, order: random}}
      jittered: {batching: {strategy: jittered, order: stratified}}"""


def compare_plans(
    lengths: NDArray[np.int32],
    plans: dict[str, RunConfig],
    *,
    source: str = "lengths",
    hours: float | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> list[PlanRow]:
    """Plan and simulate each, in the order given.

    Args:
        lengths: tokens of each sample.
        plans: configs by name.
        source: where the lengths are from, in words.
        hours: simulated for each; None: as its config says.
        told: is given each plan's name before it is worked on.

    Raises:
        RefusedInput: settings that don't fit the lengths, named with the plan.
    """
    rows = []
    for name, config in plans.items():
        told(name)
        try:
            rows.append(_row(name, config, workload_of(lengths, config, source), hours))
        except RefusedInput as error:
            raise RefusedInput(f"plan {name}: {error}") from error
    return mark_frontier(rows)


def workload_of(lengths: NDArray[np.int32], config: RunConfig, source: str) -> Workload:
    """The workload of a run on these lengths."""
    kept, _ = split_holdout(len(lengths), config.data.holdout, config.optim.seed)
    supervised = np.rint(lengths * config.simulation.loss_share).astype(np.int64)
    return Workload(lengths, kept, supervised, feature_bytes_per_token(config), source)


def mark_frontier(rows: list[PlanRow]) -> list[PlanRow]:
    """The rows with `frontier` set: Ktok/s up, vr at 32 down; a plan without a mix is never on it."""

    def beaten(row: PlanRow) -> bool:
        mine = row.vr.get(MIX_WINDOW)
        if mine is None or not row.ktok_s:
            return True
        rivals = ((other.ktok_s, other.vr.get(MIX_WINDOW)) for other in rows if other is not row)
        return any(
            mix is not None and speed >= row.ktok_s and mix <= mine and (speed > row.ktok_s or mix < mine) for speed, mix in rivals
        )

    return [PlanRow(**{**vars(row), "frontier": not beaten(row)}) for row in rows]


def plan_frame(rows: list[PlanRow]) -> pl.DataFrame:
    """The table as a frame: vr and chi as columns vr_1 ... chi_32."""
    flat = []
    for row in rows:
        values = asdict(row)
        for name in ("vr", "chi"):
            figures = values.pop(name)
            values |= {f"{name}_{window}": figures.get(str(window)) for window in WINDOWS}
        flat.append(values)
    return pl.from_dicts(flat, infer_schema_length=None) if flat else pl.DataFrame()


def _row(name: str, config: RunConfig, workload: Workload, hours: float | None) -> PlanRow:
    plan, following = (
        plan_epoch(workload.lengths, config.batching, epoch=epoch, window=config.window, sample_ids=workload.kept)
        for epoch in (0, 1)
    )
    figures = plan_figures(plan, workload.lengths, config.batching, following)
    simulated = simulate(config, hours=hours, workload=workload)
    return PlanRow(
        plan=name,
        strategy=config.batching.strategy,
        order=config.batching.order,
        policy=config.pool.policy,
        padding_efficiency=figures.padding_efficiency,
        fill=figures.fill,
        batches=figures.batches,
        max_padded_tokens=figures.max_padded_tokens,
        membership_reuse=figures.membership_reuse,
        vr=figures.vr,
        chi=figures.chi,
        ktok_s=simulated.ktok_s,
        eta_days=simulated.eta_days,
        bottleneck=simulated.bottleneck,
        deadlock=simulated.deadlock,
    )


def _config(common: dict[str, Any], own: dict[str, Any], place: str) -> RunConfig:
    merged: dict[str, Any] = {section: dict(values) for section, values in _EMPTY.items()}
    for layer in (common, own):
        for section, values in layer.items():
            merged[section] = {**merged.get(section, {}), **values} if isinstance(values, dict) else values
    return build_config(merged, place=place)


def _mapping(value: Any, place: Path, name: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RefusedInput(f"{place}: {name} is not a mapping of settings, as in\n{EXAMPLE}")
    return value
