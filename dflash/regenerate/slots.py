"""The cache of a batch whose rows come and go: each row has a slot, and is at its own place in it.

Keys and values of attention lie in one buffer a layer, [slots, heads, places, width], made once and written in place. A row's next key
goes to the row's own place, and a mask lets each row see its own places only, so what an earlier row left in the slot is never seen.
A sliding window is a matter of the mask alone: the buffer holds all places. A layer that folds its past into a state (linear attention)
has the state of each slot side by side.

Prompts are run apart, in a plain cache (`SlotCache.for_prompts`), and put into their slots (`SlotCache.put`). There, too, sliding layers
hold all places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)


@dataclass
class Step:
    """Where the rows are in the step being run.

    Attributes:
        rows: int64 [rows], 0, 1, 2, ...
        places: int64 [rows], the place of each row's newest token.
        longest: one more than the furthest place.
    """

    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    places: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    longest: int = 0


class SlotKeys(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one attention layer; full or sliding."""

    is_sliding = False

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Buffers are made by `resize`."""

    def resize(self, slots: int, places: int, like: CacheLayerMixin, keep: int) -> None:
        """New buffers, which the first `keep` slots are copied into; `like` has the heads, widths and dtype."""
        old = self.keys, self.values
        for name, before in zip(("keys", "values"), old, strict=True):
            model = getattr(like, name) if before is None else before
            buffer = model.new_zeros(slots, model.shape[1], places, model.shape[3])
            if before is not None and keep:
                common = min(places, before.shape[2])
                buffer[:keep, :, :common] = before[:keep, :, :common]
            setattr(self, name, buffer)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write each row's newest key and value; give those of all rows up to the furthest place."""
        step = self._step
        self.keys[step.rows, :, step.places] = key_states[:, :, 0]
        self.values[step.rows, :, step.places] = value_states[:, :, 0]
        count = len(step.rows)
        return self.keys[:count, :, : step.longest], self.values[:count, :, : step.longest]

    def put(self, prompts: CacheLayerMixin, slots: Tensor) -> None:
        """Take over prompts that were run apart."""
        length = prompts.keys.shape[2]
        self.keys[slots, :, :length] = prompts.keys
        self.values[slots, :, :length] = prompts.values

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy slots to other slots."""
        self.keys[destinations] = self.keys[sources]
        self.values[destinations] = self.values[sources]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that a step sees, and the place of the first."""
        return self._step.longest, 0

    def get_seq_length(self) -> int:
        """Places in use before the step."""
        return max(0, self._step.longest - 1)

    def get_max_length(self) -> int:
        """No limit of its own."""
        return -1


class SlotStates(LinearAttentionLayer):  # type: ignore[misc]
    """States of one linear-attention layer. The library writes into what it is shown, so it is shown views of the buffers."""

    def __init__(self, states: int) -> None:
        super().__init__(number_of_states=states)
        self.conv_kernel_size: dict[int, int | None]
        self.dtype: torch.dtype | None
        self.device: torch.device | None
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def resize(self, slots: int, like: LinearAttentionLayer, keep: int) -> None:
        """New buffers, which the first `keep` slots are copied into."""
        for kind in ("conv_states", "recurrent_states"):
            for index, state in getattr(like, kind).items():
                before = self._buffers.get((kind, index))
                if before is None and state is None:
                    continue
                model = state if before is None else before
                buffer = model.new_zeros(slots, *model.shape[1:])
                if before is not None:
                    buffer[:keep] = before[:keep]
                self._buffers[kind, index] = buffer
        if like is not self:
            self.conv_kernel_size, self.dtype, self.device = dict(like.conv_kernel_size), like.dtype, like.device

    def show(self, count: int) -> None:
        """Show the library the first `count` slots."""
        for (kind, index), buffer in self._buffers.items():
            getattr(self, kind)[index] = buffer[:count]
            initialised = self.is_conv_states_initialized if kind == "conv_states" else self.is_recurrent_states_initialized
            initialised[index] = self.has_previous_state[index] = True

    def put(self, prompts: LinearAttentionLayer, slots: Tensor) -> None:
        """Take over prompts that were run apart."""
        for (kind, index), buffer in self._buffers.items():
            buffer[slots] = getattr(prompts, kind)[index]

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy slots to other slots."""
        for buffer in self._buffers.values():
            buffer[destinations] = buffer[sources]


class SlotCache(Cache):  # type: ignore[misc]
    """The whole cache.

    Attributes:
        slots, places: size of the buffers; 0 before the first `resize`.
        windows: the sliding windows in use, in tokens; None stands for full attention.
        has_states: whether a layer folds its past into a state, so that prompts must not be padded.
    """

    def __init__(self, config: Any) -> None:
        self.step = Step()
        self.slots = self.places = 0
        self._config = config
        kinds = DynamicCache(config=config).layers
        self.windows = {getattr(layer, "sliding_window", None) for layer in kinds if not isinstance(layer, LinearAttentionLayer)}
        self.has_states = any(isinstance(layer, LinearAttentionLayer) for layer in kinds)
        super().__init__(
            layers=[
                SlotStates(layer.number_of_states) if isinstance(layer, LinearAttentionLayer) else SlotKeys(self.step)
                for layer in kinds
            ]
        )

    @staticmethod
    def holds(config: Any) -> bool:
        """Whether all layers of a model are of a kind that has slots here."""
        known = {DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer}
        return {type(layer) for layer in DynamicCache(config=config).layers} <= known

    def for_prompts(self) -> Cache:
        """An empty cache to run prompts in."""
        cache = DynamicCache(config=self._config)
        cache.layers = [DynamicLayer() if isinstance(layer, DynamicSlidingWindowLayer) else layer for layer in cache.layers]
        return cache

    @staticmethod
    def clear_states(cache: Cache) -> None:
        """Set the states of a cache back to those before any token."""
        for layer in cache.layers:
            if isinstance(layer, LinearAttentionLayer):
                layer.reset()

    def resize(self, slots: int, places: int, like: Cache, keep: int = 0) -> None:
        """Make buffers of another size; the first `keep` slots go on."""
        for layer, model in zip(self.layers, like.layers, strict=True):
            if isinstance(layer, SlotStates):
                layer.resize(slots, model, keep)
            else:
                layer.resize(slots, places, model, keep)
        self.slots, self.places = slots, places

    def put(self, prompts: Cache, slots: Sequence[int]) -> None:
        """Take over prompts that were run apart, row i of them to `slots[i]`."""
        index = torch.tensor(slots, device=self.step.rows.device)
        for layer, run in zip(self.layers, prompts.layers, strict=True):
            layer.put(run, index)

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy slots to other slots."""
        device = self.step.rows.device
        for layer in self.layers:
            layer.move(torch.tensor(sources, device=device), torch.tensor(destinations, device=device))

    def begin(self, places: Tensor, longest: int) -> None:
        """Say where the rows of the next step are: int64 [rows], and one more than the furthest."""
        if len(places) != len(self.step.rows):
            self.step.rows = torch.arange(len(places), device=places.device)
            for layer in self.layers:
                if isinstance(layer, SlotStates):
                    layer.show(len(places))
        self.step.places, self.step.longest = places, longest
