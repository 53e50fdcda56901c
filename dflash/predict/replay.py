"""Replay a run's event log through the simulator: jobs end in the turns of the coordinator they ended in, all else is decided anew.

Coordinator, plan and policy being what they were, the drafters pull the same batches in the same order, exactly: a turn hands out work and
then takes in what has ended, so what can be pulled in a turn depends on nothing but the turns in which jobs ended. (Clocks can't tell:
two processes that end within a millisecond may be taken in together, or in either order.) An optimiser step ends in the turn before the
first batch of the next window was pulled, so that evaluation and checkpoints between the two take their time; and until the turn before
the first pull of all drafters are held back, as by an evaluation before training.

What is replayed is a run's first session, if it was left alone: a live command other than `stop`, or a lost worker, moves things by more
than the log tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dflash.config import PipelineConfig, RunConfig
from dflash.errors import RefusedInput
from dflash.pipeline.coordinator import Coordinator, Deadlock
from dflash.pipeline.engines.simulated import NO_BLOCKS, Blocks, CostModel, SimulatedEngine
from dflash.pipeline.evaluation import EvaluationPass
from dflash.pipeline.jobs import Evaluate, Job, Prefetch, Produce, Step, Train
from dflash.predict.costs import ResolvedCosts
from dflash.predict.simulation import Watcher, build
from dflash.predict.workload import Workload, load_workload
from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import read_events

_READ, _PRODUCED, _PULLED, _TRAINED = range(4)
_NEVER = 1e12
"""A turn no run comes to: for jobs that had not ended when the log did."""


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


def replay(run: RunFolder, workload: Workload | None = None) -> Replay:
    """Replay a run.

    Raises:
        RefusedInput: it has no batch events, was steered or lost a worker, or its data set is gone.
    """
    events = _first_session(read_events(run.events, "run_started", "batch", "step", "change", "worker_lost", "left"))
    batches = [event for event in events if event["event"] == "batch"]
    if not batches:
        raise RefusedInput(f"{run.path}: no batch was trained; there is nothing to replay")
    if "turns" not in batches[0]:
        raise RefusedInput(f"{run.path}: its batch events hold no turns; only a run of this version can be replayed")
    moved = [event for event in events if event["event"] == "worker_lost" or _is_steering(event)]
    if moved:
        what = moved[0].get("action") or f"{moved[0]['worker']} was lost"
        raise RefusedInput(f"{run.path}: it was moved from outside ({what}); only a run left alone can be replayed")
    batches.sort(key=lambda event: (event["turns"][_PULLED], event["drafter"]))
    recorded = [event["batch"] for event in batches]
    engine = _RecordedEngine(run.config().pipeline, _ends(events), len(recorded))
    _run(run.config(), workload or load_workload(run.config()), engine)
    return Replay(recorded, engine.pulled)


class _AllPulled(Exception):
    """As many batches are pulled as were in the run."""


class _RecordedEngine(SimulatedEngine):
    """The simulated engine with turns for seconds; keeps the order in which drafters are given batches."""

    def __init__(self, pipeline: PipelineConfig, ends: dict[tuple[type[Job], str], int], pulls: int) -> None:
        super().__init__(pipeline, _RecordedCosts(self, ends))
        self.pulled: list[str] = []
        self._pulls = pulls

    def submit(self, job: Job) -> None:
        super().submit(job)
        if isinstance(job, Train):
            self.pulled.append(str(job.batch.id))
            if len(self.pulled) == self._pulls:
                raise _AllPulled


class _Holding(Watcher):
    """Lets the drafters go once the evaluation that held them back is over."""

    def turned(self, coordinator: Coordinator) -> None:
        if coordinator.evaluation is not None and coordinator.evaluation.results:
            coordinator.evaluation = None


class _RecordedCosts:
    """A job takes the turns from now to the one it ended in."""

    noise = 0.0

    def __init__(self, engine: SimulatedEngine, ends: dict[tuple[type[Job], str], int]) -> None:
        self._engine, self._ends = engine, ends

    def seconds(self, job: Job, blocks: Blocks = NO_BLOCKS) -> float:
        match job:
            case Step(step=step):
                name = str(step)
            case Prefetch(batch=batch) | Produce(batch=batch) | Train(batch=batch):
                name = str(batch.id)
            case _:
                name = ""
        return max(self._ends.get((type(job), name), _NEVER) - self._engine.now(), 0.0)

    def copy_seconds(self, job: Job, feature_bytes: int) -> float:
        return 0.0


def _is_steering(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "change" and event["accepted"] and event["action"] != "stop")


def _first_session(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    starts = [place for place, event in enumerate(events) if event["event"] == "run_started"]
    return events[: starts[1]] if len(starts) > 1 else events


def _ends(events: list[dict[str, Any]]) -> dict[tuple[type[Job], str], int]:
    """The turn each job ended in: of trained batches, of those under way at the end, and of steps."""
    passages = {event["batch"]: event["turns"] for event in events if event["event"] == "batch"}
    for event in events:
        if event["event"] == "left":
            passages |= event["batches"]
    ends: dict[tuple[type[Job], str], int] = {}
    for kind, place in ((Prefetch, _READ), (Produce, _PRODUCED), (Train, _TRAINED)):
        ends |= {(kind, batch): turns[place] for batch, turns in passages.items() if len(turns) > place}
    steps = [event for event in events if event["event"] == "step"]
    pulled = {batch: turns[_PULLED] for batch, turns in passages.items() if len(turns) > _PULLED}
    taken = {batch for step in steps for batch in step["batch_ids"]}
    firsts = [min(pulled[batch] for batch in step["batch_ids"]) for step in steps[1:]]
    after_last = [turn for batch, turn in pulled.items() if batch not in taken]
    ends[Evaluate, ""] = min(pulled.values()) - 1
    for step, first in zip(steps, [*firsts, *([min(after_last)] if after_last else [])], strict=False):
        ends[Step, str(step["step"])] = first - 1
    return ends


def _run(config: RunConfig, workload: Workload, engine: _RecordedEngine) -> None:
    """Pull until as many are pulled as were in the run; a replay that goes astray may end before."""
    coordinator = build(config, workload, ResolvedCosts(CostModel(), 0, "recorded"), _Holding(float("inf")), engine)
    coordinator.holdout = []
    batch = coordinator.stream.peek()
    assert batch is not None
    coordinator.evaluation = EvaluationPass([], engine.drafters)
    coordinator.crew.start(Evaluate(0, batch))
    try:
        coordinator.run()
    except (_AllPulled, Deadlock):
        return
