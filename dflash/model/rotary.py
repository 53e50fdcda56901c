"""Rotary positions in the half-split form: element i of a head is paired with element i + head_dim / 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Angles:
    """Cosine and sine of each position's angles: [..., 1, head_dim / 2], float32; the 1 stands for the heads."""

    cos: Tensor
    sin: Tensor


def rotary_angles(positions: Tensor, head_dim: int, theta: float) -> Angles:
    """Angles position x theta ** (-2 i / head_dim), i = 0 .. head_dim / 2 - 1, for positions [...] (int64)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    angles = positions[..., None, None].double() * theta**-exponents  # float32 would be off by 1e-4 at position 4,000
    return Angles(angles.cos().float(), angles.sin().float())


def rotate(states: Tensor, angles: Angles) -> Tensor:
    """Rotate [..., heads, head_dim] by the angles of its positions; computed in float32 at least, returned in its own dtype."""
    rotated: Tensor = _Rotate.apply(states, angles.cos, angles.sin)  # type: ignore[no-untyped-call]
    return rotated


class _Rotate(torch.autograd.Function):
    """The gradient of a rotation is the rotation back, so nothing but the angles is kept."""

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
