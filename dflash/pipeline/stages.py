"""The work of a run on real devices: reading, the target, the drafter. `inline` calls it directly, `ray` from actors.

`Stages` makes the workers of a run from its config. Tests and benchmarks put their own in its place (stages that only sleep, say).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from dflash.config import RunConfig
from dflash.data.dataset import TokenDataset
from dflash.data.rows import TokenRows
from dflash.errors import RefusedInput, RunFailed
from dflash.model.cache_facts import CacheFacts
from dflash.model.capture import Capture
from dflash.model.facts import target_facts
from dflash.model.feature_cache import CachedTarget, FeatureCache
from dflash.model.first_weights import take_first_weights
from dflash.model.results import BatchResult, Rounds, StepResult
from dflash.model.shape import DrafterShape
from dflash.model.target import FrozenTarget
from dflash.model.trainer import DrafterTrainer
from dflash.model.warm_start import WarmStart

AllReduce = Callable[[torch.Tensor], None]


class Reader(Protocol):
    """Makes the rows of a batch."""

    def read(self, samples: NDArray[Any]) -> TokenRows:
        """The rows of these samples, laid end to end."""


class Target(Protocol):
    """Makes features."""

    def features(self, rows: TokenRows, *, packed: bool) -> torch.Tensor:
        """The target's captured hidden states [tokens, width of `model.capture.Capture`]."""


class Drafter(Protocol):
    """Learns from features."""

    def accumulate(self, rows: TokenRows, features: torch.Tensor, *, epoch: int, anchors: int, with_metrics: bool) -> BatchResult:
        """Forward and backward of one batch."""

    def evaluate(self, rows: TokenRows, features: torch.Tensor) -> BatchResult:
        """Forward of one held-out batch."""

    def apply_step(self, lr: float) -> StepResult:
        """One optimiser step on the gradient summed over all replicas."""

    def decode(self, sample: int) -> Rounds:
        """Answer the prompt of a held-out sample by real speculative decoding."""

    def save(self, folder: Path, *, weights_only: bool) -> None:
        """Write weights and optimiser, or the weights only."""


class HeldOutDecoder(Protocol):
    """Decodes held-out prompts with the whole target; what does it lies above this room and is handed in."""

    def decode(self, trainer: DrafterTrainer, sample: int) -> Rounds:
        """Answer the prompt of a sample with the drafter as it is now; training must not notice."""


MakeDecoder = Callable[[RunConfig, torch.device], HeldOutDecoder]


class Stages(Protocol):
    """Makes the workers of a run, each in the process it is to work in. Picklable."""

    def reader(self) -> Reader:
        """A prefetch worker."""

    def target(self, number: int) -> Target:
        """A replica of the target."""

    def drafter(self, rank: int, replicas: int, meeting: Path | None) -> Drafter:
        """A replica of the drafter; with more than one they meet through the file `meeting`."""


@dataclass(frozen=True)
class RealStages:
    """The stages of a training run.

    Attributes:
        resume_from: a checkpoint's folder, or None for a new drafter.
        warm_start: what a new drafter takes from another.
        cache: where features are kept and read from; None: computed every time.
        make_decoder: makes what decodes held-out prompts; needed where `evaluation.decode_every` is set.
    """

    config: RunConfig
    resume_from: Path | None = None
    warm_start: WarmStart | None = None
    cache: CacheFacts | None = None
    make_decoder: MakeDecoder | None = None

    def reader(self) -> Reader:
        """A prefetch worker on the run's data set."""
        return DatasetReader(TokenDataset.open(Path(self.config.data.path)))

    def target(self, number: int) -> Target:
        """The frozen target on this process's device, or what reads its features from the cache."""
        use_threads(self.config)
        settings, device = self.config.target, pick_device(self.config.pipeline.device)
        shape = DrafterShape.resolve(self.config.drafter, target_facts(settings.path))

        def load() -> FrozenTarget:
            return FrozenTarget.load(
                settings.path,
                layer_ids=Capture.of(self.config, shape).layer_ids,
                device=device,
                dtype=settings.dtype,
                attention=settings.attention,
                dequantise=settings.dequantise,
                trust_remote_code=settings.trust_remote_code,
                feature_dtype=settings.feature_dtype,
            )

        if self.cache is None:
            return load()
        lengths = TokenDataset.open(Path(self.config.data.path)).lengths
        dtype: torch.dtype = getattr(torch, settings.feature_dtype)
        return CachedTarget(FeatureCache(self.cache, lengths), load, dtype=dtype, device=device)

    def drafter(self, rank: int, replicas: int, meeting: Path | None) -> Drafter:
        """A drafter with its optimiser, in a group of `replicas`."""
        use_threads(self.config)
        device = pick_device(self.config.pipeline.device)
        trainer = DrafterTrainer(self.config, device=device)
        if self.resume_from is not None:
            trainer.load(self.resume_from)
        elif self.warm_start is not None:
            take_first_weights(trainer.drafter, self.warm_start)
        all_reduce = join_group(rank, replicas, meeting, device) if replicas > 1 and meeting is not None else None
        return TrainingDrafter(trainer, all_reduce, self.make_decoder)


