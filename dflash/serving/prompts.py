"""Prompts out of a prepared data set: of each conversation what stands before its first supervised token.

So a prompt ends where the assistant begins to speak, template included, and the target writes the answer itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash.data.dataset import TokenDataset
from dflash.errors import RefusedInput
from dflash.pipeline.plans import split_holdout
from dflash.serving.checkpoint import FoundDrafter


@dataclass(frozen=True)
class Prompt:
    """The start of a conversation: its sample id, and its tokens (int32)."""

    sample_id: int
    tokens: NDArray[np.int32]


def evaluation_samples(dataset: TokenDataset, found: FoundDrafter, warn: Callable[[str], None]) -> NDArray[np.int64]:
    """The samples a drafter may fairly be evaluated on: those held out of its training, or all of another data set's.

    A drafter trained on this very data set with nothing held out (or of unknown origin) is evaluated on all, and `warn` is told.
    """
    holdout = int(found.origin.get("holdout") or 0)
    if found.origin.get("data") == dataset.fingerprint and holdout:
        return split_holdout(len(dataset), holdout, int(found.origin.get("seed") or 0))[1]
    if found.origin.get("data") in (None, dataset.fingerprint):
        warn(f"{dataset.path}: the drafter may have been trained on these conversations; nothing is known to be held out")
    return np.arange(len(dataset))


def take_prompts(dataset: TokenDataset, samples: NDArray[np.int64], limit: int) -> list[Prompt]:
    """The prompts of the first `limit` of these samples that have one (at least one token before the first supervised one).

    Raises:
        RefusedInput: none has.
    """
    prompts: list[Prompt] = []
    for sample in samples:
        if len(prompts) == limit:
            break
        rows = dataset.rows([sample])
        supervised = np.flatnonzero(rows.loss_mask)
        if len(supervised) and supervised[0]:
            prompts.append(Prompt(int(sample), rows.tokens[: supervised[0]]))
    if not prompts:
        raise RefusedInput(f"{dataset.path}: none of {len(samples)} conversations has anything before its first supervised token")
    return prompts
