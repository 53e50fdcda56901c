"""The drafter with a cache of its context: each token's features are projected once, each draft computes only its block.

Training lays many blocks over one context and computes all context keys in each pass (`Drafter.forward`). Decoding has one block at a
time and a context that only grows, so the keys and values of each layer's context are kept. The arithmetic is the same, by the same
layers; a test holds the two against each other.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dflash.model.blocks import BlockLayout
from dflash.model.drafter import Drafter, DrafterLayer
from dflash.model.rotary import rotary_angles, rotate
from dflash.serving.cached_target import DecodingTarget


class DraftSequence:
    """Drafts for one sequence.

    Attributes:
        length: tokens whose features the context holds; the next anchor stands at this position.
    """

    def __init__(self, drafter: Drafter, target: DecodingTarget, capacity: int) -> None:
        """Make room for a context of `capacity` tokens at most."""
        self.length = 0
        self._drafter = drafter
        self._target = target
        shape, device = drafter.shape, target.device
        self._autocasts = device.type == "cuda"
        dtype = torch.bfloat16 if self._autocasts else torch.float32
        room = (shape.layers, 2, capacity, shape.kv_heads, shape.head_dim)  # 2: keys (rotated) and values
        self._context = torch.empty(room, dtype=dtype, device=device)
        self._mask_embedding = target.embedding[shape.mask_token_id].float()

    @torch.no_grad()
    def extend(self, features: Tensor) -> None:
        """Add the features [tokens, captured layers x hidden] of the tokens that follow those the context holds."""
        end = self.length + len(features)
        shape = self._drafter.shape
        positions = torch.arange(self.length, end, device=features.device)
        angles = rotary_angles(positions, shape.head_dim, shape.rope)
        with self._autocast():
            context = self._drafter.context(features.to(self._context.dtype))
            for index, layer in enumerate(self._drafter.layers):
                assert isinstance(layer, DrafterLayer)
                key, value = layer.self_attn.key_value(context)
                self._context[index, 0, self.length : end] = rotate(key, angles)
                self._context[index, 1, self.length : end] = value
        self.length = end

    @torch.no_grad()
    def logits(self, anchor: int) -> Tensor:
        """The drafter's logits [block_size - 1, vocabulary] for the places after the anchor token, which stands at `length`."""
        shape = self._drafter.shape
        layout = BlockLayout(np.zeros(1, np.int64), np.array([self.length]), self.length, shape.block_size, shape.is_causal)
        positions = torch.arange(self.length, self.length + shape.block_size, device=self._context.device)
        angles = rotary_angles(positions[None], shape.head_dim, shape.rope)
        masks = self._mask_embedding.expand(shape.block_size - 1, -1)
        states = self._drafter.embedded(torch.cat([self._target.embedding[anchor].float()[None], masks]))[None]
        with self._autocast():
            for index, layer in enumerate(self._drafter.layers):
                assert isinstance(layer, DrafterLayer)
                query, key, value = layer.before(states)
                context_key, context_value = self._context[index, :, : self.length]
                attended = self._drafter.attend(
                    rotate(query, angles), rotate(key, angles), value, context_key, context_value, layout, shape.window(index)
                )
                states = layer.after(states, attended.flatten(-2))
            hidden = self._drafter.norm(states)[0, 1:]
        logits: Tensor = (hidden.to(self._target.head.dtype) @ self._target.head.T).float()
        cap = shape.final_logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._context.device.type, torch.bfloat16, enabled=self._autocasts)
