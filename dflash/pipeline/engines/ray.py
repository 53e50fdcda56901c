"""The ray engine: one actor a device, on one box (5 targets -> 3 drafters) or on a cluster.

Tokens and features travel through Ray's object store: a reader puts rows, a target reads them and puts features, a drafter reads both in
place. The engine holds the references and drops them when the coordinator says `forget`, which frees the memory. Tensors travel as numpy
bytes, because Ray copies a torch tensor where it shares an array. Drafters average through torch.distributed and meet in a file of the
run's folder. On CUDA each target and each drafter has a GPU of its own (not tried on a GPU).
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from numpy.typing import NDArray

from dflash.config import RunConfig
from dflash.data.rows import TokenRows
from dflash.errors import RefusedInput, RunFailed
from dflash.pipeline.jobs import Completion, Evaluate, Job, Prefetch, Produce, Save, Step, Train
from dflash.pipeline.ledger import BatchId
from dflash.pipeline.stages import Stages

_STORE_SLACK_BYTES = 256 * 2**20
_STORE_SHARE_OF_MEMORY = 0.5
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayEngine:
    """Actors behind the engine's protocol."""

    longest_wait_seconds: float | None = 1.0

    def __init__(self, config: RunConfig, stages: Stages, folder: Path) -> None:
        pipeline = config.pipeline
        self.targets, self.drafters, self.prefetch_workers = pipeline.targets, pipeline.drafters, pipeline.prefetch_workers
        self._own_cluster = _connect(config)
        self._jobs: dict[Any, tuple[Job, list[Any]]] = {}
        self._rows: dict[BatchId, Any] = {}
        self._features: dict[BatchId, Any] = {}
        meeting = folder / f"drafters-{uuid.uuid4().hex}"
        self._meeting = meeting
        gpus = 1.0 if _gpus_wanted(config) else 0.0
        try:
            self._readers = [_ReaderActor.remote(stages) for _ in range(self.prefetch_workers)]
            self._target_actors = [_TargetActor.options(num_gpus=gpus).remote(stages, number) for number in range(self.targets)]
            self._drafter_actors = [
                _DrafterActor.options(num_gpus=gpus).remote(stages, rank, self.drafters, meeting) for rank in range(self.drafters)
            ]
            self._get([actor.ready.remote() for actor in [*self._readers, *self._target_actors, *self._drafter_actors]])
        except BaseException:
            self.close()
            raise

    def now(self) -> float:
        """Seconds of the monotonic clock of the coordinator's machine."""
        return time.monotonic()

    def submit(self, job: Job) -> None:
        """Call the actor the job names; for a step, all drafters."""
        references = self._call(job)
        self._jobs[references[0]] = (job, references)

    def wait(self, patience_seconds: float | None) -> list[Completion]:
        """Wait until a job ends. A step ends when the last drafter's did."""
        if not self._jobs:
            if patience_seconds:
                time.sleep(patience_seconds)
            return []
        ended, _ = ray.wait(list(self._jobs), num_returns=1, timeout=patience_seconds, fetch_local=False)
        if ended:  # take all that are done by now: one wake-up, one turn of the coordinator
            ended, _ = ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=0, fetch_local=False)
        return [self._complete(reference) for reference in ended]

    def forget(self, batch: BatchId) -> None:
        """Drop the references of a batch; Ray frees its memory."""
        self._rows.pop(batch, None)
        self._features.pop(batch, None)

    def close(self) -> None:
        """End the actors, and Ray itself where this engine started it."""
        self._rows.clear()
        self._features.clear()
        actors = [*vars(self).get("_readers", []), *vars(self).get("_target_actors", []), *vars(self).get("_drafter_actors", [])]
        for actor in actors:
            ray.kill(actor)
        self._meeting.unlink(missing_ok=True)
        if self._own_cluster:
            ray.shutdown()

    def _call(self, job: Job) -> list[Any]:
        match job:
            case Prefetch(worker=worker, batch=batch):
                done, self._rows[batch.id] = self._readers[worker].read.remote(batch.samples)
            case Produce(worker=worker, batch=batch):
                actor = self._target_actors[worker]
                done, self._features[batch.id] = actor.produce.remote(self._rows[batch.id], batch.packed)
            case Train(worker=worker, batch=batch, anchors=anchors, with_metrics=with_metrics):
                actor, rows, features = self._drafter_actors[worker], self._rows[batch.id], self._features[batch.id]
                done = actor.train.remote(rows, features, batch.id.epoch, anchors, with_metrics)
            case Evaluate(worker=worker, batch=batch):
                actor, rows, features = self._drafter_actors[worker], self._rows[batch.id], self._features[batch.id]
                done = actor.evaluate.remote(rows, features)
            case Save(folder=folder):
                done = self._drafter_actors[0].save.remote(folder)
            case Step(lr=lr):
                return [actor.step.remote(lr) for actor in self._drafter_actors]
        return [done]

    def _complete(self, reference: Any) -> Completion:
        job, references = self._jobs.pop(reference)
        answers = self._get(references)
        result, _ = answers[0]
        return Completion(job, max(seconds for _, seconds in answers), result)

    def _get(self, references: list[Any]) -> list[Any]:
        """Results of actor calls, with the worker's own error rather than Ray's wrapping of it."""
        try:
            found: list[Any] = ray.get(references)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayActorError as error:
            raise RunFailed(f"a worker process died ({error}); go on from the last checkpoint with `dflash resume`") from error
        return found


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.monotonic()
    return work(), time.monotonic() - started


