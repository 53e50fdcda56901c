"""What a simulation works on: the lengths, who is held out, and how many blocks a sample gives. No tokens, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dflash.config import RunConfig, SimulationConfig
from dflash.errors import RefusedInput
from dflash.pipeline.engines.simulated import BlockPlaces
from dflash.pipeline.plans import split_holdout

RECORD_FEATURE_BYTES = 51_200
"""Bytes of features a token on the field record's machine: 5 captured layers x 5,120 wide x 2 bytes."""


@dataclass(frozen=True)
class Workload:
    """The samples of a run, as far as time depends on them.

    Attributes:
        lengths: tokens of every sample, int32 [samples].
        kept: ids of those trained on, ascending [kept].
        supervised: tokens of every sample that carry loss, int64 [samples].
        feature_bytes_per_token: bytes handed from target to drafter a token.
        source: in words, where the lengths are from.
    """

    lengths: NDArray[np.int32]
    kept: NDArray[np.int64]
    supervised: NDArray[np.int64]
    feature_bytes_per_token: int
    source: str

    @property
    def tokens(self) -> int:
        """Real tokens of an epoch."""
        return int(self.lengths[self.kept].sum(dtype=np.int64))

    @property
    def held_out(self) -> NDArray[np.int64]:
        """Ids of the samples kept out of training, ascending."""
        is_kept = np.zeros(self.lengths.size, np.bool_)
        is_kept[self.kept] = True
        return np.flatnonzero(~is_kept)

    @property
    def blocks(self) -> BlockPlaces:
        """Where blocks may start: an anchor and the token after it carry loss."""
        return BlockPlaces(self.lengths, np.maximum(self.supervised - 1, 0))


def load_workload(config: RunConfig) -> Workload:
    """The samples that `simulation.lengths` names.

    Raises:
        RefusedInput: a file or data set that can't be read; the message says how to do without.
    """
    simulation = config.simulation
    if simulation.lengths == "data":
        lengths, supervised = _from_dataset(config)
        source = f"data.path={config.data.path}"
    else:
        lengths, source = _without_dataset(simulation)
        supervised = np.rint(lengths * simulation.loss_share).astype(np.int64)
    kept, _ = split_holdout(len(lengths), config.data.holdout, config.optim.seed)
    return Workload(lengths, kept, supervised, feature_bytes_per_token(config), source)


def draw_lengths(simulation: SimulationConfig, samples: int | None = None) -> NDArray[np.int32]:
    """Lengths from LogNormal(median_length, sigma), rounded and clipped to [shortest, longest], from the seed alone."""
    draws = np.random.default_rng([simulation.seed, 0x1E6])
    drawn = draws.lognormal(np.log(simulation.median_length), simulation.sigma, samples or simulation.samples)
    return np.clip(np.rint(drawn), simulation.shortest, simulation.longest).astype(np.int32)


def feature_bytes_per_token(config: RunConfig) -> int:
    """Bytes of features a token: as set, else from the sizes of target and drafter, else the field record's."""
    from dflash.model.capture import bytes_per_token
    from dflash.model.facts import target_facts
    from dflash.model.shape import DrafterShape

    if config.simulation.feature_bytes_per_token is not None:
        return config.simulation.feature_bytes_per_token
    try:
        shape = DrafterShape.resolve(config.drafter, target_facts(config.target.path))
    except RefusedInput:  # no such target on this machine, which needn't have one
        return RECORD_FEATURE_BYTES
    return bytes_per_token(config, shape)


def _from_dataset(config: RunConfig) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    from dflash.data.dataset import TokenDataset

    try:
        dataset = TokenDataset.open(Path(config.data.path))
    except RefusedInput as error:
        raise RefusedInput(f"{error}; or simulate without it: simulation.lengths=lognormal, or a file of lengths") from error
    return dataset.lengths, dataset.loss_tokens.astype(np.int64)


def _without_dataset(simulation: SimulationConfig) -> tuple[NDArray[np.int32], str]:
    from dflash.data.lengths import read_lengths

    if simulation.lengths != "lognormal":
        return read_lengths(simulation.lengths), simulation.lengths
    words = (
        f"{simulation.samples:,} drawn from LogNormal(median {simulation.median_length:g}, sigma {simulation.sigma:g}) in "
        f"[{simulation.shortest}, {simulation.longest}], seed {simulation.seed}"
    )
    return draw_lengths(simulation), words
