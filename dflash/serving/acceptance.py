"""What a drafter is worth in real decoding: acceptance length, accuracy by place, target calls saved, and whether it is lossless.

- acceptance length: tokens a verifying call of the target yields, its own included (1 = the draft never helps).
- accuracy of slot k: share of blocks whose k-th drafted token is the one the answer has there, whatever came before it in the draft. This
  is training's accuracy with the target's own answer as the label.
- accepted to slot k: share of blocks whose drafted tokens 1 .. k were all kept.
- drafted a round: tokens drafted in a verifying call, on average.
- target calls saved: 1 - calls / calls of plain decoding, with every call counted: the prompt's, and those a refusal costs.
- lossless (greedy only): every answer equals the one plain decoding gives, token for token. Where one differs, the gap between the
  target's two best logits there tells rounding (next to 0) from a fault.

Speed is measured on the same prompts with the same model code and caches, one sequence at a time: a comparison of methods, not of engines.
Acceptance is a matter of whole blocks: with settings that draft only as many tokens as pay, the prompts are decoded once more that way,
and speed, calls and losslessness are that decoding's, acceptance and accuracy the whole blocks'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dflash.model.drafter import Drafter
from dflash.serving.cached_drafter import ready
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.decoding import Decoded, DecodingSettings, DraftedBlock, decode
from dflash.serving.draft_length import DraftLength
from dflash.serving.prompts import Prompt
from dflash.serving.round_times import Part, added


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

    `accuracy_by_slot` and `accepted_to_slot` start at slot 1; nan where no block reached. `plain_*` are plain decoding's,
    `whole_block_speedup` that of drafting whole blocks. `seconds_by_part`: see `dflash.serving.round_times`.
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
    whole_block_speedup: float
    drafted_a_round: float
    seconds_by_part: dict[Part, float]
    plain_seconds_by_part: dict[Part, float]
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
    laid_out = None if drafter is None else ready(drafter, target)
    length = None if drafter is None else DraftLength(drafter.shape.block_size - 1)
    answers = []
    for index, prompt in enumerate(prompts):
        each = replace(settings, seed=settings.seed + index)
        answers.append(decode(target, torch.from_numpy(prompt.tokens).long(), each, laid_out, length))
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
    ways = [replace(settings, draft_tokens=None), settings] if settings.is_adaptive else [settings]
    with _bar((1 + len(drafters) * len(ways)) * len(prompts), progress) as tick:
        first = torch.from_numpy(prompts[0].tokens).long()
        for drafter in (None, *drafters.values()):
            decode(target, first, DecodingSettings(4), drafter)  # first calls allocate and pick kernels
        plain = decode_all(target, prompts, settings, None, tick)
        measured = {}
        for name, drafter in drafters.items():
            answers = [decode_all(target, prompts, way, drafter, tick) for way in ways]
            measured[name] = summarise(target, prompts, plain, answers[-1], settings, whole_blocks=answers[0])
        return measured


def summarise(
    target: DecodingTarget,
    prompts: Sequence[Prompt],
    plain: Sequence[Decoded],
    drafted: Sequence[Decoded],
    settings: DecodingSettings,
    whole_blocks: Sequence[Decoded] | None = None,
) -> Acceptance:
    """The figures of answers decoded both ways; `whole_blocks` are those of drafting whole blocks, where `drafted` didn't."""
    whole_blocks = drafted if whole_blocks is None else whole_blocks
    tokens, calls, rate = _totals(drafted)
    plain_tokens, plain_calls, plain_rate = _totals(plain)
    blocks = [block for answer in drafted for block in answer.blocks]
    differences = [] if settings.temperature else _differences(target, prompts, plain, drafted)
    if whole_blocks is not drafted and not differences and not settings.temperature:
        differences = _differences(target, prompts, plain, whole_blocks)
    return Acceptance(
        prompts=len(prompts),
        tokens=tokens,
        acceptance_length=_acceptance_length(whole_blocks),
        accuracy_by_slot=_accuracy_by_slot(whole_blocks),
        accepted_to_slot=_accepted_to_slot([block for answer in whole_blocks for block in answer.blocks]),
        target_calls=calls,
        plain_target_calls=plain_calls,
        target_calls_saved=1 - (calls / tokens) / (plain_calls / plain_tokens),
        tokens_per_second=rate,
        plain_tokens_per_second=plain_rate,
        speedup=rate / plain_rate,
        whole_block_speedup=_totals(whole_blocks)[2] / plain_rate,
        drafted_a_round=sum(len(block.drafted) for block in blocks) / max(calls - len(drafted), 1),
        seconds_by_part=added(answer.seconds_by_part for answer in drafted),
        plain_seconds_by_part=added(answer.seconds_by_part for answer in plain),
        lossless=None if settings.temperature else not differences,
        differences=tuple(differences),
    )


def _totals(answers: Sequence[Decoded]) -> tuple[int, int, float]:
    """Tokens, target calls, tokens a second."""
    tokens = sum(len(answer.tokens) for answer in answers)
    return tokens, sum(answer.target_calls for answer in answers), tokens / sum(answer.seconds for answer in answers)


def _acceptance_length(answers: Sequence[Decoded]) -> float:
    """Tokens a call that verified a draft yielded."""
    verified = sum(len(answer.blocks) for answer in answers)
    undrafted = sum(max(answer.target_calls - 1 - len(answer.blocks), 0) for answer in answers)  # calls that yielded one token
    tokens = sum(len(answer.tokens) for answer in answers)
    return (tokens - len(answers) - undrafted) / verified if verified else float("nan")


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
