"""Strategies and orders side by side on the user's own lengths: what each costs, how it mixes, what the pool makes of it, what is advised.

Planning and simulating run on a thread, one plan after the other, and the table fills as they come. Every figure is one that `dflash
compare-plans`, `simulate` or `advise` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import ipywidgets as widgets
import numpy as np
import polars as pl

from dflash.batching.boundaries import quantile_boundaries
from dflash.batching.explore import counted, length_frame
from dflash.batching.plan import plan_epoch
from dflash.charts.explore import batch_strip, class_mix, pool_by_policy
from dflash.charts.plans import speed_against_mix
from dflash.charts.style import empty_figure
from dflash.config import Policy, RunConfig, build_config
from dflash.predict.advice import advise
from dflash.predict.plans import PlanRow, compare_plans, mark_frontier, plan_frame, workload_of
from dflash.predict.quick import record_config
from dflash.predict.simulation import simulate
from dflash.telemetry.console import format_eta
from workbench.chart import Chart
from workbench.tables import table_html
from workbench.view import View, button, shows_errors
from workbench.worker import Worker

MOST_SAMPLES = 120_000
HOURS = 1.0
PLANS: dict[str, dict[str, Any]] = {
    "sorted": {"strategy": "sorted", "order": "random"},
    "shuffled": {"strategy": "shuffled", "order": "random"},
    "bucketed": {"strategy": "bucketed", "order": "random"},
    "bucketed, stratified": {"strategy": "bucketed", "order": "stratified"},
    "jittered": {"strategy": "jittered", "order": "random"},
    "jittered, stratified": {"strategy": "jittered", "order": "stratified"},
    "packed, stratified": {"strategy": "packed", "order": "stratified"},
}
_POLICIES = tuple(policy for policy in get_args(Policy) if policy != "round_robin_wait")


class BatchingLab(View):
    """Compare ways to batch.

    Args:
        source: as `LengthExplorer`.
        config: the run whose budget, topology, pool and costs count; None: the record's.
        plans: settings of `batching` by name, in the place of the seven usual ones.
    """

    def __init__(
        self,
        source: str | Path | pl.DataFrame,
        *,
        config: RunConfig | None = None,
        plans: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        base = config or record_config()
        self.lengths = counted(length_frame(source)).whole.thinned(MOST_SAMPLES)
        np.random.default_rng(0).shuffle(self.lengths)
        self.source = source if isinstance(source, str | Path) else "the frame given"
        self.plans = {name: _with_batching(base, dict(settings)) for name, settings in (plans or PLANS).items()}
        self.rows: list[PlanRow] = []
        self.pools: dict[str, list[float]] = {}
        self.worker = Worker("batching lab", self.tell_error)
        self._build()
        self.worker.submit("compare", self._compare)
        self._choose()

    def close(self) -> None:
        """End the thread and take the view off the page."""
        self.worker.close()
        for chart in (self.frontier, self.strip, self.mix, self.pool):
            chart.close()
        super().close()

    def _build(self) -> None:
        names = list(self.plans)
        chosen = "jittered, stratified" if "jittered, stratified" in names else names[0]
        self.plan = widgets.Dropdown(options=names, value=chosen, description="plan", layout={"width": "260px"})
        self.plan.observe(lambda _change: self._choose(), names="value")
        self.most_mix = widgets.FloatText(value=0.2, description="vr at most", step=0.05, layout={"width": "160px"})
        self.ask = button("advise", self._advise, style="primary", tooltip="what dflash advise says of the plan chosen")
        self.table, self.advice, self.progress = widgets.HTML(), widgets.HTML(), widgets.HTML()
        waiting = empty_figure("being worked out …")
        self.frontier, self.pool = Chart(waiting, name="frontier"), Chart(waiting, name="pool_by_policy")
        self.strip, self.mix = Chart(waiting, name="strip"), Chart(waiting, name="mix")
        row = widgets.Layout(flex_flow="row wrap", align_items="center")
        self.compose(
            self.progress,
            self.table,
            self.frontier,
            widgets.HBox([self.plan, self.most_mix, self.ask], layout=row),
            self.advice,
            self.strip,
            self.mix,
            self.pool,
        )

    @shows_errors
    def _choose(self) -> None:
        """Show how the chosen plan lays out its batches; the pool is simulated on the thread."""
        config = self.plans[self.plan.value]
        plan = plan_epoch(self.lengths, config.batching, epoch=0, window=config.window)
        title = f"{self.plan.value}: lengths inside consecutive batches"
        self.strip.show(batch_strip(plan, self.lengths, config.window, batches=max(2 * config.window, 32), title=title))
        self.mix.show(class_mix(plan, self.lengths, config.window))
        self.worker.submit("pool", partial(self._simulate_pools, self.plan.value))

    @shows_errors
    def _advise(self) -> None:
        self.advice.value = '<div class="dflash-note">searching …</div>'
        self.worker.submit("advise", partial(self._search, self.plan.value, self.most_mix.value))

    # ---- on the thread

    def _compare(self) -> None:
        self.rows = []
        for number, (name, config) in enumerate(self.plans.items()):
            self._note(f"planning and simulating {name} ({number + 1} of {len(self.plans)}) …")
            self.rows = mark_frontier(
                [*self.rows, *compare_plans(self.lengths, {name: config}, source=str(self.source), hours=HOURS)]
            )
            self._show_rows()
        self._note(f"{self.lengths.size:,} lengths standing for all; {HOURS:g} h simulated for each plan")

    def _show_rows(self) -> None:
        columns = [
            "plan",
            "padding efficiency %",
            "fill %",
            "batches",
            "vr at 8",
            "vr at 32",
            "reuse",
            "Ktok/s",
            "days",
            "bottleneck",
        ]
        self.table.value = table_html(
            columns, [_cells(row) for row in self.rows], note="★ no other plan is both faster and at least as even"
        )
        self.frontier.show(speed_against_mix(plan_frame(self.rows)))

    def _simulate_pools(self, name: str) -> None:
        config = self.plans[name]
        workload = workload_of(self.lengths, config, str(self.source))
        boundaries = config.batching.boundaries or quantile_boundaries(self.lengths, 6)
        pools: dict[str, list[float]] = {}
        for policy in _POLICIES:
            if self.plan.value != name:
                return
            changed = config.model_copy(update={"pool": config.pool.model_copy(update={"policy": policy})})
            ran = simulate(changed, hours=HOURS, workload=workload)
            pools[policy], boundaries = list(ran.pool["by_bucket"]), ran.pool["boundaries"]
            self.pool.show(pool_by_policy(pools, boundaries))
        self.pools = pools

    def _search(self, name: str, mix: float) -> None:
        config = self.plans[name]
        workload = workload_of(self.lengths, config, str(self.source))
        found = advise(config, workload=workload, mix=mix, hours=HOURS, told=lambda text: None)
        rows = [
            [each.ktok_s, 100 * each.gain, each.vr, each.reason, " ".join(f"--set {part}" for part in each.patch)]
            for each in found.suggestions
        ]
        note = f"as it is: {found.now.ktok_s:.1f} Ktok/s; {found.tried} ways tried" + (
            "" if rows else f"; none holds vr at most {mix:g}"
        )
        self.advice.value = table_html(["Ktok/s", "gain %", "vr at 32", "why", "settings"], rows, note=note)

    def _note(self, text: str) -> None:
        self.progress.value = f'<div class="dflash-note">{text}</div>'


def _cells(row: PlanRow) -> list[Any]:
    time_left = None if row.eta_days is None else format_eta(86_400 * row.eta_days)
    name = ("★ " if row.frontier else "") + row.plan
    figures = [
        100 * row.padding_efficiency,
        100 * row.fill,
        row.batches,
        row.vr["8"],
        row.vr["32"],
        row.membership_reuse,
        row.ktok_s,
    ]
    return [name, *figures, time_left, row.deadlock or row.bottleneck]


def _with_batching(config: RunConfig, settings: dict[str, Any]) -> RunConfig:
    tree = config.model_dump(mode="json")
    tree["batching"] = {**tree["batching"], **settings}
    return build_config(tree, place="plan")
