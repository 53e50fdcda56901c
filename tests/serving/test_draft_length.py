"""The draft that pays most is found from the rounds alone."""

from __future__ import annotations

import numpy as np
import pytest

from dflash.serving.draft_length import DraftLength

MOST = 7


def played(rates: list[float], token_seconds: float, rounds: int = 900, seed: int = 0) -> tuple[list[int], float, float]:
    """Rounds against known chances and times (a draft costs 0.3, a pass 1 and `token_seconds` for each further token).

    Returns the lengths chosen, the tokens a second got, and the best tokens a second any fixed length has.
    """
    rng = np.random.default_rng(seed)
    length, chosen, tokens, seconds = DraftLength(MOST), [], 0, 0.0
    for _ in range(rounds):
        drafted = length.choose(MOST)
        kept = rng.random(MOST) < rates
        accepted = int(np.argmin([*kept[:drafted], False]))
        took = 1 + token_seconds * drafted + 0.3 * (drafted > 0)
        length.learn(drafted, accepted, took * rng.uniform(0.95, 1.15))
        chosen.append(drafted)
        tokens, seconds = tokens + 1 + accepted, seconds + took
    fixed = [
        (1 + sum(np.cumprod(rates)[:drafted])) / (1 + token_seconds * drafted + 0.3 * (drafted > 0)) for drafted in range(MOST + 1)
    ]
    return chosen, tokens / seconds, float(max(fixed))


@pytest.mark.parametrize("token_seconds", [0.01, 0.15, 0.6])
@pytest.mark.parametrize("rates", [[0.05] * 7, [0.5] * 7, [0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1], [0.97] * 7])
def test_it_comes_within_a_tenth_of_the_best_fixed_length(rates: list[float], token_seconds: float) -> None:
    _, got, best = played(rates, token_seconds)
    assert got > 0.9 * best


def test_a_text_that_gets_easier_is_noticed_though_nothing_was_drafted() -> None:
    length = DraftLength(MOST)
    for _ in range(300):
        drafted = length.choose(MOST)
        length.learn(drafted, 0, 1 + 0.3 * drafted)
    assert length.choose(MOST) == 0
    drafted_again = 0
    for _ in range(600):
        drafted = length.choose(MOST)
        length.learn(drafted, drafted, 1 + 0.3 * drafted)
        drafted_again += drafted
    assert drafted_again > 600 * MOST / 2


def test_the_limit_and_the_block_bound_the_draft() -> None:
    length = DraftLength(MOST)
    rng = np.random.default_rng(1)
    for _ in range(200):
        limit = int(rng.integers(0, 12))
        drafted = length.choose(limit, reread=int(rng.integers(0, 5)))
        assert 0 <= drafted <= min(limit, MOST)
        length.learn(drafted, int(rng.integers(0, drafted + 1)), rng.uniform(0.5, 1.5))
