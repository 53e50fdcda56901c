"""The plan of an epoch: which samples share a batch, and in which order the batches run.

A plan is a function of (lengths, settings, epoch, window, samples chosen) and of nothing else, on any machine. Two choices make it:
membership (`membership.py`) decides padding, order (`order.py`) decides the mix of an optimiser window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dflash.batching.boundaries import refuse_uncovered
from dflash.batching.draws import generator
from dflash.batching.membership import Membership, draw_membership
from dflash.batching.order import mean_log_lengths, random_order, stratified_order
from dflash.config import BatchingConfig
from dflash.errors import RefusedInput


@dataclass(frozen=True)
class EpochPlan:
    """One epoch's batches in execution order.

    Attributes:
        samples: sample ids in execution order [samples].
        offsets: batch b holds samples[offsets[b]:offsets[b + 1]] [batches + 1].
        packed: whether rows of a batch are laid end to end (its size is the sum of the lengths) or padded to the longest.
    """

    samples: NDArray[np.int64]
    offsets: NDArray[np.int64]
    packed: bool

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (self.batch(index) for index in range(len(self)))

    def batch(self, index: int) -> NDArray[np.int64]:
        """Sample ids of the batch that runs as number `index`, from 0."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of a plan with {len(self)}")
        return self.samples[self.offsets[index] : self.offsets[index + 1]]


def plan_epoch(
    lengths: ArrayLike, settings: BatchingConfig, *, epoch: int, window: int, lead: int = 0, sample_ids: ArrayLike | None = None
) -> EpochPlan:
    """Plan one epoch: every chosen sample once, no batch over the budget.

    Args:
        lengths: tokens of every sample of the data set [all samples], whole numbers.
        settings: strategy, order, boundaries, token_budget (rows x longest row; packed: the sum), jitter, max_rows, seed.
        epoch: from 0; with settings.seed it decides membership and order.
        window: batches an optimiser window; a stratified order holds each length class in every window.
        lead: batches that complete a window already begun and run before the first whole one (stratified order).
        sample_ids: the samples to plan, in any order; None: all.

    Raises:
        RefusedInput: nothing to plan, a length that is not a positive 32-bit whole number, a row longer than the budget, boundaries
            that don't cover the longest row, sample ids that don't exist or come twice.
    """
    if window < 1:
        raise RefusedInput(f"batching.window={window}: a window holds at least one batch")
    chosen, rows = _choose(lengths, settings, sample_ids)
    membership = draw_membership(chosen, settings, epoch=epoch)
    order = _order(chosen, membership, settings, epoch, window, lead)
    samples, offsets = _gather(membership, order)
    return EpochPlan(samples if rows is None else rows[samples], offsets, packed=settings.strategy == "packed")


def count_batches(lengths: ArrayLike, settings: BatchingConfig, *, epoch: int, sample_ids: ArrayLike | None = None) -> int:
    """How many batches `plan_epoch` would make with the same arguments, without putting them in order.

    `sorted` has as many in every epoch; the others vary by a few, so a schedule over E epochs asks for each.

    Raises:
        RefusedInput: as `plan_epoch`.
    """
    chosen, _ = _choose(lengths, settings, sample_ids)
    return draw_membership(chosen, settings, epoch=epoch).offsets.size - 1


def planned_efficiency(lengths: ArrayLike, settings: BatchingConfig, *, epoch: int, sample_ids: ArrayLike | None = None) -> float:
    """Padding efficiency of what `plan_epoch` would make with the same arguments; the order of the batches changes nothing of it.

    Raises:
        RefusedInput: as `plan_epoch`.
    """
    chosen, _ = _choose(lengths, settings, sample_ids)
    membership = draw_membership(chosen, settings, epoch=epoch)
    if settings.strategy == "packed":
        return 1.0
    longest = np.maximum.reduceat(chosen[membership.rows], membership.offsets[:-1]).astype(np.int64)
    return int(chosen.sum(dtype=np.int64)) / int(longest @ np.diff(membership.offsets))


def _order(
    lengths: NDArray[np.int32], membership: Membership, settings: BatchingConfig, epoch: int, window: int, lead: int
) -> NDArray[np.int64]:
    draws = generator(settings.seed, epoch, "order")
    batches = membership.offsets.size - 1
    if settings.order == "random":
        # a shuffle is in random order as it comes; batches cut from it one after the other mix a little better than drawn apart
        return np.arange(batches) if settings.strategy == "shuffled" else random_order(batches, draws)
    return stratified_order(mean_log_lengths(lengths[membership.rows], membership.offsets), window, draws, lead)


def _gather(membership: Membership, order: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sizes = np.diff(membership.offsets)[order]
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    source = np.repeat(membership.offsets[order] - offsets[:-1], sizes)
    source += np.arange(source.size)
    return membership.rows[source], offsets


def _choose(
    lengths: ArrayLike, settings: BatchingConfig, sample_ids: ArrayLike | None
) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
    """Lengths of the chosen samples, checked, and their ids in ascending order (None: all)."""
    every = np.asarray(lengths)
    if every.ndim != 1 or (every.size and every.dtype.kind not in "iu"):
        raise RefusedInput(f"lengths: expected one column of whole numbers, got {every.dtype} of shape {every.shape}")
    ids = None if sample_ids is None else _unique_ids(np.asarray(sample_ids), every.size)
    chosen = every if ids is None else every[ids]
    if not chosen.size:
        raise RefusedInput("lengths: no samples to plan; check that data.path isn't empty and data.holdout leaves some")
    _check_lengths(chosen, ids, settings)
    return np.ascontiguousarray(chosen, dtype=np.int32), ids


def _unique_ids(ids: NDArray[np.integer], samples: int) -> NDArray[np.int64]:
    if ids.size and (ids.dtype.kind not in "iu" or int(ids.min()) < 0 or int(ids.max()) >= samples):
        raise RefusedInput(f"sample_ids: expected whole numbers from 0 to {samples - 1}, got {ids.min()} to {ids.max()}")
    is_chosen = np.zeros(samples, np.bool_)
    is_chosen[ids.astype(np.int64)] = True
    chosen = np.flatnonzero(is_chosen)
    if chosen.size != ids.size:
        raise RefusedInput(f"sample_ids: {ids.size - chosen.size} come twice; a plan holds each sample once")
    return chosen


def _check_lengths(chosen: NDArray[np.integer], ids: NDArray[np.int64] | None, settings: BatchingConfig) -> None:
    shortest, longest = int(chosen.min()), int(chosen.max())
    if shortest < 1:
        bad = np.flatnonzero(chosen < 1)
        where = int(bad[0] if ids is None else ids[bad[0]])
        raise RefusedInput(
            f"lengths: {bad.size} of {chosen.size} samples are shorter than one token (sample {where} the first, {shortest} the "
            "smallest length); remove them, or prepare the data again"
        )
    if longest > np.iinfo(np.int32).max:
        raise RefusedInput(
            f"lengths: the longest is {longest} tokens; a length must fit 32 bits, so cut it when preparing the data"
        )
    if longest > settings.token_budget:
        over = int(np.count_nonzero(chosen > settings.token_budget))
        raise RefusedInput(
            f"batching.token_budget={settings.token_budget}: {over} of {chosen.size} rows are longer, the longest {longest} "
            f"tokens; set batching.token_budget={longest} or more, or prepare the data with a lower length limit"
        )
    if settings.strategy == "bucketed" and settings.boundaries is not None:
        refuse_uncovered(chosen, settings.boundaries)
