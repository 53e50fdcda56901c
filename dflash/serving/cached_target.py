"""The whole target with its cache, as decoding needs it: tokens in, logits and the drafter's features out, and a way back.

Verifying a block runs tokens that may be refused, so what they did to the cache must be undone. Keys and values of full attention are
simply cut off. A layer that folds its past into a state (linear attention, as in qwen3_5) or forgets it (a sliding window) can't be cut:
its part of the cache is copied before a block, and put back when a token of the block is refused. The tokens that were kept are then
missing from the cache; they are run again in front of the next block, in the same call, so a refusal costs no call of its own. Only when
more of them are owed than the next block has tokens does a call go to them alone, so the work stays bounded.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from dflash.model.loading import Loading, load_causal_lm


@dataclass(frozen=True)
class Reading:
    """What the target says of the tokens it was given.

    Attributes:
        logits: [tokens, vocabulary] of what comes after each; of a prompt, only after its last: [1, vocabulary].
        features: [tokens, captured layers x hidden].
    """

    logits: Tensor
    features: Tensor


class DecodingTarget:
    """A causal language model with its head, without gradients.

    Attributes:
        model: the Hugging Face model.
        layer_ids: layers captured; id i is the output AFTER layer i, for the last layer after the final norm.
        device: where it runs.
        embedding: [vocabulary, hidden], the input table, shared with the drafter.
        head: [vocabulary, hidden], the output table, shared with the drafter.
        end_tokens: ids that end an answer.
    """

    def __init__(self, model: Any, layer_ids: Sequence[int]) -> None:
        self.model = model.eval().requires_grad_(False)
        self.layer_ids = tuple(layer_ids)
        self.device: torch.device = model.device
        self.embedding: Tensor = model.get_input_embeddings().weight
        self.head: Tensor = model.get_output_embeddings().weight
        ends = getattr(model.generation_config, "eos_token_id", None)
        ends = model.config.get_text_config().eos_token_id if ends is None else ends
        self.end_tokens = frozenset([ends] if isinstance(ends, int) else ends or [])

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        layer_ids: Sequence[int],
        device: str | torch.device = "cpu",
        dtype: str = "auto",
        dequantise: bool = False,
        trust_remote_code: bool = False,
    ) -> DecodingTarget:
        """Load a Hugging Face causal LM folder, or a shipped target by name.

        Args:
            path: the folder or the name.
            layer_ids: layers to capture.
            device, dtype, dequantise, trust_remote_code: see `Loading`.

        Raises:
            RefusedInput: not a whole causal LM folder; a missing vocabulary head is named (it would be filled with noise).
        """
        loading = Loading(device, dtype, dequantise=dequantise, trust_remote_code=trust_remote_code)
        return cls(load_causal_lm(path, loading), layer_ids)

    def sequence(self) -> TargetSequence:
        """An empty sequence with a cache of its own."""
        return TargetSequence(self)


class TargetSequence:
    """One sequence being decoded.

    Attributes:
        calls: forward passes of the target so far.
    """

    def __init__(self, target: DecodingTarget) -> None:
        self.calls = 0
        self._target = target
        self._cache = DynamicCache(config=target.model.config.get_text_config())
        self._owed = torch.empty(0, dtype=torch.long, device=target.device)  # kept tokens that the cache lacks
        self._read = self._owed
        self._copies: dict[int, Any] = {}

    def begin(self, prompt: Tensor) -> Reading:
        """Run the prompt [tokens] int64, at least one; all of it is kept."""
        return self._forward(prompt, logits_to_keep=1)

    def read(self, tokens: Tensor) -> Reading:
        """Run tokens [tokens] int64 after all that is kept; `keep` must be called next."""
        if len(self._owed) > len(tokens):
            self._forward(self._owed, logits_to_keep=1)
            self._owed = self._owed[:0]
        if len(tokens) > 1:  # of a single token nothing can be refused
            self._copies = {
                index: copy.deepcopy(layer) for index, layer in enumerate(self._cache.layers) if type(layer) is not DynamicLayer
            }
        self._read = tokens
        whole = self._forward(torch.cat([self._owed, tokens]), logits_to_keep=0)
        return Reading(whole.logits[-len(tokens) :], whole.features[-len(tokens) :])

    def keep(self, count: int) -> None:
        """Of the tokens read last, the first `count` (1 or more) stay; the others are forgotten."""
        refused = len(self._read) - count
        if not refused:
            self._owed = self._owed[:0]
        elif not self._copies:
            self._cache.crop(-refused)
        else:
            run = len(self._owed) + len(self._read)
            for index, layer in enumerate(self._cache.layers):
                if index in self._copies:
                    self._cache.layers[index] = self._copies[index]
                else:
                    layer.crop(-run)
            self._owed = torch.cat([self._owed, self._read[:count]])
        self._copies = {}

    @torch.no_grad()
    def _forward(self, tokens: Tensor, *, logits_to_keep: int) -> Reading:
        self.calls += 1
        states = [layer_id + 1 for layer_id in self._target.layer_ids]
        out = self._target.model(
            input_ids=tokens[None],
            cache=self._cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
            output_hidden_states=sorted(states) or False,
        )
        features = torch.cat([out.hidden_states[state][0] for state in states], dim=-1) if states else tokens[:, None][:, :0]
        return Reading(out.logits[0], features)
