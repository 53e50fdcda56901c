"""Explore lengths and place bucket boundaries by hand: drag a line, and see at once what it costs.

Padding, batches a bucket and the predicted rate come from counts of the lengths and are there within the same callback. The mix needs a
plan: a thread makes one and fills it in; a newer change makes it start again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import numpy as np
import polars as pl
import yaml

from dflash.batching.boundaries import length_class_edges, optimal_boundaries, quantile_boundaries
from dflash.batching.explore import counted, filtered, length_frame
from dflash.batching.figures import PlanFigures, plan_figures
from dflash.batching.plan import plan_epoch
from dflash.charts.explore import boundary_chart
from dflash.config import RunConfig, build_config
from dflash.errors import RefusedInput
from dflash.predict.costs import resolve_costs
from dflash.predict.quick import BoundaryFigures, boundary_figures, record_config
from workbench.chart import Chart
from workbench.history import History
from workbench.tables import table_html
from workbench.ticker import Ticker
from workbench.view import View, button, shows_errors

MIX = ("8", "16", "32")
THINNED = 200_000


class LengthExplorer(View):
    """Lengths of a data set with boundaries that are dragged, typed or placed by a rule, beside those in use.

    Args:
        source: a prepared data set, a Parquet file with a column `length`, another file of lengths, or a polars frame.
        config: the run whose budget, topology and costs count; None: the record's.
        boundaries: those to start from; None: the ones in use.
        on_change: called with the new boundaries at every change.
    """

    def __init__(
        self,
        source: str | Path | pl.DataFrame,
        *,
        config: RunConfig | None = None,
        boundaries: Sequence[int] | None = None,
        on_change: Callable[[list[int]], None] | None = None,
    ) -> None:
        super().__init__()
        self.config = config or record_config()
        self.frame = length_frame(source)
        self.counts = counted(self.frame).whole
        self.in_use = self.config.batching.boundaries or quantile_boundaries(self.counts.thinned(THINNED), 6)
        self.history = History(list(boundaries or self.in_use))
        self.figures: BoundaryFigures | None = None
        self.mix: dict[str, PlanFigures] = {}
        self._costs = resolve_costs(self.config)
        self._on_change = on_change
        self._rows = self.frame["length"].to_numpy().astype(np.int32)
        self._mixed_rows: np.ndarray[Any, np.dtype[np.int32]] | None = None
        self._ticker = Ticker(self._measure_mix, 3600.0, "mix of dragged boundaries")
        self._build()
        self._show()
        self._ticker.start()

    @property
    def boundaries(self) -> list[int]:
        """The boundaries now."""
        return self.history.value

    def set_boundaries(self, boundaries: Sequence[int]) -> None:
        """Change them; the last one is raised to the longest length.

        Raises:
            RefusedInput: fewer than two, the first is not 0, or they don't ascend.
        """
        tree = {"data": {"path": "-"}, "target": {"path": "-"}, "batching": {"boundaries": [int(each) for each in boundaries]}}
        checked = build_config(tree, place="boundaries").batching.boundaries or []
        longest = int(self.counts.lengths[-1])
        if checked[-1] < longest:
            raise RefusedInput(
                f"boundaries end at {checked[-1]}, the longest row has {longest} tokens; make the last one {longest} or more"
            )
        if self.history.push(checked):
            self._show()
        else:
            self._draw()  # a line dropped outside its place goes back to it

    def patch(self) -> str:
        """The change as a config patch (YAML)."""
        return yaml.safe_dump(
            {"batching": {"strategy": "bucketed", "boundaries": self.boundaries}}, sort_keys=False, default_flow_style=None
        )

    def close(self) -> None:
        """End the thread and take the view off the page."""
        self._ticker.close()
        self.chart.close()
        super().close()

    def _build(self) -> None:
        self.share = widgets.Dropdown(options=["samples", "tokens", "padded"], description="share of", layout={"width": "170px"})
        self.log = widgets.ToggleButton(description="log", tooltip="length on a logarithmic axis", layout={"width": "56px"})
        self.condition = widgets.Text(
            placeholder="filter, as in SQL: length < 4096", continuous_update=False, layout={"flex": "1 1 240px"},
            description_allow_html=False,
        )  # fmt: skip
        self.text = widgets.Text(description="boundaries", continuous_update=False, layout={"flex": "1 1 360px"})
        self.buckets = widgets.BoundedIntText(
            value=len(self.boundaries) - 1, min=1, max=64, description="K", layout={"width": "130px"}
        )
        rules = {
            "optimal": self._optimal,
            "quantile": self._quantile,
            "equal tokens": self._equal_tokens,
            "in use": lambda: self.in_use,
        }
        buttons = [button(name, partial(self._by_rule, rule)) for name, rule in rules.items()]
        steps = [button("undo", partial(self._step, self.history.undo)), button("redo", partial(self._step, self.history.redo))]
        self.path = widgets.Text(value="boundaries.yaml", layout={"width": "180px"})
        self.save = button("save patch", self._save)
        self.table = widgets.HTML()
        self.chart = Chart(
            boundary_chart(self.counts, self.boundaries), name="lengths",
            config={"edits": {"shapePosition": True}, "doubleClick": "autosize"},
        )  # fmt: skip
        self.chart.on_relayout(self._dragged)
        for control in (self.share, self.log):
            control.observe(lambda _change: self._draw(), names="value")
        self.condition.observe(lambda _change: self._filter(), names="value")
        self.text.observe(lambda change: self._typed(change["new"]), names="value")
        row = widgets.Layout(flex_flow="row wrap", align_items="center")
        self.compose(
            widgets.HBox([self.share, self.log, self.condition], layout=row),
            self.chart,
            widgets.HBox([self.text, self.buckets, *buttons, *steps], layout=row),
            self.table,
            widgets.HBox([self.path, self.save], layout=row),
        )

    # ---- what the user does

    @shows_errors
    def _dragged(self, changes: dict[str, Any]) -> None:
        inner = list(self.boundaries[1:-1])
        moved = False
        for key, value in changes.items():
            if key.startswith("shapes[") and key.endswith("].x0"):
                at = int(key[len("shapes[") : key.index("]")])
                if at < len(inner):
                    inner[at] = round(float(value))
                    moved = True
        if moved:
            limit = self.boundaries[-1]
            inside = sorted({min(max(each, 1), limit - 1) for each in inner})
            self.set_boundaries([0, *inside, limit])

    @shows_errors
    def _typed(self, text: str) -> None:
        try:
            numbers = [int(part) for part in text.replace("[", "").replace("]", "").replace(",", " ").split()]
        except ValueError as error:
            raise RefusedInput(f"boundaries {text!r}: expected whole numbers with commas, as in 0, 770, 1216, 8192") from error
        if numbers != self.boundaries:  # the field is also written when a line was dragged
            self.set_boundaries(numbers)
        self.tell("")

    @shows_errors
    def _by_rule(self, rule: Callable[[], list[int]]) -> None:
        self.set_boundaries(rule())
        self.tell("")

    @shows_errors
    def _step(self, move: Callable[[], bool]) -> None:
        if move():
            self._show()
            self.tell("")

    @shows_errors
    def _filter(self) -> None:
        kept = filtered(self.frame, self.condition.value)
        self.counts = counted(kept).whole
        self._rows = kept["length"].to_numpy().astype(np.int32)
        self._show()
        self.tell(f"{kept.height:,} of {self.frame.height:,} samples" if kept.height < self.frame.height else "", good=False)

    @shows_errors
    def _save(self) -> None:
        Path(self.path.value).write_text(self.patch(), encoding="utf-8")
        self.tell(
            f"{self.path.value} written; merge it into a config, or give a running run: set batching.boundaries {self.boundaries}"
        )

    def _optimal(self) -> list[int]:
        return self._limited(optimal_boundaries(self.counts.thinned(THINNED), min(self.buckets.value, self.counts.lengths.size)))

    def _quantile(self) -> list[int]:
        return self._limited(quantile_boundaries(self.counts.thinned(THINNED), self.buckets.value))

    def _equal_tokens(self) -> list[int]:
        return self._limited(length_class_edges(self.counts.thinned(THINNED), self.buckets.value).tolist())

    def _limited(self, boundaries: list[int]) -> list[int]:
        """With the last boundary of those in use, if that is beyond the longest length."""
        return [*boundaries[:-1], max(self.in_use[-1], int(self.counts.lengths[-1]))]

    # ---- what is shown

    def _show(self) -> None:
        self.text.value = ", ".join(map(str, self.boundaries))
        self.figures = boundary_figures(self.counts, self.boundaries, self.config, self._costs)
        self.mix.pop("edited", None)
        self._draw()
        self._tabulate()
        self._ticker.wake()
        if self._on_change is not None:
            self._on_change(list(self.boundaries))

    def _draw(self) -> None:
        buckets = self.figures.buckets if self.figures else None
        self.chart.show(boundary_chart(self.counts, self.boundaries, buckets, log=self.log.value, share=self.share.value))

    def _tabulate(self) -> None:
        assert self.figures is not None
        covers = self.in_use[-1] >= int(self.counts.lengths[-1])
        used = boundary_figures(self.counts, self.in_use, self.config, self._costs) if covers else None
        rows = []
        for name, figures in (("in use", used), ("edited", self.figures)):
            if figures is not None:
                mix = self.mix.get(name)
                vr = [mix.vr[window] if mix else None for window in MIX]
                rows.append([name, 100 * figures.padding_efficiency, round(figures.batches), figures.ktok_s, *vr])
        columns = [
            "boundaries",
            "padding efficiency %",
            "batches",
            "Ktok/s if nothing waits",
            *(f"vr at {window}" for window in MIX),
        ]
        note = "" if "edited" in self.mix else "vr, the mix of windows, is being measured …"
        each = self.figures.buckets
        by_bucket = [
            [
                f"{row['above'] + 1}-{row['up_to']}",
                row["samples"],
                100 * row["efficiency"],
                round(row["batches"]),
                100 * row["batch_share"],
                row["rows"],
            ]
            for row in each.iter_rows(named=True)
        ]
        names = ["bucket (tokens)", "samples", "efficiency %", "batches", "% of batches", "rows a batch"]
        self.table.value = table_html(columns, rows, note=note) + "<br>" + table_html(names, by_bucket)

    def _measure_mix(self) -> bool:
        """On the thread: measure the mix of what is shown; if that changed meanwhile, measure again."""
        try:
            wanted, rows = list(self.boundaries), self._rows
            edited = self._mix(rows, wanted)
            if self._mixed_rows is not rows:
                covers = self.in_use[-1] >= int(rows.max())
                self.mix.pop("in use", None)
                self.mix.update({"in use": self._mix(rows, self.in_use)} if covers else {})
                self._mixed_rows = rows
            if wanted == self.boundaries and rows is self._rows:
                self.mix["edited"] = edited
                self._tabulate()
            else:
                self._ticker.wake()
        except Exception as error:
            self.tell_error(error)
        return self.widget.comm is not None

    def _mix(self, rows: np.ndarray[Any, np.dtype[np.int32]], boundaries: list[int]) -> PlanFigures:
        settings = self.config.batching.model_copy(update={"strategy": "bucketed", "boundaries": boundaries})
        return plan_figures(plan_epoch(rows, settings, epoch=0, window=self.config.window), rows, settings)
