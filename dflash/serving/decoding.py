"""Decoding one sequence: plainly, a target call a token, and speculatively, a target call a block. The outcome is the same.

    prompt -> target: features, first token                      (both)
    loop: drafter drafts block_size - 1 tokens after the newest one, seeing the features of all tokens before it
          target reads [newest token, drafts] in one call; the verdict keeps the leading ones and adds the target's own next token
          the kept tokens' features, from that same call, join the drafter's context

The target's logits for a token depend on how many tokens it reads at once in the last bits (matrix products of other shapes). So greedy
answers are equal token for token as long as the two best logits differ by more than that: always in float32 in our tests; in bfloat16 a
near tie may fall the other way, which is equally the target's answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.errors import RefusedInput
from dflash.model.drafter import Drafter
from dflash.serving.cached_drafter import DraftSequence
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.sampling import draw, verify


@dataclass(frozen=True)
class DecodingSettings:
    """How to decode.

    Attributes:
        max_new_tokens: tokens of an answer, at most.
        temperature: 0 for greedy.
        seed: of the draws.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or not 0 <= self.temperature < float("inf"):
            raise RefusedInput(
                f"max_new_tokens={self.max_new_tokens}, temperature={self.temperature}: give at least 1 token and a temperature >= 0"
            )


@dataclass(frozen=True)
class DraftedBlock:
    """One block.

    Attributes:
        start: index in the answer of the first drafted token's place.
        drafted: the tokens proposed, block_size - 1.
        accepted: how many of them the target kept.
    """

    start: int
    drafted: tuple[int, ...]
    accepted: int


@dataclass(frozen=True)
class Decoded:
    """An answer.

    Attributes:
        tokens: its ids, the end token included if one was reached.
        blocks: what was drafted on the way; empty when decoded plainly.
        target_calls: forward passes of the target, the prompt's included.
        seconds: wall seconds.
    """

    tokens: tuple[int, ...]
    blocks: tuple[DraftedBlock, ...]
    target_calls: int
    seconds: float


def decode(target: DecodingTarget, prompt: Tensor, settings: DecodingSettings, drafter: Drafter | None = None) -> Decoded:
    """Answer a prompt; speculatively when a drafter is given, else plainly.

    Args:
        target: captures the drafter's layers (`DrafterShape.target_layer_ids`) when there is one.
        prompt: [tokens] int64, at least one.
        settings: see there.
        drafter: on the target's device.

    Raises:
        RefusedInput: the prompt is empty, or holds ids outside the vocabulary.
    """
    if not len(prompt) or int(prompt.min()) < 0 or int(prompt.max()) >= len(target.embedding):
        raise RefusedInput(f"the prompt needs at least one token, all ids in 0 .. {len(target.embedding) - 1}")
    started = time.perf_counter()
    generator = torch.Generator(target.device).manual_seed(settings.seed)
    sequence = target.sequence()
    reading = sequence.begin(prompt.to(target.device))
    first = draw(reading.logits, settings.temperature, generator)
    answer = _Answer(settings.max_new_tokens, target.end_tokens)
    answer.add(first.tokens.tolist())
    blocks: list[DraftedBlock] = []
    drafts = None
    if drafter is not None:
        drafts = DraftSequence(drafter, target, len(prompt) + settings.max_new_tokens + drafter.shape.block_size)
        drafts.extend(reading.features)
    while not answer.complete:
        newest = torch.tensor(answer.tokens[-1:], device=target.device)
        if drafts is None:
            reading = sequence.read(newest)
            sequence.keep(1)
            answer.add(draw(reading.logits, settings.temperature, generator).tokens.tolist())
            continue
        draft = draw(drafts.logits(answer.tokens[-1]), settings.temperature, generator)
        reading = sequence.read(torch.cat([newest, draft.tokens]))
        verdict = verify(reading.logits, draft, settings.temperature, generator)
        sequence.keep(1 + verdict.accepted)
        drafts.extend(reading.features[: 1 + verdict.accepted])
        drafted = draft.tokens.tolist()
        blocks.append(DraftedBlock(len(answer.tokens), tuple(drafted), verdict.accepted))
        answer.add([*drafted[: verdict.accepted], verdict.following])
    return Decoded(tuple(answer.tokens), tuple(blocks), sequence.calls, time.perf_counter() - started)


class _Answer:
    """Tokens up to the end token or the limit, whichever comes first."""

    def __init__(self, limit: int, end_tokens: frozenset[int]) -> None:
        self.tokens: list[int] = []
        self.complete = False
        self._limit, self._ends = limit, end_tokens

    def add(self, tokens: list[int]) -> None:
        for token in tokens:
            if self.complete:
                return
            self.tokens.append(token)
            self.complete = token in self._ends or len(self.tokens) >= self._limit
