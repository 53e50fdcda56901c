import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.config import OptimConfig
from dflash.pipeline.schedule import learning_rate, steps_in


def test_warm_up_rises_then_a_cosine_falls_to_the_floor():
    optim = OptimConfig(lr=1.0, warmup=0.1, min_lr_ratio=0.1)
    rates = [learning_rate(step, 1000, optim) for step in range(1000)]
    top = rates.index(max(rates))
    assert top in (99, 100)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[0] == pytest.approx(0.005)
    assert rates[-1] == pytest.approx(0.1, abs=1e-5)
    middle = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.5))
    assert learning_rate(549, 1000, optim) == pytest.approx(middle, abs=1e-3)


@given(st.integers(1, 5_000), st.floats(0, 0.9), st.floats(0, 1))
def test_every_step_learns_and_none_above_the_peak(total, warmup, floor):
    optim = OptimConfig(lr=3e-4, warmup=warmup, min_lr_ratio=floor)
    for step in {0, total // 3, total - 1, total + 5}:
        assert 0 < learning_rate(step, total, optim) <= optim.lr


def test_a_short_last_window_is_a_step():
    assert [steps_in(batches, 32) for batches in (0, 1, 32, 33, 64)] == [0, 1, 1, 2, 2]
