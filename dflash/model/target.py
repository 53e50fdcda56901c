"""The frozen target: token rows in, the hidden states of a few of its layers out.

Only what the captured layers need is held and computed: the layer list is cut after the last captured layer when the model
is built, the vocabulary head is dropped, and so is the final norm (see below).

**Which state is which.** Captured id i is the output AFTER layer i, that is `hidden_states[i + 1]` of Hugging Face (entry 0 is
the embedding). For the last layer, i = N - 1, Hugging Face gives the state after the model's final norm, and so do we; the
servers read the same list. Ids above N - 1 are refused.

**Padding never matters.** Targets are causal and rows are padded on the right, so no real token ever sees a pad: no attention
mask is given (which is exact, and lets attention take its fast causal path) and pads are dropped from the result. Rows laid
end to end in one long row, on the other hand, leak into each other unless a kernel knows their bounds, and linear-attention
layers know none. So packed batches are run

- with flash_attention_2 on a full-attention model: as one row, positions restarting at each document (the kernel reads the
  bounds off the positions; not tried on a GPU by us),
- otherwise in groups of nearly equal length, each padded on the right: at most 1/8 of the computed tokens are padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dflash.errors import RefusedInput
from dflash.model.facts import target_facts
from dflash.model.loading import Loading, load_causal_lm

if TYPE_CHECKING:
    from dflash.data.rows import TokenRows

_FINAL_NORM_NAMES = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
_LAYER_LIST_NAMES = ("layers", "h")
_LONGEST_PER_SHORTEST = 8 / 7  # of a packed batch's groups: at most 1/8 of a group is padding


class FrozenTarget:
    """A causal language model cut after its last captured layer, without gradients.

    Attributes:
        layer_ids: captured layers, in the order their states are laid side by side.
        hidden_size: width of one layer's state.
        vocab_size: rows of the embedding table.
        device: where it runs.
    """

    def __init__(
        self, decoder: nn.Module, *, layer_ids: Sequence[int], layers: int, attention: str, feature_dtype: torch.dtype
    ) -> None:
        """Wrap a built decoder whose layers are cut after `max(layer_ids)`; `layers` is the target's whole number. Use `load`."""
        self.layer_ids = tuple(layer_ids)
        self.decoder = decoder.eval().requires_grad_(False)
        config = decoder.config.get_text_config()  # type: ignore[union-attr, operator]
        self.hidden_size = int(config.hidden_size)
        self.vocab_size = int(config.vocab_size)
        self.device = next(decoder.parameters()).device
        self._feature_dtype = feature_dtype
        self._keeps_final_norm = layers - 1 in self.layer_ids
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        self._packs_in_one_row = attention == "flash_attention_2" and layer_types <= {"full_attention", "sliding_attention"}
        stack = layer_stack(decoder)
        last = max(self.layer_ids)
        self._hooked = {
            column: stack[layer_id]
            for column, layer_id in enumerate(self.layer_ids)
            if not (self._keeps_final_norm and layer_id == last)
        }
        if not self._keeps_final_norm:
            name = next((name for name in _FINAL_NORM_NAMES if hasattr(decoder, name)), None)
            if name is not None:
                setattr(decoder, name, nn.Identity())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        layer_ids: Sequence[int],
        device: str | torch.device = "cpu",
        dtype: str = "auto",
        attention: str = "auto",
        dequantise: bool = False,
        trust_remote_code: bool = False,
        feature_dtype: str = "bfloat16",
    ) -> FrozenTarget:
        """Load a Hugging Face causal LM folder, or a shipped target by name.

        Args:
            path: the folder or the name.
            layer_ids: layers to capture; id i is the output AFTER layer i.
            device, dtype, attention, dequantise, trust_remote_code: see `Loading`.
            feature_dtype: of the features handed out.

        Raises:
            RefusedInput: not a causal LM folder, a layer id the model has not, or an attention this machine can't run.
        """
        facts = target_facts(path)
        _refuse_unknown_layers(layer_ids, facts.layers, facts.folder)
        loading = Loading(device, dtype, attention, dequantise, trust_remote_code)
        model = load_causal_lm(path, loading, layers=max(layer_ids) + 1)
        decoder = model.get_decoder()
        chosen = str(model.config._attn_implementation)
        del model  # and with it the vocabulary head
        return cls(decoder, layer_ids=layer_ids, layers=facts.layers, attention=chosen, feature_dtype=getattr(torch, feature_dtype))

    @torch.no_grad()  # not inference_mode: the drafter's backward pass keeps these features
    def features(self, rows: TokenRows, *, packed: bool) -> Tensor:
        """The captured states of every token of `rows`, laid end to end as the tokens are.

        Args:
            rows: conversations, end to end.
            packed: False: one padded forward pass of all rows (the planner bounds rows x longest row). True: the budget bounds
                the sum of the lengths, see the module's text for how documents are kept apart.

        Returns:
            [tokens, captured layers x hidden_size] in the feature dtype, on the target's device; layers in `layer_ids` order.

        Raises:
            RefusedInput: a token id outside the target's vocabulary.
        """
        self._refuse_unknown_tokens(rows)
        lengths = np.diff(rows.offsets)
        out = torch.empty(len(rows.tokens), len(self.layer_ids) * self.hidden_size, dtype=self._feature_dtype, device=self.device)
        if packed and self._packs_in_one_row:
            positions = np.arange(len(rows.tokens)) - np.repeat(rows.offsets[:-1], lengths)
            everywhere = np.arange(len(rows.tokens))
            self._forward(rows.tokens[None, :], out, source=everywhere, destination=everywhere, positions=positions[None, :])
            return out
        groups = _near_equal_groups(lengths) if packed else [np.flatnonzero(lengths)]
        for group in groups:
            if len(group):
                self._forward(*_padded(rows, group, out))
        return out

    def _forward(
        self,
        tokens: NDArray[np.integer],
        out: Tensor,
        source: NDArray[np.int64],
        destination: NDArray[np.int64],
        positions: NDArray[np.int64] | None = None,
    ) -> None:
        """Run tokens [rows, longest] and write the states at flat places `source` to rows `destination` of `out`."""
        source_rows = torch.from_numpy(source).to(self.device)
        destination_rows = torch.from_numpy(destination).to(self.device)

        def keep(column: int, states: Tensor) -> None:
            flat = states.reshape(-1, self.hidden_size)
            span = slice(column * self.hidden_size, (column + 1) * self.hidden_size)
            out[destination_rows, span] = flat[source_rows].to(out.dtype)

        extra = {} if positions is None else {"position_ids": torch.from_numpy(positions).to(self.device)}
        ids = torch.from_numpy(tokens.astype(np.int64)).to(self.device)
        with _captured(self._hooked, keep):
            result = self.decoder(input_ids=ids, use_cache=False, **extra)
        if self._keeps_final_norm:
            keep(self.layer_ids.index(max(self.layer_ids)), result.last_hidden_state)

    def _refuse_unknown_tokens(self, rows: TokenRows) -> None:
        bad = np.flatnonzero((rows.tokens < 0) | (rows.tokens >= self.vocab_size))
        if len(bad):
            row = int(np.searchsorted(rows.offsets, bad[0], side="right")) - 1
            raise RefusedInput(
                f"sample {int(rows.sample_ids[row])}, token {int(bad[0] - rows.offsets[row])}: id {int(rows.tokens[bad[0]])} "
                f"is outside the target's vocabulary of {self.vocab_size}; prepare the data with this target's tokenizer"
            )


