import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.telemetry.console import ConsoleLine, format_duration, format_eta, format_line, parse_duration, parse_line

RECORD = [
    "[2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.31b/s dft=0.13b/s (5.4Ktok/s) | q_pre=[178] q_hs=[13] "
    "q_hsb=[0, 0, 0, 1, 1, 11] | epoch~0.00 ETA=13.5d",
    "[2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.31b/s dft=0.15b/s (6.0Ktok/s) | q_pre=[199] q_hs=[13] "
    "q_hsb=[0, 0, 0, 1, 1, 11] | epoch~0.00 ETA=13.6d",
]


@pytest.mark.parametrize("text", RECORD)
def test_the_records_lines_are_read_and_printed_the_same(text):
    line = parse_line(text)
    assert line.elapsed_seconds == 120
    assert line.loss is None
    assert line.pool_histogram == (0, 0, 0, 1, 1, 11)
    assert line.eta_seconds == pytest.approx(13.5 * 86_400, rel=0.01)
    assert format_line(line) == text


def test_a_line_cut_off_at_its_end_keeps_what_came_before():
    line = parse_line(
        "[2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.30b/s dft=0.14b/s (5.7Ktok/s) | q_pre=[221] q_hs=[15] "
        "q_hsb=[0, 1, 0, 1, 2, 11] | epoch~..."
    )
    assert (line.ktok_per_second, line.prefetched, line.pooled) == (5.7, 221, 15)
    assert line.epoch is None
    assert line.eta_seconds is None


@pytest.mark.parametrize("cut", range(len(RECORD[0])))
def test_a_line_cut_anywhere_never_fails(cut):
    line = parse_line(RECORD[0][:cut])
    assert line is None or line.step == 1


def test_colours_carriage_returns_and_other_output_are_ignored():
    assert parse_line("\x1b[32mINFO worker 3: \x1b[0m" + RECORD[0] + "\r\n") == parse_line(RECORD[0])


@pytest.mark.parametrize("text", ["", "hello", "step=3", "[] step=1", "[2m] stepped=3", "[abc] step=1"])
def test_other_lines_are_no_progress_lines(text):
    assert parse_line(text) is None


finite = st.floats(0, 1e4)
lines = st.builds(
    ConsoleLine,
    elapsed_seconds=st.integers(0, 10**6).map(float),
    step=st.integers(0, 10**7),
    loss=st.none() | finite,
    accuracy=st.none() | st.floats(0, 1),
    streak=st.none() | st.floats(0, 15),
    lr=st.none() | st.floats(1e-8, 1),
    noise=st.floats(0, 1),
    target_batches_per_second=finite,
    drafter_batches_per_second=finite,
    ktok_per_second=finite,
    prefetched=st.integers(0, 500),
    pooled=st.integers(0, 50),
    pool_histogram=st.lists(st.integers(0, 30), min_size=1, max_size=8).map(tuple),
    epoch=st.floats(0, 99),
    eta_seconds=st.none() | st.floats(0, 10**7),
)


@given(lines)
def test_a_printed_line_reads_back_to_its_printed_precision(line):
    again = parse_line(format_line(line))
    assert format_line(again) == format_line(
        dataclasses.replace(line, eta_seconds=again.eta_seconds, elapsed_seconds=again.elapsed_seconds)
    )
    if line.eta_seconds is not None:
        assert again.eta_seconds == pytest.approx(line.eta_seconds, rel=0.051, abs=0.051)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59, "59s"), (120, "2m"), (3_900, "1h05m"), (93_600, "1d02h")])
def test_durations(seconds, text):
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds


def test_eta_uses_its_largest_unit():
    assert [format_eta(seconds) for seconds in (30, 90, 7_200, 13.5 * 86_400)] == ["30.0s", "1.5m", "2.0h", "13.5d"]
