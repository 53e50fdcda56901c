"""Decoding one sequence: plainly, a target call a token, and speculatively, a target call a block. The outcome is the same.

    prompt -> target: features, first token                      (both)
    loop: drafter drafts up to block_size - 1 tokens after the newest one, seeing the features of all tokens before it
          target reads [newest token, drafts] in one call; the verdict keeps the leading ones and adds the target's own next token
          the kept tokens' features, from that same call, join the drafter's context

The target's logits for a token depend on how many tokens it reads at once in the last bits (matrix products of other shapes). So greedy
answers are equal token for token as long as the two best logits differ by more than that: always in float32 in our tests; in bfloat16 a
near tie may fall the other way, which is equally the target's answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from dflash.errors import RefusedInput
from dflash.model.drafter import Drafter
from dflash.serving.cached_drafter import DraftSequence
from dflash.serving.cached_target import DecodingTarget, TargetSequence
from dflash.serving.draft_length import DraftLength
from dflash.serving.ready_drafter import ReadyDrafter
from dflash.serving.round_times import Part, Stopwatch
from dflash.serving.sampling import draw, verify


@dataclass(frozen=True)
class DecodingSettings:
    """How to decode.

    Attributes:
        max_new_tokens: tokens of an answer, at most.
        temperature: 0 for greedy.
        seed: of the draws.
        draft_tokens: drafted in each round; None: the whole block; "auto": as many as pay (see `DraftLength`), but the whole block when
            drawing, so that a seed gives the same answer each time.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    draft_tokens: int | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or not 0 <= self.temperature < float("inf"):
            raise RefusedInput(
                f"max_new_tokens={self.max_new_tokens}, temperature={self.temperature}: give at least 1 token and a temperature >= 0"
            )
        if self.draft_tokens not in (None, "auto") and not (isinstance(self.draft_tokens, int) and self.draft_tokens > 0):
            raise RefusedInput(f"draft_tokens={self.draft_tokens!r}: give a number of at least 1, auto or block")

    @property
    def is_adaptive(self) -> bool:
        """Whether the number of drafted tokens is chosen round by round."""
        return self.draft_tokens == "auto" and not self.temperature


@dataclass(frozen=True)
class DraftedBlock:
    """One block.

    Attributes:
        start: index in the answer of the first drafted token's place.
        drafted: the tokens proposed, at least one.
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
        blocks: what was drafted on the way; empty when decoded plainly. A round that drafted nothing has none.
        target_calls: forward passes of the target, the prompt's included.
        seconds: wall seconds.
        seconds_by_part: where they went, see `dflash.serving.round_times`.
    """

    tokens: tuple[int, ...]
    blocks: tuple[DraftedBlock, ...]
    target_calls: int
    seconds: float
    seconds_by_part: dict[Part, float] = field(default_factory=dict)


@torch.inference_mode()
def decode(
    target: DecodingTarget,
    prompt: Tensor,
    settings: DecodingSettings,
    drafter: Drafter | ReadyDrafter | None = None,
    length: DraftLength | None = None,
) -> Decoded:
    """Answer a prompt; speculatively when a drafter is given, else plainly.

    Args:
        target: captures the drafter's layers (`DrafterShape.target_layer_ids`) when there is one.
        prompt: [tokens] int64, at least one.
        settings: see there.
        drafter: on the target's device; laid out with `ready` once, it serves many prompts.
        length: what earlier answers taught about how many tokens to draft; goes on learning. None: a new one.

    Raises:
        RefusedInput: the prompt is empty, or holds ids outside the vocabulary.
    """
    if not len(prompt) or int(prompt.min()) < 0 or int(prompt.max()) >= len(target.embedding):
        raise RefusedInput(f"the prompt needs at least one token, all ids in 0 .. {len(target.embedding) - 1}")
    started = time.perf_counter()
    round_ = _Rounds(target, prompt.to(target.device), settings)
    if drafter is None:
        while not round_.answer.complete:
            round_.plain()
    else:
        round_.begin_drafting(drafter, length)
        while not round_.answer.complete:
            round_.run()
    answer, seconds = round_.answer, round_.watch.seconds()
    return Decoded(tuple(answer.tokens), tuple(round_.blocks), round_.sequence.calls, time.perf_counter() - started, seconds)


