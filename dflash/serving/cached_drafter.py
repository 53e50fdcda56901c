"""The drafter with a cache of its context: each token's features are projected once, each draft computes only its block.

Training lays many blocks over one context and computes all context keys in each pass (`Drafter.forward`). Decoding has one block at a
time and a context that only grows, so the keys and values of each layer's context are kept, and a block's own are written behind them, where
the next context will stand: one buffer, one attention call a layer. Past the last layer's attention only the slots go on whose tokens are
wanted. A test holds this against the training pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dflash.model.drafter import Drafter
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.candidates import draw_candidates
from dflash.serving.ready_drafter import ReadyDrafter, turned
from dflash.serving.sampling import Draft, draw


def ready(drafter: Drafter | ReadyDrafter, target: DecodingTarget) -> ReadyDrafter:
    """The drafter laid out for decoding beside this target."""
    return drafter if isinstance(drafter, ReadyDrafter) else ReadyDrafter(drafter, target.embedding, target.head)


class DraftSequence:
    """Drafts for one sequence.

    Attributes:
        length: tokens whose features the context holds; the next anchor stands at this position.
    """

    @torch.inference_mode()
    def __init__(self, drafter: Drafter | ReadyDrafter, target: DecodingTarget, capacity: int) -> None:
        """Make room for a context of `capacity` tokens at most."""
        self.length = 0
        self._drafter = ready(drafter, target)
        shape, dtype = self._drafter.shape, self._drafter.dtype
        room = (shape.layers, shape.kv_heads, capacity + shape.block_size, shape.head_dim)
        self._keys = torch.empty(room, dtype=dtype, device=target.device)  # rotated
        self._values = torch.empty(room, dtype=dtype, device=target.device)
        block = shape.block_size
        self._states = self._drafter.mask_states.repeat(block, 1)
        self._first = tuple(part.repeat(block, 1, 1) for part in self._drafter.mask_projected)

    @torch.inference_mode()
    def extend(self, features: Tensor) -> None:
        """Add the features [tokens, captured layers x hidden] of the tokens that follow those the context holds."""
        end = self.length + len(features)
        keys, values = self._drafter.context(features, self.length)
        self._keys[:, :, self.length : end] = keys.permute(1, 2, 0, 3)
        self._values[:, :, self.length : end] = values.permute(1, 2, 0, 3)
        self.length = end

    @torch.inference_mode()
    def states(self, anchor: int, places: int) -> Tensor:
        """The last layer's states [places, hidden] at the first places after the anchor token, which stands at `length`."""
        drafter, last = self._drafter, len(self._drafter.layers) - 1
        cos, sin = drafter.angles(self.length, self.length + drafter.shape.block_size)
        states = self._states.clone()
        states[0] = drafter.embedded(anchor)
        whole_blocks = drafter.shape.dflash2 is not None  # convolutions make the slots of a block depend on each other
        for index in range(last + 1):
            changes, slots = None, slice(None)
            if whole_blocks:
                both, values, changes = drafter.projected_block(index, states)
            elif index == 0:
                both, values = self._first_projected(states[:1])
            else:
                both, values = drafter.projected(index, states)
            if index == last and not whole_blocks:  # nothing looks at the other slots any more
                slots = slice(1, 1 + places)
                states = states[slots]
            states = drafter.after(index, states, self._attended(index, turned(both, cos, sin), values, slots), changes)
        return states[1 : 1 + places] if whole_blocks else states

    def draft(self, states: Tensor, anchor: int, temperature: float, generator: torch.Generator) -> Draft:
        """Propose a token for each of these states' places; the anchor is the token before the first."""
        selector = self._drafter.selector
        if selector is None:
            return draw(self.head(states), temperature, generator)
        hidden = self._drafter.final(states)
        return draw_candidates(selector, hidden, self.head(states), anchor, temperature, generator)

    @torch.inference_mode()
    def head(self, states: Tensor) -> Tensor:
        """Logits [places, vocabulary] of such states."""
        return self._drafter.logits(states)

    def logits(self, anchor: int, places: int | None = None) -> Tensor:
        """The drafter's logits [places, vocabulary] for the places after the anchor token; all of the block's when not told."""
        return self.head(self.states(anchor, self._drafter.shape.block_size - 1 if places is None else places))

    def _first_projected(self, anchor: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's projections: only the anchor's are new."""
        both, values = (part.clone() for part in self._first)
        both[:1], values[:1] = self._drafter.projected(0, anchor)
        return both, values

    def _attended(self, index: int, both: Tensor, values: Tensor, slots: slice) -> Tensor:
        """[slots, heads x head_dim]: attention of the block's `slots` over the context and the whole block."""
        shape = self._drafter.shape
        end, window = self.length + shape.block_size, shape.window(index)
        self._keys[index, :, self.length : end] = both[:, shape.heads :].transpose(0, 1)
        self._values[index, :, self.length : end] = values.transpose(0, 1)
        start = 0 if window is None else max(self.length - window + 1, 0)
        query = both[slots, : shape.heads]
        count, shared, width = len(query), shape.heads // shape.kv_heads, shape.head_dim
        grouped = query.view(count, shape.kv_heads, shared, width).permute(1, 2, 0, 3).reshape(1, shape.kv_heads, -1, width)
        mask = self._mask(start, window)
        attended = functional.scaled_dot_product_attention(
            grouped,
            self._keys[None, index, :, start:end],
            self._values[None, index, :, start:end],
            attn_mask=None if mask is None else mask[slots].repeat(shared, 1),
        )
        return attended.view(shape.kv_heads, shared, count, width).permute(2, 0, 1, 3).reshape(count, -1)

    def _mask(self, start: int, window: int | None) -> Tensor | None:
        """[block_size, positions from `start`]: True where a slot sees; None when all see all."""
        shape, device = self._drafter.shape, self._keys.device
        reaches_back = window is not None and self.length + shape.block_size - start > window
        if not shape.is_causal and not reaches_back:
            return None
        slots = torch.arange(self.length, self.length + shape.block_size, device=device)[:, None]
        seen = torch.arange(start, self.length + shape.block_size, device=device)[None]
        mask = torch.ones(slots.shape[0], seen.shape[1], dtype=torch.bool, device=device)
        if shape.is_causal:
            mask &= seen <= slots
        return mask if window is None else mask & (slots - seen < window)
