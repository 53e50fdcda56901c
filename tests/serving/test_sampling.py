from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.serving.sampling import Draft, draw, verify
from tests.serving.chi_square import refuses

VOCABULARY = 4


def tables(seed: int, places: int, sharpness: float = 1.5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = sharpness * torch.randn(places + 1, VOCABULARY, generator=generator)
    return target, sharpness * torch.randn(places, VOCABULARY, generator=generator)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_tokens_have_the_targets_distribution_whatever_the_draft_is(temperature: float) -> None:
    target, drafter = tables(seed=3, places=2)
    p = torch.softmax(target.double() / temperature, -1)
    generator = torch.Generator().manual_seed(1)
    pairs: dict[tuple[int, int], int] = dict.fromkeys(itertools.product(range(VOCABULARY), repeat=2), 0)
    for _ in range(4000):
        draft = draw(drafter, temperature, generator)
        verdict = verify(target, draft, temperature, generator)
        tokens = [*draft.tokens[: verdict.accepted].tolist(), verdict.following]
        while len(tokens) < 2:  # the next block would go on from here
            tokens.append(int(torch.multinomial(p[len(tokens)], 1, generator=generator)))
        pairs[tokens[0], tokens[1]] += 1
    expected = [float(p[0, first] * p[1, second]) for first, second in pairs]
    assert not refuses(list(pairs.values()), expected)


def test_the_chi_square_test_would_notice_tokens_taken_from_the_draft() -> None:
    target, drafter = tables(seed=3, places=1)
    counts = torch.bincount(
        torch.multinomial(torch.softmax(drafter[0], -1), 4000, True, generator=torch.Generator().manual_seed(0)),
        minlength=VOCABULARY,
    )
    assert refuses(counts.tolist(), torch.softmax(target[0].double(), -1).tolist())


def test_a_token_is_kept_with_the_overlap_of_both_distributions() -> None:
    target, drafter = tables(seed=8, places=1)
    overlap = float(torch.minimum(torch.softmax(target[0], -1), torch.softmax(drafter[0], -1)).sum())
    generator = torch.Generator().manual_seed(2)
    kept = sum(verify(target, draw(drafter, 1.0, generator), 1.0, generator).accepted for _ in range(4000))
    assert kept / 4000 == pytest.approx(overlap, abs=0.03)


def test_a_drafter_equal_to_the_target_is_never_refused() -> None:
    target, _ = tables(seed=5, places=6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        assert verify(target, draw(target[:-1], 0.9, generator), 0.9, generator).accepted == 6


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.integers(0, 10_000))
def test_greedy_keeps_exactly_the_leading_tokens_that_are_the_targets_best(drafted: list[int], seed: int) -> None:
    target, _ = tables(seed, places=len(drafted))
    best = target.argmax(-1).tolist()
    right = [token == wanted for token, wanted in zip(drafted, best, strict=False)]
    expected = right.index(False) if False in right else len(drafted)
    verdict = verify(target, Draft(torch.tensor(drafted), None), 0.0, torch.Generator())
    assert (verdict.accepted, verdict.following) == (expected, best[expected])
