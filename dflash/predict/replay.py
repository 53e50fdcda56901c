"""Replay a run's event log through the simulator: jobs end when they ended, all else is decided anew.

If coordinator, plan and policy are what they were, the drafters pull the same batches in the same order. Where they don't, either the code has
changed since or two workers finished so close together (milliseconds) that the order was chance; after that a random policy goes its own way.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from dflash.config import RunConfig
from dflash.errors import RefusedInput
from dflash.pipeline.engines.simulated import NO_BLOCKS, Blocks, CostModel, SimulatedEngine
from dflash.pipeline.jobs import Job, Prefetch, Produce, Step, Train
from dflash.predict.costs import ResolvedCosts
from dflash.predict.simulation import Watcher, build
from dflash.predict.workload import Workload, load_workload
from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import event_frame, read_events


@dataclass(frozen=True)
class Replay:
    """Batch ids in the order drafters pulled them: as recorded, and as replayed."""

    recorded: list[str]
    replayed: list[str]

    @property
    def agreement(self) -> float:
        """Share of the pulls that name the same batch at the same place."""
        same = sum(one == other for one, other in zip(self.recorded, self.replayed, strict=False))
        return same / max(len(self.recorded), 1)


@dataclass
class RecordedTimes:
    """When the jobs of a run ended, in the seconds of its event log; a batch that is not in it takes the mean time."""

    ends: dict[tuple[type[Job], str], float]
    prefetch_seconds: dict[str, float]
    mean_seconds: dict[type[Job], float]
    clock: SimulatedEngine | None = None
    noise: float = 0.0

    def seconds(self, job: Job, blocks: Blocks = NO_BLOCKS) -> float:
        """From now to the recorded end."""
        assert self.clock is not None
        if isinstance(job, Prefetch):
            return self.prefetch_seconds.get(str(job.batch.id), self.mean_seconds[Prefetch])
        name = str(job.step) if isinstance(job, Step) else str(job.batch.id) if isinstance(job, Produce | Train) else ""
        end = self.ends.get((type(job), name))
        return self.mean_seconds.get(type(job), 0.0) if end is None else max(end - self.clock.now(), 0.0)

    def copy_seconds(self, job: Job, feature_bytes: int) -> float:
        """The recorded ends hold it already."""
        return 0.0


def replay(run: RunFolder, workload: Workload | None = None) -> Replay:
    """Replay a run.

    Raises:
        RefusedInput: it has no batch events, or its data set is gone.
    """
    events = read_events(run.events, "batch", "step")
    batches, steps = event_frame(events, "batch"), event_frame(events, "step")
    if batches.is_empty():
        raise RefusedInput(f"{run.path}: no batch was trained; there is nothing to replay")
    pulled = pl.col("seconds") - pl.col("drafter_seconds")
    batches = batches.with_columns(pulled.alias("pulled"), (pulled - pl.col("residence_seconds")).alias("pooled"))
    recorded = batches.sort("pulled", maintain_order=True)["batch"].to_list()
    config = run.config()
    return Replay(recorded, _replayed(config, workload or load_workload(config), _times(batches, steps)))


def _times(batches: pl.DataFrame, steps: pl.DataFrame) -> RecordedTimes:
    names = batches["batch"].to_list()
    ends: dict[tuple[type[Job], str], float] = {}
    for kind, column in ((Produce, "pooled"), (Train, "seconds")):
        ends |= {(kind, name): end for name, end in zip(names, batches[column].to_list(), strict=True)}
    if not steps.is_empty():
        ends |= {(Step, str(step)): end for step, end in zip(steps["step"].to_list(), steps["seconds"].to_list(), strict=True)}
    stages: dict[type[Job], str] = {Prefetch: "prefetch", Produce: "target", Train: "drafter"}
    means = {kind: float(batches[f"{stage}_seconds"].to_numpy().mean()) for kind, stage in stages.items()}
    return RecordedTimes(ends, dict(zip(names, batches["prefetch_seconds"].to_list(), strict=True)), means)


def _replayed(config: RunConfig, workload: Workload, times: RecordedTimes) -> list[str]:
    serial = config.pipeline.engine == "inline"
    times.clock = engine = SimulatedEngine(config.pipeline, times, serial=serial)
    watcher = Watcher(float("inf"))
    build(config, workload, ResolvedCosts(CostModel(), 0, "recorded"), watcher, engine).run()
    return [batch for _, _, batch in sorted(watcher.pulled)]
