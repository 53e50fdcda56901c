"""Runs of the coordinator on a virtual clock, in which the cause of a slow-down is known because it was injected.

The machine is the field record's: five targets at 16 s a batch, three drafters at 13 s, a pool of 20, lengths log-normal around 1,728 tokens.
Ten faults, each with one knob; two may be put in at once. Every run writes its events through `RunReporter`, as a live run does, so what is
analysed is what a user would have.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dflash.batching.plan import plan_epoch
from dflash.config import RunConfig, build_config
from dflash.model.results import BlockMetrics
from dflash.pipeline.coordinator import Coordinator
from dflash.pipeline.engines.simulated import CostModel, SimulatedEngine
from dflash.pipeline.jobs import Completion, Job, PlannedBatch, Prefetch, Produce, Step, Train
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reporting import RunReporter
from dflash.runs.folder import RunFolder, create_run
from dflash.telemetry.recorder import Recorder

MEDIAN_TOKENS, SIGMA = 1_728, 0.6
USUAL_SECONDS_A_TOKEN = 3.5e-4
HEALTHY = CostModel(
    prefetch_fixed=0.1,
    prefetch_per_token=1e-5,
    target_per_padded_token=3.6e-4,
    target_per_length_squared=1.1e-8,
    drafter_per_row=0.26,
    drafter_per_token=1.9e-4,
    drafter_metrics=4.0,
    step_fixed=1.0,
    noise=0.08,
)
SETTINGS = (
    "batching.strategy=jittered", "batching.order=stratified", "pipeline.engine=simulated", "pipeline.targets=5", "pipeline.drafters=3",
    "pipeline.prefetch_workers=1", "pipeline.prefetch=8", "optim.accumulate=32", "optim.epochs=50", "telemetry.metrics_every=8",
    "simulation.lengths=lognormal", "simulation.samples=12000", "simulation.median_length=1728", "simulation.sigma=0.6",
    "simulation.shortest=16", "telemetry.sample_every=10", "telemetry.log_every=1000000", "checkpoint.every=0",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """Everything a fault may touch."""

    costs: CostModel = HEALTHY
    settings: tuple[str, ...] = ()
    median_tokens: int = MEDIAN_TOKENS
    holdout_batches: int = 0
    slow_worker: dict[str, float] = field(default_factory=dict)
    """Kind -> how many times longer worker 0 of it takes."""
    copy_share: float = 0.0
    """Seconds of hand-over a busy second, of targets and drafters."""
    memory_free_share: float = 0.4


def _scaled(stage: str, factor: float) -> Callable[[Machine], Machine]:
    def change(machine: Machine) -> Machine:
        terms = {
            name: value * factor
            for name, value in vars(machine.costs).items()
            if name.startswith(stage) and name != "drafter_metrics"
        }
        return replace(
            machine, costs=dataclasses.replace(machine.costs, **{name: v for name, v in terms.items() if isinstance(v, float)})
        )

    return change


def _set(*settings: str) -> Callable[[Machine], Machine]:
    return lambda machine: replace(machine, settings=(*machine.settings, *settings))


FAULTS: dict[str, Callable[[Machine], Machine]] = {
    "waiting": _set("pool.policy=round_robin_wait", "pool.wait_seconds=12"),
    "padding": _set("batching.strategy=shuffled"),
    "target speed": _scaled("target_", 2.0),
    "drafter speed": _scaled("drafter_", 1.5),
    "prefetch speed": _scaled("prefetch_", 14.0),
    "drafter straggler": lambda machine: replace(machine, slow_worker={"drafter": 3.0}),
    "hand-over": lambda machine: replace(machine, copy_share=0.5, memory_free_share=0.02),
    "evaluation": lambda machine: replace(_set("evaluation.every=1")(machine), holdout_batches=6),
    "metrics": _set("telemetry.metrics_every=1"),
    "length mix": lambda machine: replace(machine, median_tokens=600),
}
"""By the factor of `analysis.factors` that is the right answer."""


class _Costs:
    """A machine's seconds, its slow worker and its hand-over."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.noise = machine, machine.costs.noise

    def seconds(self, job: Job, blocks: Any) -> float:
        seconds = self.machine.costs.seconds(job, blocks)
        kind = {Train: "drafter", Produce: "target", Prefetch: "prefetch"}.get(type(job), "")
        return seconds * (self.machine.slow_worker.get(kind, 1.0) if getattr(job, "worker", None) == 0 else 1.0)

    def copy_seconds(self, job: Job, feature_bytes: int) -> float:
        return self.machine.copy_share * USUAL_SECONDS_A_TOKEN * job.batch.tokens if isinstance(job, Train | Produce) else 0.0


