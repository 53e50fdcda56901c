import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.regenerate.draws import draw, stream_of, uniforms

MASK = 2**64 - 1


def splitmix(state, place):
    """SplitMix64 in Python's own whole numbers."""
    mixed = (state + (place + 1) * 0x9E3779B97F4A7C15) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / 2**53


@given(st.lists(st.tuples(st.integers(0, MASK), st.integers(0, 2**20)), min_size=1, max_size=8))
def test_numbers_are_splitmix64(pairs):
    streams, places = (np.array(part, dtype=np.uint64) for part in zip(*pairs, strict=True))
    assert uniforms(streams, places).tolist() == [splitmix(*pair) for pair in pairs]


def test_streams_differ_by_seed_chat_and_turn():
    assert len({stream_of(seed, chat, turn) for seed in range(3) for chat in range(20) for turn in range(3)}) == 180


def test_draws_have_the_distribution_of_the_likeliest_tokens():
    logits = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0]).expand(20_000, -1)
    numbers = uniforms(np.full(20_000, 9, dtype=np.uint64), np.arange(20_000, dtype=np.uint64))
    drawn = np.bincount(draw(logits, numbers, temperature=1.5, top_p=0.8), minlength=5) / 20_000
    likely = np.exp(np.array([2.0, 1.0, 0.5, -1.0, -3.0]) / 1.5)
    likely /= likely.sum()  # 0.49, 0.25, 0.18, ...: the third crosses 0.8
    kept = np.where(np.arange(5) < 3, likely, 0)
    assert np.abs(drawn - kept / kept.sum()).max() < 0.01


def test_the_largest_number_draws_a_token_that_may_be_drawn():
    drawn = draw(torch.zeros(1, 4), np.array([1 - 2.0**-53]), temperature=1.0, top_p=0.5)
    assert int(drawn) in (0, 1)
