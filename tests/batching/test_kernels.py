"""The compiled loops against the same rules written plainly."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash.batching.kernels import cut_greedily, first_fit

rows = st.lists(st.integers(1, 30), min_size=1, max_size=60)


@given(rows, st.integers(30, 200), st.integers(1, 60), st.integers(0, 60))
def test_a_cut_takes_as_many_rows_as_fit(lengths, budget, max_rows, middle):
    ends = np.array([min(middle, len(lengths)), len(lengths)])
    offsets = cut_greedily(np.array(lengths, np.int32), ends, budget, max_rows).tolist()
    expected = [0]
    for row in range(1, len(lengths) + 1):
        start = expected[-1]
        if (
            row == len(lengths)
            or row in ends
            or row - start == max_rows
            or (row - start + 1) * max(lengths[start : row + 1]) > budget
        ):
            expected.append(row)
    assert offsets == expected


@given(rows, st.integers(30, 200), st.integers(1, 60))
def test_first_fit_takes_the_first_batch_with_room(lengths, budget, max_rows):
    batch_of, batches = first_fit(np.array(lengths, np.int32), budget, max_rows)
    held: list[list[int]] = []
    for length, batch in zip(lengths, batch_of.tolist(), strict=True):
        fits = (index for index, rows_in in enumerate(held) if sum(rows_in) + length <= budget and len(rows_in) < max_rows)
        expected = next(fits, len(held))
        assert batch == expected
        if expected == len(held):
            held.append([])
        held[expected].append(length)
    assert batches == len(held)


def test_first_fit_of_many_short_rows_is_not_quadratic():
    """A million rows in 50,000 batches: a scan over batches would take minutes."""
    lengths = np.random.default_rng(0).integers(1, 100, 1_000_000).astype(np.int32)
    batch_of, batches = first_fit(lengths, 1000, lengths.size)
    assert batches < 1.01 * lengths.sum() / 1000
    assert np.bincount(batch_of, lengths).max() <= 1000


def test_the_kernels_work_where_no_cache_can_be_written():
    code = """
import numba
compile_it = numba.njit
def refuse_cache(*signature, cache=False):
    if cache:
        return lambda function: (_ for _ in ()).throw(RuntimeError("no locator available"))
    return compile_it(*signature)
numba.njit = refuse_cache
import numpy as np
from dflash.batching.kernels import cut_greedily
assert cut_greedily(np.array([2, 2, 2], np.int32), np.array([3]), 4, 9).tolist() == [0, 2, 3]
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