class _Actor:
    """What the three kinds of actor share."""

    def ready(self) -> bool:
        """Answers once the actor is built."""
        return True


@ray.remote(num_cpus=0)
class _ReaderActor(_Actor):
    def __init__(self, stages: Stages) -> None:
        self._reader = stages.reader()

    @ray.method(num_returns=2)
    def read(self, samples: NDArray[np.int64]) -> tuple[tuple[None, float], TokenRows]:
        rows, seconds = _timed(lambda: self._reader.read(samples))
        return (None, seconds), rows


@ray.remote(num_cpus=0)
class _TargetActor(_Actor):
    def __init__(self, stages: Stages, number: int) -> None:
        self._target = stages.target(number)

    @ray.method(num_returns=2)
    def produce(self, rows: TokenRows, packed: bool) -> tuple[tuple[None, float], Any]:
        features, seconds = _timed(lambda: to_shared(self._target.features(rows, packed=packed)))
        return (None, seconds), features


@ray.remote(num_cpus=0)
class _DrafterActor(_Actor):
    def __init__(self, stages: Stages, rank: int, replicas: int, meeting: Path) -> None:
        self._drafter = stages.drafter(rank, replicas, meeting)

    def train(self, rows: TokenRows, features: Any, epoch: int, anchors: int, with_metrics: bool) -> tuple[Any, float]:
        options = {"epoch": epoch, "anchors": anchors, "with_metrics": with_metrics}
        return _timed(lambda: self._drafter.accumulate(rows, from_shared(features), **options))

    def evaluate(self, rows: TokenRows, features: Any) -> tuple[Any, float]:
        return _timed(lambda: self._drafter.evaluate(rows, from_shared(features)))

    def step(self, lr: float) -> tuple[Any, float]:
        return _timed(lambda: self._drafter.apply_step(lr))

    def save(self, folder: Path) -> tuple[Any, float]:
        return _timed(lambda: self._drafter.save(folder))


def to_shared(features: torch.Tensor) -> tuple[NDArray[np.uint8], str, tuple[int, ...]]:
    """A tensor as bytes that Ray shares without a copy, with its dtype and shape."""
    whole = features.detach().cpu().contiguous()
    return whole.view(torch.uint8).numpy().reshape(-1), str(whole.dtype).removeprefix("torch."), tuple(whole.shape)


def from_shared(shared: tuple[NDArray[np.uint8], str, tuple[int, ...]]) -> torch.Tensor:
    """The tensor again, on the shared bytes where they lie. Nobody may write to it."""
    data, dtype, shape = shared
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)


def _gpus_wanted(config: RunConfig) -> bool:
    pipeline = config.pipeline
    if pipeline.device == "cpu" or (pipeline.device == "auto" and not torch.cuda.is_available()):
        return False
    wanted, there = pipeline.targets + pipeline.drafters, int(ray.cluster_resources().get("GPU", 0))
    if there < wanted:
        raise RefusedInput(
            f"pipeline: {pipeline.targets} targets and {pipeline.drafters} drafters need {wanted} GPUs, there are {there}; "
            "lower the counts, or set pipeline.device=cpu"
        )
    return True


def _connect(config: RunConfig) -> bool:
    """Use the cluster named in the config, or start Ray on this machine. Returns whether it was started here.

    Raises:
        RefusedInput: shared memory is too small for the pool.
    """
    os.environ.update(_ENVIRONMENT)
    address = config.pipeline.ray_address
    common = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    try:
        if address is not None:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            ray.init(object_store_memory=store_bytes(config.pool.capacity_bytes), num_cpus=_cpus(config), **common)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"the cluster at pipeline.ray_address={address}" if address else "Ray on this machine"
        raise RunFailed(f"can't reach or start {where}: {error}") from error
    return address is None


def _cpus(config: RunConfig) -> int:
    """CPU slots of a Ray started here; actors take none, so this only bounds its idle worker pool."""
    return min(2, config.pipeline.targets)


def store_bytes(capacity_bytes: int) -> int:
    """Bytes of object store for a pool of that capacity: no more than half of memory and what shared memory has free.

    A pool that is larger spills to disk through Ray, which is slow but loses nothing.
    """
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.is_dir() else psutil.virtual_memory().available
    ceiling = int(min(psutil.virtual_memory().total * _STORE_SHARE_OF_MEMORY, free * 0.9))
    return min(capacity_bytes + _STORE_SLACK_BYTES, ceiling)