class _MeasuringEngine(SimulatedEngine):
    """Gives losses and metrics as a drafter does: the loss falls, depends on the length of the conversations, and has noise of its own."""

    def __init__(self, config: RunConfig, costs: _Costs, seed: int) -> None:
        super().__init__(config.pipeline, costs, seed)
        self._noise = np.random.default_rng([seed, 7])
        self._trained = 0
        self._losses: list[float] = []

    def wait(self, patience_seconds: float | None) -> list[Completion]:
        """Completions with results."""
        return [self._measured(completion) for completion in super().wait(patience_seconds)]

    def _measured(self, completion: Completion) -> Completion:
        result: Any = completion.result
        match completion.job:
            case Train(batch=batch, with_metrics=with_metrics):
                self._trained += 1
                usual = 2.0 + 1.5 * math.exp(-self._trained / 300) - 0.25 * math.log(batch.tokens / batch.rows / MEDIAN_TOKENS)
                loss = usual + 0.02 * self._noise.standard_normal()
                self._losses.append(loss)
                metrics = BlockMetrics(correct=(5,), valid=(10,), streak_sum=5, blocks=10) if with_metrics else None
                return replace(completion, result=replace(result, loss_sum=loss, weight_sum=1.0, metrics=metrics))
            case Step():
                loss, self._losses = float(np.mean(self._losses)), []
                norm = 0.5 + 0.05 * abs(self._noise.standard_normal())
                return replace(completion, result=replace(result, loss=loss, grad_norm=norm))
        return completion


class VirtualRecorder(Recorder):
    """Stamps events with the engine's virtual clock."""

    now: Callable[[], float] = staticmethod(lambda: 0.0)

    def record(self, event: str, **fields: Any) -> None:
        """Append one event."""
        super().record(event, **{"time": 1e9 + self.now(), "seconds": self.now(), **fields})


def simulate_run(
    runs: Path,
    name: str,
    machine: Machine,
    *,
    batches: int = 640,
    seed: int = 0,
    live: dict[int, Machine] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> RunFolder:
    """Run a machine until so many batches are committed, and leave a run's folder with events.

    Args:
        live: optimiser step -> what the machine is from then on (its costs, not its settings).
        show: told each console line.
    """
    config = _config(machine, seed)
    rng = np.random.default_rng([seed, machine.median_tokens])
    lengths = np.clip(machine.median_tokens * np.exp(SIGMA * rng.standard_normal(12_000)), 16, 8_192).astype(np.int32)
    run = create_run(runs, name, config)
    costs = _Costs(machine)
    engine = _MeasuringEngine(config, costs, seed)
    with VirtualRecorder(run.events, "coordinator") as recorder:
        recorder.now = engine.now  # type: ignore[method-assign]
        reporter = _Reporter(config, recorder, show, run_tokens=int(lengths.sum()) * config.optim.epochs)
        reporter.stop_after, reporter.costs = batches, costs
        reporter.switches = dict(live or {})
        stream = PlanStream(lengths, np.arange(len(lengths)), config, Ledger(), reporter.planned)
        holdout = _held_out(stream)[: machine.holdout_batches]
        coordinator = Coordinator(config, stream, stream.ledger, engine, reporter, feature_bytes_per_token=8, holdout=holdout)
        recorder.record(
            "run_started", schema=1, run=name, step=0, total_steps=stream.total_steps(0), boundaries=stream.boundaries,
            targets=5, drafters=3, engine="simulated",
        )  # fmt: skip
        coordinator.run()
        reporter.sample(coordinator, engine.now())
        recorder.record("run_ended", state="finished", step=coordinator.progress.step)
    run.write_exit("finished", step=coordinator.progress.step)
    return run


def _held_out(stream: PlanStream) -> list[PlannedBatch]:
    """Batches to evaluate on: those of an epoch that is never trained."""
    plan = plan_epoch(stream.lengths, stream.config.batching, epoch=999, window=8, sample_ids=stream.kept)
    return stream.describe_plan(plan, epoch=-1)


class _Reporter(RunReporter):
    """Stops the run in time, switches faults on, and adds the system samples that a live run has."""

    stop_after: int
    costs: _Costs
    switches: dict[int, Machine]

    def turned(self, coordinator: Coordinator) -> None:
        super().turned(coordinator)
        if coordinator.progress.committed_batches >= self.stop_after:
            coordinator.stop_requested = True

    def stepped(self, report: Any) -> None:
        super().stepped(report)
        machine = self.switches.pop(report.step, None)
        if machine is not None:
            self.costs.machine = machine

    def sample(self, coordinator: Coordinator, now: float) -> None:
        super().sample(coordinator, now)
        free = int(self.costs.machine.memory_free_share * 2**38)
        self.recorder.record("system", cpu_percent=50.0, memory_used_bytes=2**38 - free, memory_available_bytes=free, gpus=[])


def _config(machine: Machine, seed: int) -> RunConfig:
    tree = {"data": {"path": "none"}, "target": {"path": "none"}, "batching": {"seed": seed}}
    return build_config(tree, [*SETTINGS, *machine.settings])
