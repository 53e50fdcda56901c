from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.regenerate.answers import loops


def plainly(tokens):
    """The definition, word by word: four repeats or more of a period of 1 to 48, 32 tokens or more."""
    for period in range(1, 49):
        for length in range(max(4 * period, 32), len(tokens) + 1):
            tail = tokens[-length:]
            if all(tail[i] == tail[i - period] for i in range(period, length)):
                return True
    return False


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 40))
def test_loops_are_as_defined(start, part, times):
    tokens = (start + part * times)[:100]
    assert loops(tokens) == plainly(tokens)


def test_words_loop_too_and_the_end_counts():
    assert loops(["no", "end"] * 20)
    assert not loops(["no", "end"] * 20 + ["but", "this"])
    assert not loops([])
