"""The actors of the ray engine: a process each, which builds its stage and works through calls one at a time.

Each has a health thread beside its working one, so a worker in the middle of a long batch still gives a sign of life.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from dflash.data.rows import TokenRows
from dflash.errors import DFlashError
from dflash.pipeline.stages import Stages

Shared = tuple[NDArray[np.uint8], str, tuple[int, ...]]


class _Worker:
    """What the three kinds share.

    A stage that refuses its input is told by `pid`, as the error it is: what an actor raises while it is made, Ray turns into text.
    """

    _refusal: DFlashError | None = None

    def _make(self, stage: Callable[[], Any]) -> Any:
        try:
            return stage()
        except DFlashError as error:
            self._refusal = error
            return None

    @ray.method(concurrency_group="health", max_task_retries=-1)
    def pid(self) -> int:
        """A sign of life: the process it runs in. Asked of a worker that is being started again, it answers once that is done.

        Raises:
            DFlashError: its stage could not be made.
        """
        if self._refusal is not None:
            raise self._refusal
        return os.getpid()


class ReaderWorker(_Worker):
    """Reads batches from the data set."""

    def __init__(self, stages: Stages) -> None:
        self._reader = self._make(stages.reader)

    @ray.method(num_returns=2)
    def read(self, samples: NDArray[np.int64]) -> tuple[tuple[None, float], TokenRows]:
        """The rows of these samples, and the seconds it took."""
        rows, seconds = _timed(lambda: self._reader.read(samples))
        return (None, seconds), rows


class TargetWorker(_Worker):
    """Runs the frozen target."""

    def __init__(self, stages: Stages, number: int) -> None:
        self._target = self._make(lambda: stages.target(number))

    @ray.method(num_returns=2)
    def produce(self, rows: TokenRows, packed: bool) -> tuple[tuple[None, float], Shared]:
        """Features of a batch, and the seconds it took."""
        features, seconds = _timed(lambda: to_shared(self._target.features(rows, packed=packed)))
        return (None, seconds), features


class DrafterWorker(_Worker):
    """Trains one replica of the drafter."""

    def __init__(self, stages: Stages, rank: int, replicas: int, meeting: Path) -> None:
        self._drafter = self._make(lambda: stages.drafter(rank, replicas, meeting))

    def train(self, rows: TokenRows, features: Shared, epoch: int, anchors: int, with_metrics: bool) -> tuple[Any, float]:
        """Add a batch to this replica's gradient."""
        drafter = self._drafter

        def accumulate() -> Any:
            return drafter.accumulate(rows, from_shared(features), epoch=epoch, anchors=anchors, with_metrics=with_metrics)

        return _timed(accumulate)

    def evaluate(self, rows: TokenRows, features: Shared) -> tuple[Any, float]:
        """Loss and hits of a held-out batch."""
        return _timed(lambda: self._drafter.evaluate(rows, from_shared(features)))

    def step(self, lr: float) -> tuple[Any, float]:
        """One optimiser step together with the other replicas."""
        return _timed(lambda: self._drafter.apply_step(lr))

    def decode(self, sample: int) -> tuple[Any, float]:
        """Answer a held-out prompt by speculative decoding."""
        return _timed(lambda: self._drafter.decode(sample))

    def save(self, folder: Path, weights_only: bool) -> tuple[Any, float]:
        """Write weights and optimiser, or the weights only."""
        return _timed(lambda: self._drafter.save(folder, weights_only=weights_only))


_remote = ray.remote(num_cpus=0, concurrency_groups={"health": 1})
ReaderActor: Any = _remote(ReaderWorker)
TargetActor: Any = _remote(TargetWorker)
DrafterActor: Any = _remote(DrafterWorker)


def to_shared(features: torch.Tensor) -> Shared:
    """A tensor as bytes that Ray shares without a copy, with its dtype and shape."""
    whole = features.detach().cpu().contiguous()
    return whole.view(torch.uint8).numpy().reshape(-1), str(whole.dtype).removeprefix("torch."), tuple(whole.shape)


def from_shared(shared: Shared) -> torch.Tensor:
    """The tensor again, on the shared bytes where they lie. Nobody may write to it."""
    data, dtype, shape = shared
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.monotonic()
    return work(), time.monotonic() - started