@dataclass
class DatasetReader:
    """Reads batches from a prepared data set."""

    dataset: TokenDataset

    def read(self, samples: NDArray[Any]) -> TokenRows:
        """The rows of these samples, laid end to end."""
        return self.dataset.rows(samples)


@dataclass
class TrainingDrafter:
    """A trainer and the way its replicas add up their gradients."""

    trainer: DrafterTrainer
    all_reduce: AllReduce | None
    make_decoder: MakeDecoder | None = None
    _decoder: HeldOutDecoder | None = None

    def accumulate(self, rows: TokenRows, features: torch.Tensor, *, epoch: int, anchors: int, with_metrics: bool) -> BatchResult:
        """Forward and backward of one batch."""
        return self.trainer.accumulate(rows, features, epoch=epoch, anchors=anchors, with_metrics=with_metrics)

    def evaluate(self, rows: TokenRows, features: torch.Tensor) -> BatchResult:
        """Forward of one held-out batch."""
        return self.trainer.evaluate(rows, features)

    def apply_step(self, lr: float) -> StepResult:
        """One optimiser step, with the other replicas."""
        return self.trainer.apply_step(lr, self.all_reduce)

    def decode(self, sample: int) -> Rounds:
        """Answer the prompt of a held-out sample; the whole target is loaded when the first one comes."""
        if self._decoder is None:
            assert self.make_decoder is not None
            self._decoder = self.make_decoder(self.trainer.config, self.trainer.device)
        return self._decoder.decode(self.trainer, sample)

    def save(self, folder: Path, *, weights_only: bool = False) -> None:
        """Write weights and optimiser, or the weights only.

        Raises:
            RunFailed: they can't be written.
        """
        try:
            if weights_only:
                self.trainer.save_weights(folder)
            else:
                self.trainer.save(folder)
        except OSError as error:
            raise RunFailed(f"{folder}: can't be written ({error.strerror}); make room, then `dflash resume`") from error


def pick_device(device: str) -> torch.device:
    """The device of this process.

    Raises:
        RefusedInput: `cuda` was asked for and there is none.
    """
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RefusedInput("pipeline.device=cuda, but torch finds no GPU here; use cpu or auto")
    return torch.device("cuda")


def use_threads(config: RunConfig) -> None:
    """Share the CPU cores out among the workers that compute, so that they don't fight for them."""
    pipeline = config.pipeline
    workers = 1 if pipeline.engine == "inline" else pipeline.targets + pipeline.drafters
    torch.set_num_threads(pipeline.threads or max(1, len(os.sched_getaffinity(0)) // workers))


def join_group(rank: int, replicas: int, meeting: Path, device: torch.device) -> AllReduce:
    """Join the drafters' group through a file both can see (no port to choose); returns the sum over the group, in place."""
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=meeting.resolve().as_uri(),
        rank=rank,
        world_size=replicas,
        timeout=timedelta(minutes=30),
    )

    def all_reduce(values: torch.Tensor) -> None:
        torch.distributed.all_reduce(values)

    return all_reduce
