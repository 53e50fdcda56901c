"""Rotary positions in the half-split form: element i of a head is paired with element i + head_dim / 2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from dflash.model.rope import Rope


@dataclass(frozen=True)
class Angles:
    """Cosine and sine of each position's angles: [..., 1, head_dim / 2], float32; the 1 stands for the heads."""

    cos: Tensor
    sin: Tensor


def rotary_angles(positions: Tensor, head_dim: int, rope: Rope) -> Angles:
    """Angles position x rate of each pair, for positions [...] (int64); cosine and sine times the rope's attention factor.

    `dynamic` beyond the positions that need no scaling: each position turns with the base of a text that ends there, so that a key has
    the same angle whether it is computed alone, in a batch, or was kept in a cache.
    """
    where = positions[..., None, None].double()  # float32 would be off by 1e-4 at position 4,000
    if rope.type == "dynamic":
        stretched = rope.factor * (where + 1).clamp(min=rope.original_positions) / rope.original_positions - (rope.factor - 1)
        base = rope.theta * stretched ** (head_dim / (head_dim - 2))
        angles = where * base ** -(torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim)
    else:
        angles = where * _rates(rope, head_dim, positions.device)
    return Angles((angles.cos() * rope.attention_factor).float(), (angles.sin() * rope.attention_factor).float())


@lru_cache(maxsize=8)  # so that a decoder on a GPU doesn't wait for a copy at every block
def _rates(rope: Rope, head_dim: int, device: torch.device) -> Tensor:
    return torch.from_numpy(rope.rates(head_dim)).to(device)


def rotate(states: Tensor, angles: Angles) -> Tensor:
    """Rotate [..., heads, head_dim] by the angles of its positions; computed in float32 at least, returned in its own dtype."""
    rotated: Tensor = _Rotate.apply(states, angles.cos, angles.sin)  # type: ignore[no-untyped-call]
    return rotated


class _Rotate(torch.autograd.Function):
    """The gradient of a rotation is the rotation back (a scale stays), so nothing but the angles is kept."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(states, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grad_outputs[0], cos, -sin), None, None


def _turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    exact = torch.promote_types(states.dtype, torch.float32)
    first, second = states.to(exact).chunk(2, dim=-1)
    cos, sin = cos.to(exact), sin.to(exact)
    turned = torch.empty(states.shape, dtype=exact, device=states.device)
    out_first, out_second = turned.chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    return turned.to(states.dtype)
