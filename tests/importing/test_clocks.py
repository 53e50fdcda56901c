from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.importing.clocks import USUAL_LINE_SECONDS, ElapsedClock, OrderClock, StepClock, WallClock


def placed(clock, frame, cuts):
    """Times of a frame that comes in parts."""
    edges = sorted({0, *(cut % (len(frame) + 1) for cut in cuts), len(frame)})
    parts = [clock.place(frame[begin:end]) for begin, end in pairwise(edges)]
    rest = clock.finish()
    whole = pl.concat([*parts, *([] if rest is None else [rest])])
    assert whole["line"].to_list() == frame["line"].to_list()
    return whole["at"].to_list()


def spread_session(shown):
    """What the module says of one session, one reading at a time."""
    groups = []
    for value in shown:
        if groups and groups[-1][0] == value:
            groups[-1][1] += 1
        else:
            groups.append([value, 1])
    times, pace = [], USUAL_LINE_SECONDS
    for at, (value, count) in enumerate(groups):
        if at + 1 < len(groups):
            pace = (groups[at + 1][0] - value) / count
        times += [value + place * pace for place in range(count)]
    return times


SESSIONS = st.lists(st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=1, max_size=8), min_size=1, max_size=4)


@given(SESSIONS, st.lists(st.integers(0, 40), max_size=4))
def test_coarse_times_are_spread_the_same_however_the_log_comes_in_parts(sessions, cuts):
    expected, ended, rows = [], None, []
    for number, told in enumerate(sessions):
        reached, shown = 0, []
        raw = []
        for more in told:
            reached += more or 0
            raw.append(None if more is None else float(reached))
            shown.append(float(reached) if more is not None or any(value is not None for value in raw) else 0.0)
        times = spread_session(shown)
        shift = -times[0] if ended is None else ended + USUAL_LINE_SECONDS
        expected += [time + shift for time in times]
        ended = expected[-1]
        rows += [(number, value) for value in raw]
    frame = pl.DataFrame(rows, schema={"session": pl.Int64, "elapsed": pl.Float64}, orient="row").with_row_index("line")
    assert placed(ElapsedClock(), frame, cuts) == pytest.approx(expected, abs=1e-9)


@given(
    st.lists(st.sampled_from([0.0, 1.0, 10.0, -500.0, 90_000.0]), min_size=1, max_size=12), st.lists(st.integers(0, 20), max_size=3)
)
def test_a_wall_clock_that_jumps_goes_on_at_its_pace_and_its_jumps_are_counted(steps, cuts):
    times = 1.7e9 + np.cumsum(steps)
    frame = pl.DataFrame({"line": range(len(times)), "time": times})
    clock = WallClock(float(times[0]), usual=10.0)
    believed = [step if 0 <= step <= 3_600 else 10.0 for step in steps[1:]]
    assert placed(clock, frame, cuts) == pytest.approx([0.0, *np.cumsum(believed)])
    assert clock.jumps == sum(not 0 <= step <= 3_600 for step in steps[1:])


def test_seconds_a_step_count_for_all_steps_since_the_reading_before():
    frame = pl.DataFrame({"line": [0, 1, 2, 3], "step": [5, 10, 15, 3], "step_seconds": [2.0, None, 3.0, 3.0]})
    assert placed(StepClock(usual_seconds=2.0, usual_steps=5.0), frame, [1, 3]) == [10.0, 20.0, 35.0, 50.0]


def test_without_any_clock_a_reading_is_a_second():
    assert placed(OrderClock(), pl.DataFrame({"line": range(5)}), [2]) == [0.0, 1.0, 2.0, 3.0, 4.0]
