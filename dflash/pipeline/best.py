"""Which checkpoint of a run is the best: the one with the highest held-out acceptance.

It is told by real speculative decoding where the run decodes (`evaluation.decode_every`), else by the walk over held-out answers (see
`model.walk`); never by random anchors, which say too much. Of equals the earlier one stays, and what is no number is never chosen.
Figures measured in another way (decoded or walked, on other prompts, with another limit) are not compared: after such a change of
settings the next evaluation chooses anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dflash.config import EvaluationConfig
from dflash.pipeline.checkpoints import CheckpointStore
from dflash.pipeline.jobs import Save
from dflash.pipeline.reports import EvaluationReport
from dflash.runs.best import Best, Measure


class BestKeeper:
    """Holds each evaluation against the best checkpoint and keeps the better one."""

    def __init__(self, evaluation: EvaluationConfig, store: CheckpointStore, show: Callable[[str], None]) -> None:
        """Go on from the best checkpoint that is there."""
        self._evaluation, self._store, self._show = evaluation, store, show
        self.best: Best | None = store.best()

    def offer(self, report: EvaluationReport, save: Callable[[Save], object]) -> None:
        """Keep the weights if this evaluation is the best so far; `save` does the job that writes them.

        Raises:
            RunFailed: they can't be written; the best before them is whole.
        """
        found = self._measured(report)
        if found is None or report.step == 0:  # first weights are no drafter yet
            return
        acceptance_length, measure = found
        if self.best is not None and self.best.measure == measure and self.best.acceptance_length >= acceptance_length:
            return
        save(self._store.begin(report.step, weights_only=True))
        self.best = self._store.commit_best(report.step, acceptance_length, measure)
        self._show(f"best so far: {self.best.words()}")

    def _measured(self, report: EvaluationReport) -> tuple[float, Measure] | None:
        """The acceptance length that counts, and how it was measured; None where this evaluation has none."""
        settings = self._evaluation
        if settings.decode_every:
            rounds, measure = report.decoded, Measure("decoding", report.prompts, settings.decode_tokens)
        else:
            rounds = report.simulated.walk if report.simulated else None
            measure = Measure("walk", report.conversations, settings.decode_tokens)
        if rounds is None or not math.isfinite(rounds.acceptance_length):
            return None
        if report.simulated is not None and not math.isfinite(report.simulated.loss):
            return None
        return rounds.acceptance_length, measure
