"""The drafter: Qwen3-style layers over blocks of [anchor, MASK, ...], conditioned on the target's features.

The features of K captured target layers are projected once (`fc`, then `hidden_norm`) and serve every layer raw as context: in
each layer, queries come from the blocks only, keys and values from the same k_proj and v_proj applied to context and blocks.
Embedding and vocabulary head are the target's, frozen, and no part of this module; names and shapes of the parameters are
those of the released checkpoints, so a checkpoint is a plain save.

Two kinds of work are left out, both exactly: what the first layer does to the MASK embedding is the same in every slot and is
done once; and past the last layer's attention only the supervised slots go on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash.model.attention import Attend
from dflash.model.blocks import BlockLayout, DraftBlocks
from dflash.model.convolution import BlockConvolution
from dflash.model.rotary import Angles, rotary_angles, rotate
from dflash.model.selector import CandidateSelector
from dflash.model.shape import DrafterShape

_INIT_STD = 0.02


@dataclass(frozen=True)
class BlockInput:
    """What one pass of the drafter reads, on its device.

    Attributes:
        features: [context rows, captured layers x hidden].
        context_positions: [context rows] int64.
        anchor_embeddings: [blocks, hidden], the target's embedding of each anchor token.
        mask_embedding: [hidden], of the MASK token.
        anchor_positions: [blocks] int64.
        slots: [slots] int64, block * block_size + k of the slots whose final state is wanted.
        layout: who sees what.
    """

    features: Tensor
    context_positions: Tensor
    anchor_embeddings: Tensor
    mask_embedding: Tensor
    anchor_positions: Tensor
    slots: Tensor
    layout: BlockLayout


def block_input(blocks: DraftBlocks, features: Tensor, embedding: Tensor, mask_token_id: int) -> BlockInput:
    """Put a pass on the device of `embedding` ([vocabulary, hidden]); `features` are those of `blocks.context_tokens`."""
    device = embedding.device
    exact = torch.promote_types(embedding.dtype, torch.float32)  # the residual stream stays in float32 under autocast
    return BlockInput(
        features=features,
        context_positions=torch.from_numpy(blocks.context_positions).to(device),
        anchor_embeddings=embedding[torch.from_numpy(blocks.anchor_tokens).to(device)].to(exact),
        mask_embedding=embedding[mask_token_id].to(exact),
        anchor_positions=torch.from_numpy(blocks.anchor_positions).to(device),
        slots=torch.from_numpy(blocks.slots).to(device),
        layout=blocks.layout,
    )


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32 at least, returned in the dtype of x."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        """Normalise [..., width]."""
        exact = states.to(torch.promote_types(states.dtype, torch.float32))
        normed: Tensor = functional.rms_norm(exact, self.weight.shape, self.weight, self.eps).to(states.dtype)
        return normed


class SelfAttention(nn.Module):
    """Projections and per-head norms; the attention itself is a back end's."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def query(self, states: Tensor) -> Tensor:
        """[..., hidden] -> [..., heads, head_dim], normalised, not yet rotated."""
        query: Tensor = self.q_norm(self.q_proj(states).unflatten(-1, (-1, self.head_dim)))
        return query

    def key_value(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """[..., hidden] -> keys (normalised, not yet rotated) and values, [..., kv_heads, head_dim]."""
        key = self.k_norm(self.k_proj(states).unflatten(-1, (-1, self.head_dim)))
        return key, self.v_proj(states).unflatten(-1, (-1, self.head_dim))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        gated: Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return gated


class DrafterLayer(nn.Module):
    """One decoder layer, in two parts around the attention; in DFlash 2 each sublayer stands inside a `BlockConvolution`."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.attention_conv, self.mlp_conv = None, None
        if shape.dflash2 is not None:
            self.attention_conv, self.mlp_conv = (
                BlockConvolution(shape.hidden_size, shape.dflash2.taps, shape.dflash2.group_size) for _ in range(2)
            )
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = SelfAttention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = SwiGLU(shape)

    def before(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Block states [..., hidden] -> query, key, value of each, not yet rotated, and what `after` needs of the convolution."""
        normed, changes = self.input_layernorm(states), None
        if self.attention_conv is not None:
            normed, changes = self.attention_conv.enter(normed)
        return self.self_attn.query(normed), *self.self_attn.key_value(normed), changes

    def after(self, states: Tensor, attended: Tensor, changes: Tensor | None = None) -> Tensor:
        """Block states [..., hidden] and what they attended to [..., heads x head_dim] -> states after the layer.

        With convolutions both are [blocks, slots, ...] of whole blocks; without, of any slots.
        """
        made = self.self_attn.o_proj(attended)
        if self.attention_conv is not None and changes is not None:
            made = self.attention_conv.leave(made, changes)
        states = states + made
        normed = self.post_attention_layernorm(states)
        if self.mlp_conv is None:
            out: Tensor = states + self.mlp(normed)
            return out
        normed, changes = self.mlp_conv.enter(normed)
        return states + self.mlp_conv.leave(self.mlp(normed), changes)


class Drafter(nn.Module):
    """See the module's text. Parameters are float32; under autocast the products run in bfloat16."""

    def __init__(self, shape: DrafterShape, attend: Attend) -> None:
        super().__init__()
        self.shape = shape
        self.attend = attend
        self.fc = nn.Linear(shape.feature_size, shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.candidate_selector = None
        if shape.dflash2 is not None:
            two = shape.dflash2
            self.candidate_selector = CandidateSelector(shape.hidden_size, shape.vocab_size, two.rank, two.top_k)

    @torch.no_grad()
    def initialise(self, seed: int, final_norm: Tensor) -> None:
        """Draw first weights: matrices N(0, 0.02^2) from `seed`, the same on every device; norms 1, the last the target's own.

        With the target's final norm the first states reach the frozen head at the scale it was trained for. What DFlash 2 adds begins
        without effect, and the rest as in DFlash.
        """
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, BlockConvolution):
                module.initialise()
            if isinstance(module, CandidateSelector):
                module.initialise(seed)
        for name, parameter in self.named_parameters():
            if "_conv." in name or name.startswith("candidate_selector."):
                continue
            if parameter.ndim == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * _INIT_STD)
            else:
                parameter.fill_(1.0)
        self.norm.weight.copy_(final_norm)

    def embedded(self, embeddings: Tensor) -> Tensor:
        """Rows of the target's embedding table -> what the first layer reads, scaled as the target scales them."""
        return embeddings if self.shape.embedding_scale == 1.0 else embeddings * self.shape.embedding_scale

    def context(self, features: Tensor) -> Tensor:
        """Features [..., captured layers x hidden] -> context states [..., hidden], the same for every layer."""
        context: Tensor = self.hidden_norm(self.fc(features))
        return context

    def forward(self, inputs: BlockInput) -> Tensor:
        """Final states [slots, hidden] of `inputs.slots`, ready for the target's head."""
        layout = inputs.layout
        block_shape = (layout.blocks, layout.block_size)
        offsets = torch.arange(layout.block_size, device=inputs.anchor_positions.device)
        block_angles = self._angles(inputs.anchor_positions[:, None] + offsets)
        context_angles = self._angles(inputs.context_positions)
        context = self.context(inputs.features)

        distinct = self.embedded(torch.cat([inputs.anchor_embeddings, inputs.mask_embedding[None]]))
        states = _spread(distinct, layout.block_size)
        whole_blocks = self.shape.dflash2 is not None  # convolutions make the slots of a block depend on each other
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DrafterLayer)
            if index == 0 and not whole_blocks:
                query, key, value = (_spread(part, layout.block_size) for part in layer.before(distinct)[:3])
                changes = None
            else:
                query, key, value, changes = layer.before(states)
            context_key, context_value = layer.self_attn.key_value(context)
            attended = self.attend(
                rotate(query, block_angles),
                rotate(key, block_angles),
                value,
                rotate(context_key, context_angles),
                context_value,
                layout,
                self.shape.window(index),
            ).flatten(-2)
            if index == len(self.layers) - 1 and not whole_blocks:  # nothing looks at the other slots any more
                states = states.view(-1, states.shape[-1])[inputs.slots]
                attended = attended.view(block_shape[0] * block_shape[1], -1)[inputs.slots]
            states = layer.after(states, attended, changes)
        if whole_blocks:
            states = states.reshape(-1, states.shape[-1])[inputs.slots]
        out: Tensor = self.norm(states)
        return out

    def _angles(self, positions: Tensor) -> Angles:
        return rotary_angles(positions, self.shape.head_dim, self.shape.rope)


def _spread(rows: Tensor, block_size: int) -> Tensor:
    """[blocks + 1, ...], one row an anchor and the MASK's last -> [blocks, block_size, ...]."""
    blocks = len(rows) - 1
    masks = rows[-1:].unsqueeze(0).expand(blocks, block_size - 1, *rows.shape[1:])
    return torch.cat([rows[:-1].unsqueeze(1), masks], dim=1)
