"""A DFlash drafter the plain way: the yardstick of benchmarks/drafter_step.py and the oracle of the tests.

Written apart from dflash.model, with nothing shared but the parameters' names. Conversations are padded to the longest, each has the
same number of anchor slots (invalid ones are computed and weigh nothing), one boolean mask lies over [context ; all blocks],
all slots get logits over the whole vocabulary, and autograd does the rest. So one reads off it what the drafter computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class PlainSizes:
    """Sizes of a drafter; `windows` gives each layer's look-back in tokens, None for all."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    captured: int
    block_size: int
    mask_token: int
    windows: tuple[int | None, ...]
    is_causal: bool = False
    eps: float = 1e-6
    theta: float = 10_000.0


class PlainNorm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class PlainAttention(nn.Module):
    """Queries of the blocks, keys and values of [context ; blocks]."""

    def __init__(self, sizes: PlainSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.q_proj = nn.Linear(sizes.hidden, sizes.heads * sizes.head_dim, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, sizes.kv_heads * sizes.head_dim, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, sizes.kv_heads * sizes.head_dim, bias=False)
        self.o_proj = nn.Linear(sizes.heads * sizes.head_dim, sizes.hidden, bias=False)
        self.q_norm = PlainNorm(sizes.head_dim, sizes.eps)
        self.k_norm = PlainNorm(sizes.head_dim, sizes.eps)

    def forward(self, x: Tensor, context: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Attend under a boolean mask [rows, 1, queries, keys]."""
        rows, queries, _ = x.shape
        both = torch.cat([context, x], dim=1)
        q = self.q_norm(self.q_proj(x).view(rows, queries, -1, self.sizes.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(both).view(rows, both.shape[1], -1, self.sizes.head_dim)).transpose(1, 2)
        v = self.v_proj(both).view(rows, both.shape[1], -1, self.sizes.head_dim).transpose(1, 2)
        q = _rotated(q, cos[:, :, -queries:], sin[:, :, -queries:])
        k = _rotated(k, cos, sin)
        shared = self.sizes.heads // self.sizes.kv_heads
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(rows, queries, -1))


class PlainLayer(nn.Module):
    """One decoder layer."""

    def __init__(self, sizes: PlainSizes) -> None:
        super().__init__()
        self.input_layernorm = PlainNorm(sizes.hidden, sizes.eps)
        self.post_attention_layernorm = PlainNorm(sizes.hidden, sizes.eps)
        self.self_attn = PlainAttention(sizes)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(sizes.hidden, sizes.intermediate, bias=False),
                "up_proj": nn.Linear(sizes.hidden, sizes.intermediate, bias=False),
                "down_proj": nn.Linear(sizes.intermediate, sizes.hidden, bias=False),
            }
        )

    def forward(self, x: Tensor, context: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Block states after the layer."""
        x = x + self.self_attn(self.input_layernorm(x), context, cos, sin, mask)
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](functional.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))


class PlainDrafter(nn.Module):
    """The whole drafter; parameter names are those of the released checkpoints."""

    def __init__(self, sizes: PlainSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.fc = nn.Linear(sizes.captured * sizes.hidden, sizes.hidden, bias=False)
        self.hidden_norm = PlainNorm(sizes.hidden, sizes.eps)
        self.norm = PlainNorm(sizes.hidden, sizes.eps)
        self.layers = nn.ModuleList(PlainLayer(sizes) for _ in sizes.windows)

    def forward(self, features: Tensor, tokens: Tensor, anchors: Tensor, embedding: Tensor) -> Tensor:
        """Final states [rows, anchors, block_size, hidden] of padded features [rows, length, captured x hidden]."""
        rows, length = tokens.shape
        count, size = anchors.shape[1], self.sizes.block_size
        ids = torch.full((rows, count, size), self.sizes.mask_token)
        ids[:, :, 0] = tokens.gather(1, anchors)
        x = embedding[ids].view(rows, count * size, -1)
        context = self.hidden_norm(self.fc(features))
        in_block = torch.arange(size)
        block_positions = (anchors[:, :, None] + in_block).view(rows, -1)
        positions = torch.cat([torch.arange(length).expand(rows, -1), block_positions], dim=1)
        cos, sin = _angles(positions, self.sizes, x.dtype)
        for layer, window in zip(self.layers, self.sizes.windows, strict=True):
            mask = self._mask(anchors, block_positions, length, window)
            x = layer(x, context, cos, sin, mask)
        return self.norm(x).view(rows, count, size, -1)

    def _mask(self, anchors: Tensor, block_positions: Tensor, length: int, window: int | None) -> Tensor:
        rows, count = anchors.shape
        size = self.sizes.block_size
        start = anchors.repeat_interleave(size, dim=1)[:, :, None]
        context = torch.arange(length).expand(rows, 1, length)
        sees_context = context < start
        if window is not None:
            sees_context = sees_context & (block_positions[:, :, None] - context < window)
        block = torch.arange(count * size) // size
        sees_block = block[:, None] == block[None, :]
        if self.sizes.is_causal:
            sees_block = sees_block & torch.ones(count * size, count * size, dtype=torch.bool).tril()
        return torch.cat([sees_context, sees_block.expand(rows, -1, -1)], dim=2)[:, None]


def plain_loss(
    drafter: PlainDrafter,
    features: Tensor,
    tokens: Tensor,
    loss_mask: Tensor,
    lengths: Tensor,
    anchors: Tensor,
    anchor_is_valid: Tensor,
    embedding: Tensor,
    head: Tensor,
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Loss sum and weight sum of padded conversations.

    Args:
        drafter: the model.
        features: [rows, length, captured x hidden].
        tokens, loss_mask: [rows, length].
        lengths: [rows]; real tokens of each.
        anchors, anchor_is_valid: [rows, anchors].
        embedding, head: [vocabulary, hidden].
        gamma: decay of the weights, exp(-(k - 1) / gamma).
    """
    logits = drafter(features, tokens, anchors, embedding) @ head.T
    size = drafter.sizes.block_size
    steps = torch.arange(size)
    place = anchors[:, :, None] + steps
    inside = place < lengths[:, None, None]
    place = place.clamp(max=tokens.shape[1] - 1)
    labels = tokens[:, None].expand(-1, anchors.shape[1], -1).gather(2, place)
    supervised = loss_mask[:, None].expand(-1, anchors.shape[1], -1).gather(2, place)
    weights = anchor_is_valid[:, :, None] * inside * supervised * (steps > 0) * torch.exp(-(steps - 1).to(logits.dtype) / gamma)
    nll = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view_as(weights)
    return (nll * weights).sum(), weights.sum()


def _angles(positions: Tensor, sizes: PlainSizes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rates = torch.tensor([sizes.theta ** (-2 * i / sizes.head_dim) for i in range(sizes.head_dim // 2)], dtype=torch.float64)
    angles = (positions[:, None, :, None] * rates).repeat(1, 1, 1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def expected_first_loss(vocabulary: int) -> float:
    """Nats per token of a model that knows nothing."""
    return math.log(vocabulary)
