import math
import os
import time

import pytest

from dflash.runs import heartbeat


@pytest.fixture
def clocks(monkeypatch):
    """The reader's two clocks, moved by hand: how long it has looked, and what time it thinks it is."""

    class Clocks:
        forward, of_day = 1_000.0, 1_700_000_000.0

        def pass_(self, seconds):
            self.forward += seconds
            self.of_day += seconds

    clocks = Clocks()
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: clocks.forward)
    monkeypatch.setattr(heartbeat.time, "time", lambda: clocks.of_day)
    monkeypatch.setattr(heartbeat.time, "sleep", clocks.pass_)
    return clocks


def touch(lock, seconds):
    os.utime(lock, (seconds, seconds))


def test_at_the_first_look_the_time_of_day_tells(tmp_path, clocks):
    for age, name in ((0.0, "a"), (7.0, "b"), (3_600.0, "c")):
        (tmp_path / name).touch()
        touch(tmp_path / name, clocks.of_day - age)
        assert heartbeat.seconds_silent(tmp_path / name) == pytest.approx(age)
    assert heartbeat.seconds_silent(tmp_path / "missing") == math.inf


@pytest.mark.parametrize("skew", [-1e8, -3_600.0, -30.0, 0.0, 30.0, 3_600.0, 1e8])
def test_a_process_whose_clock_is_another_lives_as_soon_as_two_beats_were_seen_and_is_missed_when_they_end(tmp_path, clocks, skew):
    lock = tmp_path / "lock"
    lock.touch()
    touch(lock, clocks.of_day + skew)
    assert heartbeat.seconds_silent(lock) == pytest.approx(abs(skew))
    for _ in range(50):
        clocks.pass_(heartbeat.BEAT_SECONDS)
        touch(lock, clocks.of_day + skew)
        assert heartbeat.seconds_silent(lock) <= heartbeat.BEAT_SECONDS
    ended = clocks.forward
    for _ in range(50):
        clocks.pass_(heartbeat.BEAT_SECONDS)
        assert heartbeat.seconds_silent(lock) == pytest.approx(clocks.forward - ended, abs=heartbeat.BEAT_SECONDS)


def test_a_reader_whose_own_clock_is_set_still_counts_right(tmp_path, clocks):
    lock = tmp_path / "lock"
    lock.touch()
    touch(lock, clocks.of_day)
    heartbeat.seconds_silent(lock)
    clocks.of_day -= 86_400
    clocks.pass_(30.0)
    assert heartbeat.seconds_silent(lock) == pytest.approx(30.0)
    touch(lock, 1.0)
    assert heartbeat.seconds_silent(lock) <= 30.0


def test_one_who_looks_seldom_does_not_take_an_old_beat_for_a_new_one(tmp_path, clocks):
    lock = tmp_path / "lock"
    lock.touch()
    touch(lock, clocks.of_day)
    heartbeat.seconds_silent(lock)
    clocks.pass_(10.0)
    touch(lock, clocks.of_day)
    clocks.pass_(3_600.0)
    assert heartbeat.seconds_silent(lock) == pytest.approx(3_600.0)


def test_watching_ends_with_the_first_beat_or_after_its_time(tmp_path, clocks, monkeypatch):
    lock = tmp_path / "lock"
    lock.touch()
    touch(lock, 5.0)
    began = clocks.forward
    assert not heartbeat.beats(lock)
    assert clocks.forward - began == pytest.approx(heartbeat.WATCH_SECONDS, abs=0.5)

    def sleep(seconds):
        clocks.pass_(seconds)
        if clocks.forward > began + 13:
            touch(lock, 6.0)

    monkeypatch.setattr(heartbeat.time, "sleep", sleep)
    assert heartbeat.beats(lock)
    assert clocks.forward - began == pytest.approx(13.0, abs=0.5)


def test_a_heart_beats_until_its_block_is_left_also_where_the_file_was_moved(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    lock = tmp_path / "lock"
    with lock.open("a") as file:
        touch(lock, 5.0)
        with heartbeat.beating(file.fileno()):
            assert heartbeat.beats(lock, 10.0)
            lock = lock.rename(tmp_path / "moved")
            touch(lock, 5.0)
            assert heartbeat.beats(lock, 10.0)
        touch(lock, 5.0)
        time.sleep(0.05)
        assert lock.stat().st_mtime == 5.0
