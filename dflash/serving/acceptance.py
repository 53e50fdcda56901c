"""What a drafter is worth in real decoding: acceptance length, accuracy by place, target calls saved, and whether it is lossless.

- acceptance length: tokens a verifying call of the target yields, its own included (1 = the draft never helps).
- accuracy of slot k: share of blocks whose k-th drafted token is the one the answer has there, whatever came before it in the draft. This
  is training's accuracy with the target's own answer as the label.
- accepted to slot k: share of blocks whose drafted tokens 1 .. k were all kept.
- target calls saved: 1 - calls / calls of plain decoding, with every call counted: the prompt's, and those a refusal costs.
- lossless (greedy only): every answer equals the one plain decoding gives, token for token. Where one differs, the gap between the
  target's two best logits there tells rounding (next to 0) from a fault.

Speed is measured on the same prompts with the same model code, one sequence at a time: a comparison of methods, not of engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dflash.model.drafter import Drafter
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.decoding import Decoded, DecodingSettings, DraftedBlock, decode
from dflash.serving.prompts import Prompt


@dataclass(frozen=True)
class Difference:
    """A greedy answer that is not plain decoding's.

    Attributes:
        sample_id: of the prompt.
        at: index of the first differing token of the answer.
        logit_gap: the target's best logit less its second best there.
    """

    sample_id: int
    at: int
    logit_gap: float


@dataclass(frozen=True)
class Acceptance:
    """The figures defined in this module's text, over all prompts.

    `accuracy_by_slot` and `accepted_to_slot` start at slot 1; nan where no block reached. `plain_*` are plain decoding's.
    `lossless` is None when answers are drawn (temperature > 0): there it is a matter of distribution.
    """

    prompts: int
    tokens: int
    acceptance_length: float
    accuracy_by_slot: tuple[float, ...]
    accepted_to_slot: tuple[float, ...]
    target_calls: int
    plain_target_calls: int
    target_calls_saved: float
    tokens_per_second: float
    plain_tokens_per_second: float
    speedup: float
    lossless: bool | None
    differences: tuple[Difference, ...]


class Tick(Protocol):
    """Called after each answer."""

    def __call__(self) -> None:
        """One more answer is there."""


def decode_all(
    target: DecodingTarget, prompts: Sequence[Prompt], settings: DecodingSettings, drafter: Drafter | None, tick: Tick
) -> list[Decoded]:
    """Answer every prompt, each with draws of its own (seed + its place)."""
    answers = []
    for index, prompt in enumerate(prompts):
        each = DecodingSettings(settings.max_new_tokens, settings.temperature, settings.seed + index)
        answers.append(decode(target, torch.from_numpy(prompt.tokens).long(), each, drafter))
        tick()
    return answers


def compare_decoding(
    target: DecodingTarget,
    drafters: dict[str, Drafter],
    prompts: Sequence[Prompt],
    settings: DecodingSettings,
    *,
    progress: bool = False,
) -> dict[str, Acceptance]:
    """Measure several drafters of one shape against plain decoding on the same prompts.

    Args:
        target: captures these drafters' layers.
        drafters: by the name they go under in the result.
        prompts: see `take_prompts`.
        settings: how answers are decoded.
        progress: whether a bar is shown on standard error.
    """
    with _bar((1 + len(drafters)) * len(prompts), progress) as tick:
        decode(target, torch.from_numpy(prompts[0].tokens).long(), DecodingSettings(2))  # first calls allocate and pick kernels
        plain = decode_all(target, prompts, settings, None, tick)
        return {
            name: summarise(target, prompts, plain, decode_all(target, prompts, settings, drafter, tick), settings)
            for name, drafter in drafters.items()
        }


def summarise(
    target: DecodingTarget,
    prompts: Sequence[Prompt],
    plain: Sequence[Decoded],
    drafted: Sequence[Decoded],
    settings: DecodingSettings,
) -> Acceptance:
    """The figures of answers decoded both ways."""
    tokens = sum(len(answer.tokens) for answer in drafted)
    plain_tokens = sum(len(answer.tokens) for answer in plain)
    blocks = sum(len(answer.blocks) for answer in drafted)
    calls, plain_calls = sum(answer.target_calls for answer in drafted), sum(answer.target_calls for answer in plain)
    rate = tokens / sum(answer.seconds for answer in drafted)
    plain_rate = plain_tokens / sum(answer.seconds for answer in plain)
    differences = [] if settings.temperature else _differences(target, prompts, plain, drafted)
    return Acceptance(
        prompts=len(prompts),
        tokens=tokens,
        acceptance_length=(tokens - len(drafted)) / blocks if blocks else float("nan"),  # the first token of each is the prompt's
        accuracy_by_slot=_accuracy_by_slot(drafted),
        accepted_to_slot=_accepted_to_slot([block for answer in drafted for block in answer.blocks]),
        target_calls=calls,
        plain_target_calls=plain_calls,
        target_calls_saved=1 - (calls / tokens) / (plain_calls / plain_tokens),
        tokens_per_second=rate,
        plain_tokens_per_second=plain_rate,
        speedup=rate / plain_rate,
        lossless=None if settings.temperature else not differences,
        differences=tuple(differences),
    )


def _accuracy_by_slot(answers: Sequence[Decoded]) -> tuple[float, ...]:
    right: list[int] = []
    seen: list[int] = []
    for answer in answers:
        for block in answer.blocks:
            there = answer.tokens[block.start : block.start + len(block.drafted)]
            right += [0] * (len(block.drafted) - len(right))
            seen += [0] * (len(block.drafted) - len(seen))
            for slot, (token, drafted) in enumerate(zip(there, block.drafted, strict=False)):
                seen[slot] += 1
                right[slot] += token == drafted
    return tuple(part / whole if whole else float("nan") for part, whole in zip(right, seen, strict=True))


def _accepted_to_slot(blocks: Sequence[DraftedBlock]) -> tuple[float, ...]:
    slots = max((len(block.drafted) for block in blocks), default=0)
    return tuple(sum(block.accepted > slot for block in blocks) / len(blocks) for slot in range(slots))


def _differences(
    target: DecodingTarget, prompts: Sequence[Prompt], plain: Sequence[Decoded], drafted: Sequence[Decoded]
) -> list[Difference]:
    found = []
    for prompt, expected, answer in zip(prompts, plain, drafted, strict=True):
        if expected.tokens == answer.tokens:
            continue
        pairs = zip(expected.tokens, answer.tokens, strict=False)
        at = next(
            (index for index, (left, right) in enumerate(pairs) if left != right), min(len(expected.tokens), len(answer.tokens))
        )
        before = torch.tensor([*prompt.tokens.tolist(), *expected.tokens[:at]], device=target.device)
        best = target.sequence().begin(before).logits[0].float().topk(2).values
        found.append(Difference(prompt.sample_id, at, float(best[0] - best[1])))
    return found


@contextmanager
def _bar(answers: int, shown: bool) -> Iterator[Tick]:
    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task("decoding", total=answers)
        yield lambda: bar.advance(task)
