"""Drive a run from where it stands to its end: what `dflash train`, `dflash resume` and a background launch all do.

A run without a checkpoint begins; one with a checkpoint goes on inside the epoch. Ctrl-C (or SIGTERM) once: finish the optimiser step, write
a checkpoint, stop. Twice: stop now; the last checkpoint is whole and the batches since then are done again on resume.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash.config import RunConfig
from dflash.data.dataset import TokenDataset
from dflash.doctor import examine
from dflash.errors import RefusedInput
from dflash.model.cache_facts import CacheFacts
from dflash.model.capture import bytes_per_token
from dflash.model.facts import target_facts
from dflash.model.shape import DrafterShape
from dflash.model.warm_start import WarmStart
from dflash.pipeline.best import BestKeeper
from dflash.pipeline.cached_features import cache_line, describe_cache, prepare_cache
from dflash.pipeline.checkpoints import Checkpoint, CheckpointStore, newest_step
from dflash.pipeline.coordinator import Coordinator, DrafterLost
from dflash.pipeline.engines import make_engine
from dflash.pipeline.evaluation import choose_prompts, plan_holdout
from dflash.pipeline.folder_watch import FolderWatch
from dflash.pipeline.init_from import plan_warm_start
from dflash.pipeline.jobs import Engine, EngineDied
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.live import LiveControl
from dflash.pipeline.plans import PlanStream, split_holdout
from dflash.pipeline.reporting import RunReporter
from dflash.pipeline.reports import Progress
from dflash.pipeline.stages import MakeDecoder, RealStages
from dflash.runs.best import kept_best
from dflash.runs.folder import RunFolder, write_json
from dflash.runs.hold import Hold
from dflash.runs.manifest import describe_environment
from dflash.runs.trackers import LiveTrackers
from dflash.telemetry.recorder import SCHEMA_VERSION, Recorder
from dflash.telemetry.system import SystemSampler

RETURNS_TO_ONE_CHECKPOINT = 3


class StopNow(KeyboardInterrupt):
    """Ctrl-C came twice."""


@dataclass(frozen=True)
class Outcome:
    """How a session of a run ended; `run` is its folder as it is called now."""

    run: str
    state: str
    step: int
    total_steps: int
    committed_tokens: int
    seconds: float
    loss: float | None
    acceptance_length: float | None
    walk_acceptance_length: float | None
    best_step: int | None
    best_acceptance_length: float | None


def drive_run(run: RunFolder, show: Callable[[str], None] = print, make_decoder: MakeDecoder | None = None) -> Outcome:
    """Train until the run is finished or stopped.

    Args:
        run: where it is written, and its settings.
        show: gets each console line.
        make_decoder: what decodes held-out prompts; needed where `evaluation.decode_every` is set. It is `serving.held_out.HeldOutDecoding`.

    Raises:
        RefusedInput: the config does not fit the data, the target or the machine, or another process drives the run.
        RunFailed: what stopped it, and how to go on.
        StopNow: Ctrl-C came twice.
    """
    with (
        run.driven(show) as hold,
        Recorder(run.events, "coordinator") as recorder,
        run.console_log.open("a", encoding="utf-8") as console,
    ):

        def show_and_keep(line: str) -> None:
            print(line, file=console, flush=True)
            show(line)

        try:
            names = run.config().telemetry.trackers
            with LiveTrackers(names, run, lambda reason: show_and_keep(f"warning: {reason}")) as trackers:
                recorder.observers.append(trackers.record)
                outcome = _drive(hold, recorder, show_and_keep, make_decoder)
        except BaseException as error:
            state = "stopped" if isinstance(error, KeyboardInterrupt) else "crashed" if isinstance(error, EngineDied) else "failed"
            _keep_end(hold, recorder, state, reason=str(error) or type(error).__name__)
            raise
        _keep_end(hold, recorder, outcome.state, step=outcome.step)
        return outcome


def _keep_end(hold: Hold, recorder: Recorder, state: str, **fields: Any) -> None:
    """Leave the exit record and the last event.

    Raises:
        FolderGone: there is no place for them any more, whatever else went wrong before.
    """
    run = hold.find()
    if hold.was_moved:
        fields["reason"] = "; ".join([*([fields["reason"]] if "reason" in fields else []), f"its folder was moved to {run.path}"])
    run.write_exit(state, **fields)
    recorder.record("run_ended", state=state, **fields)


def _drive(hold: Hold, recorder: Recorder, show: Callable[[str], None], make_decoder: MakeDecoder | None) -> Outcome:
    """Sessions of one process: one, and one more for each time drafters have to go back to a checkpoint."""
    run = hold.run
    if run.config().evaluation.decode_every and make_decoder is None:
        raise RefusedInput(
            "evaluation.decode_every is set, but nothing to decode with was handed in: give drive_run a make_decoder"
        )
    examination = examine(run.config(), runs=run.path.parent, checkpoints=run.checkpoints)
    for note in examination.notes:
        show(f"note: {note}")
    for warning in examination.warnings:
        show(f"warning: {warning}")
    examination.refuse_faults()
    _write_manifest(run, TokenDataset.open(Path(run.config().data.path)))
    steps_before_loss: list[int] = []
    while True:
        try:
            return _train_on(hold, recorder, show, make_decoder)
        except DrafterLost as error:
            newest = newest_step(hold.find().checkpoints)
            steps_before_loss.append(newest)
            if steps_before_loss.count(newest) > RETURNS_TO_ONE_CHECKPOINT:
                raise
            recorder.record("rolled_back", step=newest, reason=str(error))
            show(f"warning: {error}; all drafters go back to step {newest}")


def _train_on(hold: Hold, recorder: Recorder, show: Callable[[str], None], make_decoder: MakeDecoder | None) -> Outcome:
    """Train from the newest whole checkpoint with a fresh engine."""
    run = hold.run
    config = run.config()
    dataset = TokenDataset.open(Path(config.data.path))
    shape = check_fits(config, dataset)
    store = CheckpointStore(run.checkpoints, config.checkpoint.keep, belongs_to(config, dataset, shape), show)
    checkpoint = store.newest()
    cache = _feature_cache(config, dataset, shape, recorder, show)
    warm_start = None if checkpoint else _warm_start(run, config, shape, recorder, show)
    pipeline = config.pipeline
    show(f"{run.path}: starting {pipeline.targets} targets and {pipeline.drafters} drafters on the {pipeline.engine} engine")
    stages = RealStages(config, checkpoint.folder if checkpoint else None, warm_start, cache, make_decoder)
    with make_engine(config, stages, run.path) as engine:
        coordinator, reporter = _assemble(hold, config, dataset, shape, checkpoint, store, engine, recorder, show)
        first, total = coordinator.progress.step, coordinator.total_steps
        recorder.record(
            "run_started",
            schema=SCHEMA_VERSION,
            run=run.name,
            step=first,
            total_steps=total,
            boundaries=coordinator.stream.boundaries,
            engine=config.pipeline.engine,
            targets=engine.targets,
            drafters=engine.drafters,
        )
        show(f"{run.path}: {'resumed at' if checkpoint else 'from'} step {first} of {total}")
        started = engine.now()
        with SystemSampler(run.events, config.telemetry.sample_every), _stop_on_signal(coordinator, show):
            state = coordinator.run()
        reporter.close(coordinator)
        if cache is not None:
            _keep_cache_state(run, cache, dataset, recorder, show)
        best = kept_best(store.folder)
        return Outcome(
            run=str(hold.run.path),
            state=state,
            step=coordinator.progress.step,
            total_steps=coordinator.total_steps,
            committed_tokens=coordinator.progress.committed_tokens,
            seconds=engine.now() - started,
            loss=reporter.last_step.result.loss if reporter.last_step else None,
            acceptance_length=reporter.held_out.acceptance_length if reporter.held_out else None,
            walk_acceptance_length=reporter.held_out.walk_acceptance_length if reporter.held_out else None,
            best_step=best.step if best else None,
            best_acceptance_length=best.acceptance_length if best else None,
        )


def _warm_start(
    run: RunFolder, config: RunConfig, shape: DrafterShape, recorder: Recorder, show: Callable[[str], None]
) -> WarmStart | None:
    """What the new drafter takes from `drafter.init_from`, told and kept in the events and the manifest."""
    plan = plan_warm_start(config, shape, run.path.parent)
    if plan is not None:
        show(f"{run.path}: starts from {plan.source}: {plan.told()}")
        for warning in plan.warnings:
            show(f"warning: {warning}")
        recorder.record("warm_started", **plan.as_dict())
        write_json(run.path / "manifest.json", {**run.manifest(), "warm_start": plan.as_dict()})
    return plan


def _feature_cache(
    config: RunConfig, dataset: TokenDataset, shape: DrafterShape, recorder: Recorder, show: Callable[[str], None]
) -> CacheFacts | None:
    """The cache the run reads its features from, with the disk it will take told; None when they are live."""
    facts = prepare_cache(config, dataset, shape)
    if facts is not None:
        told = describe_cache(facts, dataset)
        show(cache_line(told))
        recorder.record("feature_cache", **told)
    return facts


def _keep_cache_state(
    run: RunFolder, facts: CacheFacts, dataset: TokenDataset, recorder: Recorder, show: Callable[[str], None]
) -> None:
    """How far the cache was filled when the session ended, and what keeping cost in accuracy."""
    told = describe_cache(facts, dataset)
    show(cache_line(told))
    recorder.record("feature_cache", **told)
    write_json(run.path / "manifest.json", {**run.manifest(), "feature_cache": told})


def _assemble(
    hold: Hold,
    config: RunConfig,
    dataset: TokenDataset,
    shape: DrafterShape,
    checkpoint: Checkpoint | None,
    store: CheckpointStore,
    engine: Engine,
    recorder: Recorder,
    show: Callable[[str], None],
) -> tuple[Coordinator, RunReporter]:
    """Put the coordinator together from the data, the plan and the checkpoint."""
    kept, held_out = split_holdout(len(dataset), config.data.holdout, config.optim.seed)
    state: dict[str, Any] = checkpoint.state if checkpoint else {}
    ledger = Ledger.restored(state["ledger"]) if checkpoint else Ledger()
    progress = Progress(**state["progress"]) if checkpoint else Progress()
    watch = FolderWatch(hold, store)
    reporter = RunReporter(
        config,
        recorder,
        show,
        run_tokens=int(dataset.lengths[kept].sum(dtype=np.int64)) * config.optim.epochs,
        trained_tokens=progress.committed_tokens,
        live=LiveControl(hold.run, recorder, show, watch.look),
    )
    stream = PlanStream(dataset.lengths, kept, config, ledger, reporter.planned)
    store.on_saved = reporter.saved
    store.warn = reporter.warn
    coordinator = Coordinator(
        config,
        stream,
        ledger,
        engine,
        reporter,
        feature_bytes_per_token=bytes_per_token(config, shape),
        checkpointer=store,
        holdout=plan_holdout(stream, dataset.loss_tokens, held_out),
        prompts=choose_prompts(dataset.loss_tokens, held_out, config.evaluation.decode_prompts),
        best=BestKeeper(config.evaluation, store, show) if config.checkpoint.best else None,
        progress=progress,
        saved_policy=state.get("policy"),
    )
    store.look = lambda: watch.look(coordinator)
    return coordinator, reporter


def check_fits(config: RunConfig, dataset: TokenDataset) -> DrafterShape:
    """Hold the config against the data set and the target; returns the drafter's shape.

    Raises:
        RefusedInput: the data was prepared for another target, or a size doesn't fit.
    """
    facts = target_facts(config.target.path)
    dataset.check_tokenizer(facts.folder)
    dataset.check_target(facts.vocab_size, name=config.target.path)
    return DrafterShape.resolve(config.drafter, facts)


def belongs_to(config: RunConfig, dataset: TokenDataset, shape: DrafterShape) -> dict[str, Any]:
    """What weights and ledger of a checkpoint depend on, as JSON values."""
    return {
        "data": dataset.fingerprint,
        "data.holdout": config.data.holdout,
        "optim.seed": config.optim.seed,
        "drafter": shape.to_config(),
    }


def _write_manifest(run: RunFolder, dataset: TokenDataset) -> None:
    manifest = run.manifest()
    session = describe_environment(Path.cwd())
    sessions = [*manifest.get("sessions", []), session]
    write_json(run.path / "manifest.json", {**manifest, "data_fingerprint": dataset.fingerprint, "sessions": sessions})


@contextmanager
def _stop_on_signal(coordinator: Coordinator, show: Callable[[str], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for a stop at the next safe point, the second raises `StopNow`."""

    def stop(number: int, frame: object) -> None:
        if coordinator.stop_requested:
            raise StopNow("stopped at once; the last checkpoint is whole")
        coordinator.stop_requested = True
        show("stopping after this step with a checkpoint; Ctrl-C again to stop now")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
