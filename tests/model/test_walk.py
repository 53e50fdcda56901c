from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash.data.rows import TokenRows
from dflash.model.results import Rounds, merged_rounds
from dflash.model.walk import answers_to_walk, walk

MASKS = st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=5)


def rows_of(masks: list[list[bool]]) -> TokenRows:
    flat = np.concatenate([np.asarray(mask, bool) for mask in masks])
    offsets = np.concatenate([[0], np.cumsum([len(mask) for mask in masks])]).astype(np.int64)
    return TokenRows(np.arange(len(masks)), np.zeros(len(flat), np.int32), flat, offsets)


def first_answer(mask: list[bool], limit: int) -> tuple[int, int]:
    """Where the first supervised run begins and where it ends, at most `limit` tokens on; (0, 0) without any."""
    if True not in mask:
        return 0, 0
    start = end = mask.index(True)
    while end < len(mask) and mask[end] and end - start < limit:
        end += 1
    return start, end


@given(MASKS, st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_walk_is_that_of_decoding_one_answer_after_the_other(masks, limit, draws):
    answers = answers_to_walk(rows_of(masks), limit)
    places = answers.places
    streaks = np.array([draws.randint(0, 4) for _ in range(len(places))], dtype=np.int64)
    streak_at = dict(zip(zip(places.row.tolist(), places.position.tolist(), strict=True), streaks, strict=True))
    expected = Rounds()
    for row, mask in enumerate(masks):
        start, end = first_answer(mask, limit)
        written = start + 1  # the first token is the prompt's
        rounds = tokens = 0
        while written < end:
            if written - start == limit - 1:  # the last one there is room for is not drafted for
                break
            rounds += 1
            kept = min(int(streak_at[row, written - 1]) + 1, end - written)
            written, tokens = written + kept, tokens + kept
        expected += Rounds(int(rounds > 0), tokens, rounds)
    assert walk(answers, streaks) == expected


@given(MASKS, st.integers(40, 50))
def test_with_no_token_accepted_a_round_goes_to_each_and_with_all_a_round_to_a_block(masks, limit):
    answers = answers_to_walk(rows_of(masks), limit)
    lengths = [max(end - start - 1, 0) for start, end in (first_answer(mask, limit) for mask in masks)]
    places = len(answers.places)
    one_by_one, at_once = walk(answers, np.zeros(places, int)), walk(answers, np.full(places, 3))
    assert one_by_one.rounds == one_by_one.tokens == at_once.tokens == sum(lengths)
    assert at_once.rounds == sum(math.ceil(length / 4) for length in lengths)


def test_rounds_add_up_and_none_have_no_acceptance():
    assert merged_rounds([Rounds(1, 6, 2), Rounds(2, 4, 3)]) == Rounds(3, 10, 5)
    assert Rounds(3, 10, 5).acceptance_length == 2.0
    assert math.isnan(Rounds().acceptance_length)
    assert merged_rounds([]) is None
