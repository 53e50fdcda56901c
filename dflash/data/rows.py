"""Conversations laid end to end: what a dataset gives out and what targets and drafters take. numpy only, no padding anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
