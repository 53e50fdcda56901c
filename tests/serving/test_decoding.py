"""Greedy answers equal the target's own, token for token; drawn ones have the target's distribution."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

from dflash.errors import RefusedInput
from dflash.serving import decoding
from dflash.serving.cached_drafter import ready
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.decoding import DecodingSettings, decode
from dflash.serving.draft_length import DraftLength
from dflash.serving.sampling import Draft, draw
from dflash.targets import SHIPPED, shipped_target
from tests.model.tiny import DFLASH2, VOCABULARY, save_target
from tests.serving.chi_square import refuses
from tests.serving.conftest import FAMILIES, random_drafter

CAPTURED = (0, 2)
BLOCK = 5
DRAWN_FROM: dict[str, dict[str, Any]] = {  # 3 layers of each: enough for every kind of cache
    "qwen3": {"num_hidden_layers": 3},
    "qwen3_5_text": {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "gemma3_text": {
        "num_hidden_layers": 3,
        "head_dim": 16,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "mistral": {"num_hidden_layers": 3, "head_dim": 16, "sliding_window": 3},
}


def generated(folder: Path, prompt: torch.Tensor, count: int) -> list[int]:
    """transformers' own greedy decoding."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    out = model.generate(prompt[None], do_sample=False, max_new_tokens=count, attention_mask=torch.ones_like(prompt[None]))
    return [int(token) for token in out[0, len(prompt) :]]


