"""The ray engine: one actor a device, on one box (5 targets -> 3 drafters) or on a cluster.

Tokens and features travel through Ray's object store: a reader puts rows, a target reads them and puts features, a drafter reads both in
place. The engine holds the references and drops them when the coordinator says `forget`, which frees the memory. Tensors travel as
numpy bytes, because Ray copies a torch tensor where it shares an array. Drafters average through torch.distributed and meet in a file
of the run's folder. On CUDA each target and each drafter has a GPU of its own (not tried on a GPU).

A worker that dies is noticed at once; one that hangs, when it has not answered a call on its health thread for `HANG_SECONDS`: it is then
killed, which makes it a dead one. Ray starts readers and targets again; drafters are left to the caller, who goes back to a checkpoint.
Ray's own daemons are watched too: without them nothing goes on, and the run ends with a reason (see `ray_processes`).
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from dflash.config import RunConfig
from dflash.errors import DFlashError, RunFailed
from dflash.pipeline.engines.actors import DrafterActor, ReaderActor, TargetActor
from dflash.pipeline.engines.cluster import connect, disconnect, gpus_per_worker
from dflash.pipeline.engines.ray_processes import RayProcesses, done_within, is_orphan
from dflash.pipeline.jobs import Completion, Decode, EngineDied, Evaluate, Job, Prefetch, Produce, Save, Step, Train
from dflash.pipeline.ledger import BatchId
from dflash.pipeline.stages import Stages

HANG_SECONDS = 30.0
HEALTH_SECONDS = 10.0
DAEMON_SECONDS = 0.5
CLOSE_SECONDS = 45.0
_GONE = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.ObjectLostError)


@dataclass
class _Worker:
    """One actor, the process it runs in, and when it last gave a sign of life."""

    actor: Any
    pid: int = 0
    asked: Any = None
    answered_at: float = field(default_factory=time.monotonic)


class RayEngine:
    """Actors behind the engine's protocol."""

    longest_wait_seconds: float | None = 1.0

    def __init__(self, config: RunConfig, stages: Stages, folder: Path) -> None:
        pipeline = config.pipeline
        self.targets, self.drafters, self.prefetch_workers = pipeline.targets, pipeline.drafters, pipeline.prefetch_workers
        self._jobs: dict[Any, tuple[Job, list[Any]]] = {}
        self._rows: dict[BatchId, Any] = {}
        self._features: dict[BatchId, Any] = {}
        self._restarting: dict[Any, Completion] = {}
        self._workers: dict[tuple[str, int], _Worker] = {}
        self._next_health = self._next_daemons = 0.0
        self._folder = folder
        for left_over in folder.glob("drafters-*"):  # of a session that was killed; no other drives this run now
            left_over.unlink(missing_ok=True)
        self._meeting = folder / f"drafters-{uuid.uuid4().hex}"
        self._processes = RayProcesses.of_this_process() if connect(config) else RayProcesses()
        try:
            self._start_actors(stages, gpus_per_worker(config))
        except BaseException:
            self.close()
            raise

    def now(self) -> float:
        """Seconds of the monotonic clock of the coordinator's machine."""
        return time.monotonic()

    def submit(self, job: Job) -> None:
        """Call the actor the job names; for a step, all drafters."""
        with self._faults_of_ray_named():
            references = self._call(job)
        self._jobs[references[0]] = (job, references)

    def wait(self, patience_seconds: float | None) -> list[Completion]:
        """Wait until a job ends. A step ends when the last drafter's did."""
        now = time.monotonic()
        if now >= self._next_daemons:
            self._next_daemons = now + DAEMON_SECONDS
            self._refuse_dead_ray()
        awaited = [*self._jobs, *self._restarting]
        if not awaited:
            if patience_seconds:
                time.sleep(patience_seconds)
            return []
        with self._faults_of_ray_named():
            self._look_after_workers()
            ended, _ = ray.wait(awaited, num_returns=1, timeout=patience_seconds, fetch_local=False)
            if ended:  # take all that are done by now: one wake-up, one turn of the coordinator
                ended, _ = ray.wait(awaited, num_returns=len(awaited), timeout=0, fetch_local=False)
            completions = [self._complete(reference) for reference in ended]
        return [completion for completion in completions if completion is not None]

    def forget(self, batch: BatchId) -> None:
        """Drop the references of a batch; Ray frees its memory."""
        self._rows.pop(batch, None)
        self._features.pop(batch, None)

    def close(self) -> None:
        """End the actors, and Ray itself where this engine started it (a cluster it joined is left).

        Raises:
            EngineDied: Ray hangs; its processes are ended all the same.
        """
        self._rows.clear()
        self._features.clear()
        is_dead = self._processes.fault() is not None
        # An orphan that calls a dead Ray, or has its Ray killed, is ended by Ray's library before it has said why.
        has_left = (is_dead and is_orphan()) or done_within(CLOSE_SECONDS, lambda: self._leave_ray(is_dead))
        for worker in self._workers.values():
            _kill_process(worker.pid)  # a stopped process never gets Ray's message
        self._meeting.unlink(missing_ok=True)
        if not has_left and is_orphan():
            atexit.register(self._processes.end)
        else:
            self._processes.end()
        if not has_left:
            raise EngineDied(
                f"Ray's daemons hang: no answer for {CLOSE_SECONDS:.0f} s; `dflash resume {self._folder}` goes on with new ones"
            )

    def _leave_ray(self, is_dead: bool) -> None:
        if not is_dead:
            for worker in self._workers.values():
                ray.kill(worker.actor)
        disconnect()

    def pids(self) -> dict[str, int]:
        """The process of each worker, by name."""
        return {f"{kind}-{number}": worker.pid for (kind, number), worker in self._workers.items()}

    def _start_actors(self, stages: Stages, gpus: float) -> None:
        for number in range(self.prefetch_workers):
            self._workers["prefetch", number] = _Worker(ReaderActor.options(max_restarts=-1).remote(stages))
        for number in range(self.targets):
            actor = TargetActor.options(num_gpus=gpus, max_restarts=-1).remote(stages, number)
            self._workers["target", number] = _Worker(actor)
        for rank in range(self.drafters):
            actor = DrafterActor.options(num_gpus=gpus).remote(stages, rank, self.drafters, self._meeting)
            self._workers["drafter", rank] = _Worker(actor)
        starting = {worker.actor.pid.remote(): worker for worker in self._workers.values()}
        while starting:
            self._refuse_dead_ray()
            for reference in ray.wait(list(starting), timeout=DAEMON_SECONDS, fetch_local=False)[0]:
                worker = starting.pop(reference)
                try:
                    worker.pid = _results([reference])[0]
                except _GONE as error:
                    self._refuse_dead_ray()
                    raise RunFailed(f"a worker could not start: {error}") from error
        for worker in self._workers.values():  # those that were ready first had to wait for the others
            worker.answered_at = time.monotonic()
        self._processes.remember()

    def _call(self, job: Job) -> list[Any]:
        match job:
            case Prefetch(worker=worker, batch=batch):
                done, self._rows[batch.id] = self._workers["prefetch", worker].actor.read.remote(batch.samples)
            case Produce(worker=worker, batch=batch):
                actor = self._workers["target", worker].actor
                done, self._features[batch.id] = actor.produce.remote(self._rows[batch.id], batch.packed)
            case Train(worker=worker, batch=batch, anchors=anchors, with_metrics=with_metrics):
                actor, rows, features = self._workers["drafter", worker].actor, self._rows[batch.id], self._features[batch.id]
                done = actor.train.remote(rows, features, batch.id.epoch, anchors, with_metrics)
            case Evaluate(worker=worker, batch=batch):
                actor, rows, features = self._workers["drafter", worker].actor, self._rows[batch.id], self._features[batch.id]
                done = actor.evaluate.remote(rows, features)
            case Decode(worker=worker, sample=sample):
                done = self._workers["drafter", worker].actor.decode.remote(sample)
            case Save(folder=folder, weights_only=weights_only):
                done = self._workers["drafter", 0].actor.save.remote(folder.resolve(), weights_only)
            case Step(lr=lr):
                return [self._workers["drafter", rank].actor.step.remote(lr) for rank in range(self.drafters)]
        return [done]

    def _complete(self, reference: Any) -> Completion | None:
        if reference in self._restarting:
            with suppress(*_GONE):  # gone again: its next job tells
                _results([reference])
            return self._restarting.pop(reference)
        job, references = self._jobs.pop(reference)
        try:
            answers = _results(references)
        except _GONE as error:
            self._refuse_dead_ray()
            lost = Completion(job, 0.0, fault=_first_line(error))
            if not isinstance(job, Prefetch | Produce):
                return lost
            # Told only when the worker is there again: until then it could not take the next job.
            kind = "prefetch" if isinstance(job, Prefetch) else "target"
            self._restarting[self._workers[kind, job.worker].actor.pid.remote()] = lost
            return None
        result, _ = answers[0]
        return Completion(job, max(seconds for _, seconds in answers), result)

    def _look_after_workers(self) -> None:
        """Ask every worker for a sign of life now and then; kill one that has given none for too long."""
        now = time.monotonic()
        if now < self._next_health:
            return
        self._next_health = now + HEALTH_SECONDS
        self._processes.remember()
        for (kind, number), worker in self._workers.items():
            if worker.asked is not None and ray.wait([worker.asked], timeout=0, fetch_local=False)[0]:
                try:
                    worker.pid = _results([worker.asked])[0]
                    worker.answered_at = now
                except _GONE:
                    worker.answered_at = now  # dead, which its job's end tells; a new one is being started
                worker.asked = None
            if worker.asked is not None and now - worker.answered_at > HANG_SECONDS:
                logging.getLogger(__name__).warning(
                    "%s-%d gave no sign of life for %.0f s: killed", kind, number, now - worker.answered_at
                )
                _kill_process(worker.pid)
                worker.answered_at = now
            if worker.asked is None:
                worker.asked = worker.actor.pid.remote()

    def _refuse_dead_ray(self) -> None:
        fault = self._processes.fault()
        if fault is not None:
            raise EngineDied(
                f"{fault}: it was killed, or the machine ran out of memory. The last checkpoint is whole; go on from it with "
                f"`dflash resume {self._folder}`"
            )

    @contextmanager
    def _faults_of_ray_named(self) -> Iterator[None]:
        """What Ray itself raises, as an error a user can do something about."""
        try:
            yield
        except ray.exceptions.RayError as error:
            self._refuse_dead_ray()
            raise EngineDied(
                f"Ray failed ({_first_line(error)}); go on from the last checkpoint with `dflash resume {self._folder}`"
            ) from error


def _results(references: list[Any]) -> list[Any]:
    """Results of actor calls; an error of this package comes as itself, another with the worker's traceback."""
    try:
        found: list[Any] = ray.get(references)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, DFlashError):
            raise cause from error
        raise RunFailed(f"a worker failed: {cause!r}; go on from the last checkpoint with `dflash resume`\n{error}") from error
    return found


def _kill_process(pid: int) -> None:
    """Kill a worker on this machine, if it is one of Ray's."""
    try:
        if pid and b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    except OSError:
        return  # gone already, or on another machine


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] if lines else type(error).__name__
