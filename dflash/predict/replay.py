"""Replay a run's event log through the simulator: the seconds are those recorded, all else is decided anew.

If coordinator, plan and policy are what they were, the drafters pull the same batches in the same order. Where they don't, either the code has
changed since or two workers finished so close together that the order was chance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dflash.config import RunConfig
from dflash.errors import RefusedInput
from dflash.pipeline.engines.simulated import NO_BLOCKS, Blocks, CostModel
from dflash.pipeline.jobs import Job, Prefetch, Produce, Save, Step, Train
from dflash.predict.costs import ResolvedCosts
from dflash.predict.simulation import Watcher, build
from dflash.predict.workload import Workload, load_workload
from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import event_frame, read_events


@dataclass(frozen=True)
class Replay:
    """Batch ids in the order drafters pulled them: as recorded, and as replayed; and the share of places that agree."""

    recorded: list[str]
    replayed: list[str]

    @property
    def agreement(self) -> float:
        """Share of the pulls that name the same batch at the same place."""
        same = sum(one == other for one, other in zip(self.recorded, self.replayed, strict=False))
        return same / max(len(self.recorded), 1)


@dataclass(frozen=True)
class RecordedCosts(CostModel):
    """Seconds that a run recorded; what it did not record (a batch still under way when it ended) takes the mean."""

    stages: dict[str, dict[str, float]] | None = None
    steps: dict[int, float] | None = None

    def seconds(self, job: Job, blocks: Blocks = NO_BLOCKS) -> float:
        """The recorded seconds of a job."""
        match job:
            case Prefetch(batch=batch):
                return self._of("prefetch", str(batch.id))
            case Produce(batch=batch):
                return self._of("target", str(batch.id))
            case Train(batch=batch):
                return self._of("drafter", str(batch.id))
            case Step(step=step):
                return (self.steps or {}).get(step, 0.0)
            case Save():
                return 0.0
            case _:
                return 0.0

    def _of(self, stage: str, batch: str) -> float:
        recorded = (self.stages or {}).get(stage, {})
        return recorded.get(batch, sum(recorded.values()) / max(len(recorded), 1))


def replay(run: RunFolder, workload: Workload | None = None) -> Replay:
    """Replay a run.

    Raises:
        RefusedInput: it has no batch events, or its data set is gone.
    """
    events = read_events(run.events, "batch", "step")
    batches, steps = event_frame(events, "batch"), event_frame(events, "step")
    if batches.is_empty():
        raise RefusedInput(f"{run.path}: no batch was trained; there is nothing to replay")
    config = run.config()
    stages = {
        stage: dict(zip(batches["batch"].to_list(), batches[f"{stage}_seconds"].to_list(), strict=True))
        for stage in ("prefetch", "target", "drafter")
    }
    taken = {} if steps.is_empty() else dict(zip(steps["step"].to_list(), steps["step_seconds"].to_list(), strict=True))
    costs = RecordedCosts(stages=stages, steps=taken)
    pulled = batches.with_columns((batches["seconds"] - batches["drafter_seconds"]).alias("pulled")).sort(
        "pulled", maintain_order=True
    )
    return Replay(pulled["batch"].to_list(), _simulated_order(config, workload or load_workload(config), costs))


def _simulated_order(config: RunConfig, workload: Workload, costs: RecordedCosts) -> list[str]:
    watcher = Watcher(float("inf"))
    coordinator = build(config, workload, ResolvedCosts(replace(costs, noise=0.0), 0, "recorded"), watcher)
    coordinator.run()
    return [batch for _, _, batch in sorted(watcher.pulled)]
