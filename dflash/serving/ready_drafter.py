"""A drafter's weights laid out for decoding: fewer and larger products, and everything that never changes computed once.

- queries, keys and values of a layer come from one product, gate and up from another;
- the context's keys and values of ALL layers come from one product, since every layer reads the same context states;
- the MASK token enters every slot but the first: its way to the first layer's attention is the same each time and is kept;
- the rotary angles are a table.

The arithmetic is `Drafter.forward`'s. The copies hold the weights as they were when they were made.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from dflash.model.convolution import BlockConvolution
from dflash.model.drafter import Drafter, DrafterLayer
from dflash.model.objectives.measures import capped
from dflash.model.rotary import rotary_angles

_TABLE_POSITIONS = 512  # of the table of angles at first; doubled when short


@dataclass(frozen=True)
class ReadyLayer:
    """One layer; products in the drafter's computing dtype, norms float32.

    Attributes:
        input_norm, output_norm: [hidden], before the attention and before the MLP.
        query_key_value: [(heads + 2 kv heads) x head_dim, hidden].
        head_norm: [heads + kv heads, head_dim], of each query head and each key head.
        out: [hidden, heads x head_dim].
        gate_up: [2 x intermediate, hidden]; down: [hidden, intermediate].
        attention_conv, mlp_conv: DFlash 2's.
    """

    input_norm: Tensor
    query_key_value: Tensor
    head_norm: Tensor
    out: Tensor
    output_norm: Tensor
    gate_up: Tensor
    down: Tensor
    attention_conv: BlockConvolution | None
    mlp_conv: BlockConvolution | None


class ReadyDrafter:
    """See the module's text.

    Attributes:
        shape: the drafter's.
        dtype: products are computed in it: bfloat16 on a GPU, float32 on a CPU.
        layers: one `ReadyLayer` each.
        mask_states: [hidden] float32, the MASK token as the first layer reads it.
        mask_projected: (heads + kv heads) x head_dim normalised queries and keys, not yet rotated, [heads + kv heads, head_dim], and
            values [kv heads, head_dim]: the MASK token's in the first layer, where no convolution stands before it.
        selector: DFlash 2's; None without one.
    """

    @torch.inference_mode()
    def __init__(self, drafter: Drafter, embedding: Tensor, head: Tensor) -> None:
        """Lay out a drafter beside the target's tables [vocabulary, hidden] on the device of `embedding`."""
        self.shape = drafter.shape
        self._embedding, self._head = embedding, head
        self.dtype = torch.bfloat16 if embedding.device.type == "cuda" else torch.float32
        layers = [cast(DrafterLayer, layer) for layer in drafter.layers]
        self.layers = [self._lay_out(layer) for layer in layers]
        attentions = [layer.self_attn for layer in layers]
        self._fc = drafter.fc.weight.to(self.dtype)
        self._context_norm = drafter.hidden_norm.weight.detach()
        projections = [each.k_proj.weight for each in attentions] + [each.v_proj.weight for each in attentions]
        self._context_key_value = torch.cat(projections).to(self.dtype)  # all layers' keys, then all layers' values
        self._context_key_norm = torch.stack([each.k_norm.weight for each in attentions])[:, None]  # [layers, 1, head_dim]
        self._final_norm = drafter.norm.weight.detach()
        self.selector = drafter.candidate_selector
        self._cos, self._sin = self._table(_TABLE_POSITIONS)
        self.mask_states = self.embedded(self.shape.mask_token_id)
        self.mask_projected = self.projected(0, self.mask_states[None])

    def _lay_out(self, layer: DrafterLayer) -> ReadyLayer:
        attention, mlp, shape = layer.self_attn, layer.mlp, self.shape
        head_norm = torch.cat([attention.q_norm.weight.expand(shape.heads, -1), attention.k_norm.weight.expand(shape.kv_heads, -1)])
        return ReadyLayer(
            input_norm=layer.input_layernorm.weight.detach(),
            query_key_value=torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]).to(self.dtype),
            head_norm=head_norm,
            out=attention.o_proj.weight.to(self.dtype),
            output_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).to(self.dtype),
            down=mlp.down_proj.weight.to(self.dtype),
            attention_conv=self._convolution(layer.attention_conv),
            mlp_conv=self._convolution(layer.mlp_conv),
        )

    def _convolution(self, convolution: BlockConvolution | None) -> BlockConvolution | None:
        return None if convolution is None else copy.deepcopy(convolution).to(self.dtype)

    def embedded(self, token: int) -> Tensor:
        """A token as the first layer reads it: [hidden] float32."""
        return self._embedding[token].float() * self.shape.embedding_scale

    def projected(self, index: int, states: Tensor) -> tuple[Tensor, Tensor]:
        """Block states [slots, hidden] -> a layer's queries and keys [slots, heads + kv heads, head_dim], normalised, not yet rotated,
        and its values [slots, kv heads, head_dim]."""
        return self._heads(index, self._normed(states, self.layers[index].input_norm))

    def projected_block(self, index: int, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """`projected` of a whole block [slots, hidden], its convolution included, and what `after` needs of that."""
        layer = self.layers[index]
        normed, changes = self._normed(states, layer.input_norm), None
        if layer.attention_conv is not None:
            normed, changes = layer.attention_conv.enter(normed)
        return *self._heads(index, normed), changes

    def _heads(self, index: int, normed: Tensor) -> tuple[Tensor, Tensor]:
        layer, shape = self.layers[index], self.shape
        heads = functional.linear(normed, layer.query_key_value).view(len(normed), -1, shape.head_dim)
        both = shape.heads + shape.kv_heads
        return self._heads_normed(heads[:, :both], layer.head_norm), heads[:, both:]

    def after(self, index: int, states: Tensor, attended: Tensor, changes: Tensor | None = None) -> Tensor:
        """Block states [slots, hidden] and what they attended to [slots, heads x head_dim] -> states after the layer.

        With convolutions the slots are those of a whole block, and `changes` is `projected_block`'s.
        """
        layer = self.layers[index]
        made = functional.linear(attended, layer.out)
        if layer.attention_conv is not None and changes is not None:
            made = layer.attention_conv.leave(made, changes)
        states = states + made
        normed = self._normed(states, layer.output_norm)
        if layer.mlp_conv is None:
            return states + self._mlp(layer, normed)
        normed, changes = layer.mlp_conv.enter(normed)
        return states + layer.mlp_conv.leave(self._mlp(layer, normed), changes)

    @staticmethod
    def _mlp(layer: ReadyLayer, normed: Tensor) -> Tensor:
        gate, up = functional.linear(normed, layer.gate_up).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, layer.down)

    def context(self, features: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Features [tokens, captured layers x hidden] of the tokens from position `start` on -> rotated keys and values of all layers,
        [tokens, layers, kv heads, head_dim]."""
        shape = self.shape
        context = self._normed(functional.linear(features.to(self.dtype), self._fc), self._context_norm)
        both = functional.linear(context, self._context_key_value).view(-1, 2, shape.layers, shape.kv_heads, shape.head_dim)
        keys = self._heads_normed(both[:, 0], self._context_key_norm)
        cos, sin = self.angles(start, start + len(features))
        return turned(keys, cos[:, None], sin[:, None]), both[:, 1]

    def logits(self, states: Tensor) -> Tensor:
        """States [slots, hidden] after the last layer -> the drafter's logits [slots, vocabulary], float32."""
        logits = functional.linear(self.final(states).to(self._head.dtype), self._head).float()
        return capped(logits, self.shape.final_logit_softcap)

    def final(self, states: Tensor) -> Tensor:
        """States [slots, hidden] after the last layer, normalised, as the head and DFlash 2's selector read them."""
        return self._normed(states, self._final_norm)

    def angles(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines (see `turned`) of the positions start .. end - 1: [positions, 1, head_dim] float32."""
        if end > len(self._cos):
            self._cos, self._sin = self._table(2 * end)
        return self._cos[start:end], self._sin[start:end]

    @torch.inference_mode()
    def _table(self, positions: int) -> tuple[Tensor, Tensor]:
        angles = rotary_angles(torch.arange(positions, device=self._embedding.device), self.shape.head_dim, self.shape.rope)
        return torch.cat([angles.cos, angles.cos], -1), torch.cat([-angles.sin, angles.sin], -1)

    def _normed(self, states: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(states.float(), weight.shape, weight, self.shape.rms_norm_eps).to(self.dtype)

    def _heads_normed(self, heads: Tensor, weight: Tensor) -> Tensor:
        normed = functional.rms_norm(heads.float(), heads.shape[-1:], None, self.shape.rms_norm_eps)
        return (normed * weight).to(self.dtype)


def turned(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate [..., heads, head_dim] as `dflash.model.rotary.rotate` does, in three operations.

    Element i < head_dim / 2 is paired with i + head_dim / 2; `signed_sin` is minus the sine in the first half, the sine in the second.
    """
    other = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * cos, other, signed_sin).to(heads.dtype)
