"""The target's cache for decoding: written in place, and able to go back by the tokens of the last call.

Transformers' growing cache makes new keys and values of the whole text at every call, and its sliding layers drop at once what leaves the
window, so that refused tokens can't be taken back. Here

- full attention has one buffer a layer; going back is a shorter length,
- a sliding window has a buffer too, and keeps what the window needed BEFORE the last call; going back is a shorter length there as well,
- a layer that folds its past into a state (linear attention) can't go back; its state is copied before a call that may be refused.

The layers are subclasses of transformers' own, so every family's model code runs on them unchanged.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

_ROOM_TOKENS = 256  # of a buffer at first; doubled when full


class InPlaceLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values [1, heads, tokens, width] of all tokens, in a buffer that is written in place."""

    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self._length = 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append, and return all."""
        start, end = self._length, self._length + key_states.shape[-2]
        if self._buffers is None or end > self._buffers[0].shape[-2]:
            self._buffers = _moved(self._buffers, key_states, value_states, 0, start, room=2 * end)
        keys, values = self._buffers
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self._length = end
        self.is_initialized = True
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Tokens held."""
        return self._length

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -tokens_to_remove tokens."""
        self._length += min(tokens_to_remove, 0)


class InPlaceSlidingLayer(DynamicSlidingWindowLayer):  # type: ignore[misc]
    """Keys and values of the tokens the window needs, and of those the last call pushed out of it."""

    is_croppable = True
    cumulative_length: int

    def __init__(self, sliding_window: int) -> None:
        super().__init__(sliding_window=sliding_window)
        self._first = 0  # position of the buffer's first token; `cumulative_length` is one past its last
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append, and return what the first appended token's window begins with, to the end: the sizes of `get_mask_sizes`."""
        length, added = self.cumulative_length, key_states.shape[-2]
        needed = max(length - self.sliding_window + 1, 0)
        if self._buffers is None or length + added - self._first > self._buffers[0].shape[-2]:
            kept = slice(needed - self._first, length - self._first)
            room = 2 * (length - needed + added)
            self._buffers = _moved(self._buffers, key_states, value_states, kept.start, kept.stop, room)
            self._first = needed
        keys, values = self._buffers
        place = slice(length - self._first, length - self._first + added)
        keys[:, :, place] = key_states
        values[:, :, place] = value_states
        self.cumulative_length = length + added
        self.is_initialized = True
        seen = slice(needed - self._first, place.stop)
        self.keys, self.values = keys[:, :, seen], values[:, :, seen]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and first position of what `update` will return."""
        first = max(self.cumulative_length - self.sliding_window + 1, 0)
        return self.cumulative_length + query_length - first, first

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -tokens_to_remove tokens, at most those of the last `update`."""
        self.cumulative_length += min(tokens_to_remove, 0)


def _moved(
    buffers: tuple[Tensor, Tensor] | None, keys: Tensor, values: Tensor, start: int, stop: int, room: int
) -> tuple[Tensor, Tensor]:
    """Buffers with room for more, their front filled with start .. stop - 1 of the old ones."""
    made = []
    for index, like in enumerate((keys, values)):
        buffer = like.new_empty(*like.shape[:2], max(room, _ROOM_TOKENS), like.shape[-1])
        if buffers is not None:
            buffer[:, :, : stop - start] = buffers[index][:, :, start:stop]
        made.append(buffer)
    return made[0], made[1]


class RollbackCache(DynamicCache):  # type: ignore[misc]
    """A cache of one sequence that can forget the tokens of its last call.

    Attributes:
        cuts: whether every layer can be cut; otherwise `restore` goes back to the start of the call only.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.layers: list[Any] = [_in_place(layer) for layer in self.layers]
        self._stateful = [
            index for index, layer in enumerate(self.layers) if not isinstance(layer, (InPlaceLayer, InPlaceSlidingLayer))
        ]
        self._saved: dict[int, Any] = {}

    @property
    def cuts(self) -> bool:
        """See the class."""
        return not self._stateful

    def save(self) -> None:
        """Copy what can't be cut, before a call of which something may be refused."""
        self._saved = {index: _copied(self.layers[index]) for index in self._stateful}

    def restore(self, tokens: int) -> None:
        """Go back to before the last call, which added that many tokens; `save` was called before it."""
        for index, layer in enumerate(self.layers):
            if index in self._saved:
                self.layers[index] = self._saved[index]
            else:
                layer.crop(-tokens)
        self._saved = {}


def _in_place(layer: Any) -> Any:
    if type(layer) is DynamicLayer:
        return InPlaceLayer()
    if type(layer) is DynamicSlidingWindowLayer:
        return InPlaceSlidingLayer(layer.sliding_window)
    return layer


def _copied(layer: Any) -> Any:
    """A copy that the layer's later updates don't reach."""
    if type(layer) is not LinearAttentionLayer:
        return copy.deepcopy(layer)
    made = copy.copy(layer)
    made.conv_states = {index: state if state is None else state.clone() for index, state in layer.conv_states.items()}
    made.recurrent_states = {index: state if state is None else state.clone() for index, state in layer.recurrent_states.items()}
    return made
