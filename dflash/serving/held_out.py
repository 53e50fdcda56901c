"""Real speculative decoding of held-out prompts while a run trains, by the weights it has at that moment.

The drafter decodes as it would be served: a copy of its weights, rounded to bfloat16 as `dflash export` rounds them, and the whole target,
loaded beside the drafter when the first prompt comes. Training does not notice: the copy is all that is touched, answers are greedy, and
torch's random state is put back.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dflash.config import RunConfig
from dflash.data.dataset import TokenDataset
from dflash.model.attention import attention_backend
from dflash.model.drafter import Drafter
from dflash.model.results import Rounds
from dflash.model.trainer import DrafterTrainer
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.decoding import Decoded, DecodingSettings, decode


class HeldOutDecoding:
    """Answers held-out prompts of a run's data set."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        """Nothing is loaded yet."""
        self._config, self._device = config, device
        self._settings = DecodingSettings(config.evaluation.decode_tokens)
        self._dataset: TokenDataset | None = None
        self._target: DecodingTarget | None = None
        self._drafter: Drafter | None = None
        self._steps = -1

    def decode(self, trainer: DrafterTrainer, sample: int) -> Rounds:
        """Answer the prompt of a sample; no rounds if it has none, or an answer of one token.

        Raises:
            RefusedInput: the target's folder holds no whole language model.
        """
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            target = self._loaded_target(trainer)
            prompt = self._prompt(sample)
            if not len(prompt):
                return Rounds()
            return rounds_of(decode(target, prompt, self._settings, self._as_served(trainer)))

    def _prompt(self, sample: int) -> torch.Tensor:
        """What stands before the first supervised token."""
        if self._dataset is None:
            self._dataset = TokenDataset.open(Path(self._config.data.path))
        rows = self._dataset.rows(np.array([sample]))
        return torch.from_numpy(rows.tokens[: int(rows.loss_mask.argmax())].astype(np.int64))

    def _loaded_target(self, trainer: DrafterTrainer) -> DecodingTarget:
        if self._target is None:
            place = self._config.target
            layers = trainer.shape.target_layer_ids
            self._target = DecodingTarget.load(place.path, layer_ids=layers, device=self._device, dtype=place.dtype)
        return self._target

    def _as_served(self, trainer: DrafterTrainer) -> Drafter:
        """The drafter of this moment as an export would have it."""
        if self._drafter is None:
            drafter = Drafter(trainer.shape, attention_backend("sdpa", self._device))
            self._drafter = drafter.to(self._device).eval().requires_grad_(False)
        if self._steps != trainer.steps:
            trained = dict(trainer.drafter.named_parameters())
            for name, parameter in self._drafter.named_parameters():
                parameter.copy_(trained[name].detach().to(torch.bfloat16))
            self._steps = trainer.steps
        return self._drafter


def rounds_of(answer: Decoded) -> Rounds:
    """The rounds an answer took; its first token is the prompt's, and a call without a draft yields one token and is no round."""
    without_draft = max(answer.target_calls - 1 - len(answer.blocks), 0)
    tokens = len(answer.tokens) - 1 - without_draft
    return Rounds(int(bool(answer.blocks)), tokens, len(answer.blocks))
