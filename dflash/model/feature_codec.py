"""How features are kept as bytes: bfloat16, or float8_e4m3 with a scale for each layer's state of each token.

float8_e4m3 has 3 bits after the leading one and reaches 448. A group of numbers (one layer's state of one token) is divided by its largest
magnitude / 448, so nothing overflows. Rounding then moves x by at most |x| / 16, or by scale / 1024 where x is so small that it has
lost its leading bit (below scale / 64). A token is its groups' scales (float32), then its numbers, a byte each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.errors import RunFailed
from dflash.model.cache_facts import CacheFacts

LARGEST = 448.0
_FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Codec:
    """Bytes of features and back.

    Attributes:
        dtype: bfloat16 or float8_e4m3.
        width: numbers a token.
        group: numbers that share a scale.
    """

    dtype: str
    width: int
    group: int

    @classmethod
    def of(cls, facts: CacheFacts) -> Codec:
        """The codec of a cache."""
        return cls(facts.dtype, facts.width, facts.group)

    def encode(self, features: Tensor) -> NDArray[np.uint8]:
        """Features [tokens, width] of any float dtype and device -> bytes [tokens, token_bytes].

        Raises:
            RunFailed: a number isn't finite.
        """
        if not torch.isfinite(features).all():
            raise RunFailed("the target's features hold numbers that aren't finite: set target.dtype=float32 or features=live")
        if self.dtype == "bfloat16":
            return _bytes(features.to(torch.bfloat16))
        groups = features.float().reshape(len(features), -1, self.group)
        scales = groups.abs().amax(-1, keepdim=True) / LARGEST
        scales = torch.where(scales > 0, scales, 1.0)
        numbers = (groups / scales).clamp(-LARGEST, LARGEST).to(_FP8).flatten(-2)
        return np.concatenate([_bytes(scales.squeeze(-1)), _bytes(numbers)], axis=1)

    def decode(self, kept: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
        """Bytes [tokens, token_bytes] -> features [tokens, width] in `dtype`, on the CPU."""
        if self.dtype == "bfloat16":
            return torch.from_numpy(kept).view(torch.bfloat16).to(dtype)
        scale_bytes = 4 * (self.width // self.group)
        scales = torch.from_numpy(np.ascontiguousarray(kept[:, :scale_bytes])).view(torch.float32)
        numbers = torch.from_numpy(np.ascontiguousarray(kept[:, scale_bytes:])).view(_FP8).float()
        return (numbers.reshape(len(kept), -1, self.group) * scales[:, :, None]).reshape(len(kept), -1).to(dtype)


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """A tensor [tokens, ...] as bytes [tokens, bytes of a token]."""
    bytes_: NDArray[np.uint8] = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
    return bytes_
