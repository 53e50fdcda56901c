"""The whole target with its cache, as decoding needs it: tokens in, logits and the drafter's features out, and a way back.

Verifying a block runs tokens that may be refused, so what they did to the cache must be undone (target_cache.py). Attention, full or
sliding, is cut. A layer that folds its past into a state (linear attention, as in qwen3_5) is put back to where it stood before the block;
the tokens that were kept are then missing from the cache, and are run again in front of the next block, in the same call. When more of
them are owed than `MOST_OWED`, one token is read after them with nothing drafted behind it: nothing of that call can be refused, and it
yields a token as every call does. So there is never a call that yields none, and speculative decoding takes at most as many as plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash.model.loading import Loading, load_causal_lm
from dflash.model.target import layer_stack
from dflash.serving.target_cache import RollbackCache

MOST_OWED = 8  # kept tokens that are run again, at most, before a call commits them


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
        self._captured: dict[int, Tensor] = {}
        self._hook_layers()

    def _hook_layers(self) -> None:
        """Have every pass leave the captured states behind, and no others: a list of all layers' would cost as much as a layer."""
        if not self.layer_ids:
            return
        decoder = self.model.get_decoder()
        stack = layer_stack(decoder)
        for layer_id in self.layer_ids:
            module = decoder if layer_id == len(stack) - 1 else stack[layer_id]

            def keep(module: Any, inputs: Any, output: Any, layer_id: int = layer_id) -> None:
                states = getattr(output, "last_hidden_state", None)
                states = output[0] if states is None and isinstance(output, tuple) else output if states is None else states
                self._captured[layer_id] = states[0]

            module.register_forward_hook(keep)

    @torch.inference_mode()
    def run(self, tokens: Tensor, cache: Any, *, logits_to_keep: int) -> Reading:
        """One pass over tokens [tokens] int64 that follow those in the cache; logits of the last `logits_to_keep` (0: all)."""
        out = self.model(input_ids=tokens[None], cache=cache, use_cache=True, logits_to_keep=logits_to_keep)
        states = [self._captured.pop(layer_id) for layer_id in self.layer_ids]
        features = torch.cat(states, dim=-1) if states else tokens[:, None][:, :0]
        return Reading(out.logits[0], features)

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
        self._cache = RollbackCache(target.model.config.get_text_config())
        self._owed = torch.empty(0, dtype=torch.long, device=target.device)  # kept tokens that the cache lacks
        self._read = self._owed

    @property
    def owed(self) -> int:
        """Kept tokens that the next call runs again, in front of its own."""
        return len(self._owed)

    @property
    def must_commit(self) -> bool:
        """Whether so much is owed that the next call should read one token only."""
        return len(self._owed) >= MOST_OWED

    def begin(self, prompt: Tensor) -> Reading:
        """Run the prompt [tokens] int64, at least one; all of it is kept."""
        return self._forward(prompt, logits_to_keep=1)

    def read(self, tokens: Tensor) -> Reading:
        """Run tokens [tokens] int64 after all that is kept; `keep` must be called next."""
        if len(tokens) > 1:  # of a single token nothing can be refused
            self._cache.save()
        self._read = tokens
        whole = self._forward(torch.cat([self._owed, tokens]) if self.owed else tokens, logits_to_keep=len(tokens))
        return Reading(whole.logits, whole.features[-len(tokens) :])

    def keep(self, count: int) -> None:
        """Of the tokens read last, the first `count` (1 or more) stay; the others are forgotten."""
        refused = len(self._read) - count
        if refused and self._cache.cuts:
            self._cache.crop(-refused)
        elif refused:
            self._cache.restore(self.owed + len(self._read))
            self._owed = torch.cat([self._owed, self._read[:count]])
        elif self.owed:
            self._owed = self._owed[:0]

    def _forward(self, tokens: Tensor, *, logits_to_keep: int) -> Reading:
        self.calls += 1
        return self._target.run(tokens, self._cache, logits_to_keep=logits_to_keep)