class _Rounds:
    """One answer on its way.

    Attributes:
        answer: what is there of it.
        blocks: what was drafted.
        sequence: the target's side.
        watch: where the time goes.
    """

    def __init__(self, target: DecodingTarget, prompt: Tensor, settings: DecodingSettings) -> None:
        """Run the prompt, and take the first token."""
        self.watch = Stopwatch(target.device)
        self.blocks: list[DraftedBlock] = []
        self.sequence: TargetSequence = target.sequence()
        self.answer = _Answer(settings.max_new_tokens, target.end_tokens)
        self._target, self._settings, self._prompt_tokens = target, settings, len(prompt)
        self._generator = torch.Generator(target.device).manual_seed(settings.seed)
        self._features = self._take_one(prompt, first=True)

    def plain(self) -> Tensor:
        """A round without a draft; the features of the token it read."""
        return self._take_one(self._newest, first=False)

    def _take_one(self, tokens: Tensor, *, first: bool) -> Tensor:
        reading = self.sequence.begin(tokens) if first else self.sequence.read(tokens)
        self.watch.lap("prompt" if first else "target")
        if not first:
            self.sequence.keep(1)
        self._newest = draw(reading.logits, self._settings.temperature, self._generator).tokens
        self.answer.add(self._newest.tolist())
        self.watch.lap("verdict")
        return reading.features

    def begin_drafting(self, drafter: Drafter | ReadyDrafter, length: DraftLength | None) -> None:
        """Set up the drafter's side."""
        block_size, settings = drafter.shape.block_size, self._settings
        capacity = self._prompt_tokens + settings.max_new_tokens + block_size
        self._drafts = DraftSequence(drafter, self._target, capacity)
        self._length = length or DraftLength(block_size - 1)
        fixed = settings.draft_tokens if isinstance(settings.draft_tokens, int) else block_size - 1
        self._fixed = None if settings.is_adaptive else fixed
        self.watch.lap("rest")

    def run(self) -> None:
        """A round: as many drafted tokens as can still be used and as pay."""
        started = time.perf_counter()
        useful = min(self.answer.left - 1, self._length.most)  # the target's own token comes after them
        if self.sequence.must_commit:
            useful = 0
        reread = self.sequence.owed
        drafted = self._length.choose(useful, reread) if self._fixed is None else min(self._fixed, useful)
        accepted = self._speculative(drafted) if drafted else 0
        if not drafted:
            features = self.plain()
            self._features = torch.cat([self._features, features])
        self._length.learn(drafted, accepted, time.perf_counter() - started, reread)
        self.watch.lap("rest")

    def _speculative(self, drafted: int) -> int:
        """Draft, verify, keep; how many drafted tokens were kept."""
        settings, answer = self._settings, self.answer
        self._drafts.extend(self._features)
        self.watch.lap("context")
        states = self._drafts.states(answer.tokens[-1], drafted)
        self.watch.lap("block")
        draft = self._drafts.draft(states, answer.tokens[-1], settings.temperature, self._generator)
        self.watch.lap("head")
        reading = self.sequence.read(torch.cat([self._newest, draft.tokens]))
        self.watch.lap("target")
        verdict = verify(reading.logits, draft, settings.temperature, self._generator)
        kept = 1 + verdict.accepted
        self.sequence.keep(kept)
        self._features, self._newest = reading.features[:kept], verdict.newest
        self.blocks.append(DraftedBlock(len(answer.tokens), verdict.drafted, verdict.accepted))
        answer.add([*verdict.drafted[: verdict.accepted], verdict.following])
        self.watch.lap("verdict")
        return verdict.accepted


class _Answer:
    """Tokens up to the end token or the limit, whichever comes first."""

    def __init__(self, limit: int, end_tokens: frozenset[int]) -> None:
        self.tokens: list[int] = []
        self.complete = False
        self._limit, self._ends = limit, end_tokens

    @property
    def left(self) -> int:
        """Tokens until the limit."""
        return self._limit - len(self.tokens)

    def add(self, tokens: list[int]) -> None:
        for token in tokens:
            if self.complete:
                return
            self.tokens.append(token)
            self.complete = token in self._ends or len(self.tokens) >= self._limit
