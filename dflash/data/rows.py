"""Conversations laid end to end: what a dataset gives out and what targets and drafters take. numpy only, no padding anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class TokenRows:
    """Some rows of a dataset.

    Attributes:
        sample_ids: int64 [rows], each row's number in the dataset.
        tokens: int32 [sum of lengths], the rows' token ids end to end.
        loss_mask: bool [sum of lengths], True where the token is supervised.
        offsets: int64 [rows + 1], ascending from 0; row r is `tokens[offsets[r]:offsets[r + 1]]`.
    """

    sample_ids: NDArray[np.int64]
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 [rows]."""
        return np.diff(self.offsets)

    def take(self, which: ArrayLike) -> TokenRows:
        """Some of the rows, by their place (int [rows taken]), in this order."""
        places = np.asarray(which, dtype=np.int64).reshape(-1)
        spans = [np.arange(self.offsets[place], self.offsets[place + 1]) for place in places]
        flat = np.concatenate([np.zeros(0, np.int64), *spans])
        offsets = np.concatenate([[0], np.cumsum(self.lengths[places])]).astype(np.int64)
        return TokenRows(self.sample_ids[places], self.tokens[flat], self.loss_mask[flat], offsets)