def layer_stack(decoder: nn.Module) -> nn.ModuleList:
    """The list of a decoder's layers.

    Raises:
        RefusedInput: it has none under a known name.
    """
    for name in _LAYER_LIST_NAMES:
        stack = getattr(decoder, name, None)
        if isinstance(stack, nn.ModuleList):
            return stack
    raise RefusedInput(
        f"{type(decoder).__name__}: no list of layers found ({' or '.join(_LAYER_LIST_NAMES)}); this family can't be a target"
    )


def _padded(rows: TokenRows, group: NDArray[np.int64], out: Tensor) -> tuple[Any, ...]:
    """Rows of `group` padded on the right, and where their real tokens are in the padded grid and in the flat result."""
    starts, lengths = rows.offsets[group], np.diff(rows.offsets)[group]
    grid = np.arange(lengths.max())[None, :] < lengths[:, None]
    destination = (starts[:, None] + np.arange(lengths.max())[None, :])[grid]
    tokens = np.zeros(grid.shape, dtype=np.int64)  # any id will do for a pad: nothing looks at it
    tokens[grid] = rows.tokens[destination]
    return tokens, out, np.flatnonzero(grid), destination


def _near_equal_groups(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows (those with tokens) in groups whose longest is at most 8/7 of their shortest."""
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    groups: list[NDArray[np.int64]] = []
    first = 0
    for index in range(1, len(order) + 1):
        if index == len(order) or lengths[order[index]] > lengths[order[first]] * _LONGEST_PER_SHORTEST:
            groups.append(order[first:index])
            first = index
    return groups


@contextmanager
def _captured(layers: dict[int, nn.Module], keep: Any) -> Iterator[None]:
    """Call `keep(column, output)` for each layer that runs inside."""

    def hook(column: int) -> Any:
        return lambda module, inputs, output: keep(column, output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_hook(hook(column)) for column, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_unknown_layers(layer_ids: Sequence[int], layers: int, folder: Path) -> None:
    if not layer_ids or len(set(layer_ids)) != len(layer_ids):
        raise RefusedInput(f"drafter.target_layer_ids {list(layer_ids)}: give each captured layer once, at least one")
    beyond = [layer_id for layer_id in layer_ids if not 0 <= layer_id < layers]
    if beyond:
        raise RefusedInput(f"{folder}: has layers 0 .. {layers - 1}; drafter.target_layer_ids asks for {beyond}")