def random_prompt(length: int, seed: int = 0, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(0, vocabulary - 1, (length,), generator=torch.Generator().manual_seed(seed))


class PartlyRight:
    """Stands in for `DraftSequence`: drafts the target's own answer, with errors at random places."""

    answer: list[int]
    prompt_length: int
    error_rate: float

    def __init__(self, drafter: object, target: DecodingTarget, capacity: int) -> None:
        self.length, self.capacity = 0, capacity
        self.vocabulary = len(target.embedding)
        self.generator = torch.Generator().manual_seed(int(100 * self.error_rate))

    def extend(self, features: torch.Tensor) -> None:
        self.length += len(features)
        assert self.length <= self.capacity

    def states(self, anchor: int, places: int) -> torch.Tensor:
        at = self.length - self.prompt_length
        assert self.answer[at] == anchor  # the context holds exactly the tokens before the anchor
        assert at + places < len(self.answer)  # nothing is drafted that can't be used
        return torch.tensor(self.answer[at + 1 : at + 1 + places])

    def draft(self, drafted: torch.Tensor, anchor: int, temperature: float, generator: torch.Generator) -> Draft:
        wrong = torch.rand(len(drafted), generator=self.generator) < self.error_rate
        logits = torch.nn.functional.one_hot((drafted + wrong) % self.vocabulary, self.vocabulary).float()
        return draw(logits, temperature, generator)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("error_rate", [0.0, 0.3, 1.0])
def test_greedy_answers_are_the_targets_own(
    family: str, error_rate: float, target_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = target_folder(family)
    prompt = random_prompt(13)
    PartlyRight.answer = generated(folder, prompt, 40)
    PartlyRight.prompt_length, PartlyRight.error_rate = len(prompt), error_rate
    monkeypatch.setattr(decoding, "DraftSequence", PartlyRight)
    target = DecodingTarget.load(folder, layer_ids=CAPTURED)
    answer = decode(target, prompt, DecodingSettings(40), random_drafter(folder))
    assert list(answer.tokens) == PartlyRight.answer
    assert list(decode(target, prompt, DecodingSettings(40)).tokens) == PartlyRight.answer
    if error_rate == 0.0:
        assert answer.target_calls == 1 + -(-39 // BLOCK)  # the prompt, then a block of 5 a call
    if error_rate == 1.0:
        assert all(block.accepted == 0 for block in answer.blocks)
        assert answer.target_calls == 40  # as many as plain decoding takes, whatever the cache can do


@pytest.mark.parametrize("draft_tokens", [1, 3, "auto"])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gemma3", "mistral"])
def test_answers_and_bounds_hold_however_many_tokens_are_drafted(
    family: str, draft_tokens: int | Literal["auto"], target_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = target_folder(family)
    target = DecodingTarget.load(folder, layer_ids=CAPTURED)
    target.end_tokens = frozenset()
    monkeypatch.setattr(decoding, "DraftSequence", PartlyRight)
    length = DraftLength(BLOCK - 1)
    for seed, error_rate in enumerate((0.1, 0.5, 1.0)):
        prompt = random_prompt(5 + 7 * seed, seed)
        plain = decode(target, prompt, DecodingSettings(45))
        PartlyRight.answer = list(plain.tokens)
        PartlyRight.prompt_length, PartlyRight.error_rate = len(prompt), error_rate
        answer = decode(target, prompt, DecodingSettings(45, draft_tokens=draft_tokens), random_drafter(folder), length)
        assert answer.tokens == plain.tokens
        assert answer.target_calls <= plain.target_calls == 45
        assert all(len(block.drafted) <= (4 if draft_tokens == "auto" else draft_tokens) for block in answer.blocks)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_real_drafter_changes_nothing_either(family: str, target_folder: Callable[[str], Path]) -> None:
    folder = target_folder(family)
    prompt = random_prompt(3, seed=4)
    target = DecodingTarget.load(folder, layer_ids=CAPTURED)
    answer = decode(target, prompt, DecodingSettings(25), random_drafter(folder))
    assert list(answer.tokens) == generated(folder, prompt, 25)
    assert answer.blocks[0].start == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_targets_answer_the_same_with_a_drafter(name: str) -> None:
    folder = shipped_target(name)
    target = DecodingTarget.load(folder, layer_ids=CAPTURED)
    prompt = random_prompt(30, vocabulary=2000)
    answer = decode(target, prompt, DecodingSettings(30), random_drafter(folder, {"mask_token_id": None}))
    assert list(answer.tokens) == generated(folder, prompt, 30)


def test_an_answer_ends_at_the_end_token_also_inside_a_block(
    target_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = target_folder("qwen3")
    prompt = random_prompt(13)
    PartlyRight.answer = generated(folder, prompt, 30)
    PartlyRight.prompt_length, PartlyRight.error_rate = len(prompt), 0.0
    monkeypatch.setattr(decoding, "DraftSequence", PartlyRight)
    target = DecodingTarget.load(folder, layer_ids=CAPTURED)
    end = PartlyRight.answer[7]
    target.end_tokens = frozenset([end])
    first = PartlyRight.answer.index(end)
    answer = decode(target, prompt, DecodingSettings(30), random_drafter(folder))
    assert list(answer.tokens) == PartlyRight.answer[: first + 1]


@pytest.mark.parametrize(("family", "architecture"), [*((family, {}) for family in DRAWN_FROM), ("qwen3", DFLASH2)])
def test_drawn_answers_have_the_targets_distribution(family: str, architecture: dict[str, Any], tmp_path: Path) -> None:
    vocabulary, runs = 5, 300
    folder = save_target(tmp_path / family, family, vocab_size=vocabulary, pad_token_id=0, **DRAWN_FROM[family])
    target = DecodingTarget.load(folder, layer_ids=CAPTURED)
    target.end_tokens = frozenset()
    drafter = random_drafter(folder, {"mask_token_id": vocabulary - 1, "block_size": 3, **architecture})
    laid_out = ready(drafter, target)
    prompt = torch.tensor([1, 3, 2])
    temperature = 3.0
    expected = {}
    for pair in itertools.product(range(vocabulary), repeat=2):
        logits = target.model(input_ids=torch.tensor([[*prompt.tolist(), *pair]])).logits[0].double()
        p = torch.softmax(logits / temperature, -1)
        expected[pair] = float(p[2, pair[0]] * p[3, pair[1]])
    counts = dict.fromkeys(expected, 0)
    kept = 0
    for seed in range(runs):
        answer = decode(target, prompt, DecodingSettings(3, temperature, seed), laid_out)
        counts[answer.tokens[0], answer.tokens[1]] += 1
        kept += answer.blocks[0].accepted
    assert 0 < kept < 2 * runs  # both ways through the rule were taken
    assert not refuses(list(counts.values()), list(expected.values()))


@pytest.mark.parametrize("prompt", [[], [VOCABULARY], [-1]])
def test_a_prompt_the_target_cannot_read_is_refused(prompt: list[int], target_folder: Callable[[str], Path]) -> None:
    target = DecodingTarget.load(target_folder("qwen3"), layer_ids=CAPTURED)
    with pytest.raises(RefusedInput, match="prompt needs at least one token"):
        decode(target, torch.tensor(prompt, dtype=torch.long), DecodingSettings(4))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RefusedInput, match="temperature=-1"):
        DecodingSettings(4, temperature=-1)
