"""Recorder and reader together: what is logged is read, whatever happens to the writer."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import polars as pl
import pytest

from dflash.errors import RunFailed
from dflash.telemetry.reader import Tail, committed_steps, event_frame, read_events
from dflash.telemetry.recorder import Recorder


def test_events_are_read_back_with_their_times(tmp_path):
    with Recorder(tmp_path, "coordinator") as recorder:
        recorder.record("step", step=1, loss=2.5, class_tokens=[1, 2])
        recorder.record("warning", message="line\nbreak")
    step, warning = read_events(tmp_path)
    assert (step["step"], step["loss"], step["class_tokens"]) == (1, 2.5, [1, 2])
    assert abs(step["time"] - time.time()) < 60
    assert warning["message"] == "line\nbreak"
    assert read_events(tmp_path, "warning") == [warning]


def test_each_session_has_a_file_of_its_own(tmp_path):
    for number in range(3):
        with Recorder(tmp_path, "coordinator") as recorder:
            recorder.record("step", step=number)
    assert [event["step"] for event in read_events(tmp_path)] == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 3


def test_numbers_that_are_not_finite_become_null_and_are_named(tmp_path):
    with Recorder(tmp_path, "coordinator") as recorder:
        recorder.record("step", loss=float("nan"), grad_norm=float("inf"), lr=0.1)
    (event,) = read_events(tmp_path)
    assert event["loss"] is None
    assert event["nonfinite"] == ["loss", "grad_norm"]
    json.dumps(event, allow_nan=False)


def test_a_torn_last_line_is_left_for_the_next_read(tmp_path):
    path = tmp_path / "coordinator-0000.jsonl"
    path.write_bytes(b'{"event":"step","step":1}\n{"event":"st')
    tail = Tail(tmp_path)
    assert [event["step"] for event in tail.new_events()] == [1]
    with path.open("ab") as file:
        file.write(b'ep","step":2}\n')
    assert [event["step"] for event in tail.new_events()] == [2]
    assert tail.new_events() == []
    assert tail.bad_lines == 0


def test_lines_that_are_no_events_are_counted_and_skipped(tmp_path):
    (tmp_path / "x-0000.jsonl").write_bytes(b'nonsense\n[1]\n{"no":"event"}\n{"event":3}\n\xff\xfe\n{"event":"step"}\n')
    tail = Tail(tmp_path)
    assert len(tail.new_events()) == 1
    assert tail.bad_lines == 5


def test_nothing_logged_is_lost_to_a_kill(tmp_path):
    program = (
        "import sys; from pathlib import Path; from dflash.telemetry.recorder import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]), 'coordinator')\n"
        "n = 0\n"
        "while True:\n"
        "    recorder.record('step', step=n); n += 1\n"
        "    print(n, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    acknowledged = 0
    for line in child.stdout:
        acknowledged = int(line)
        if acknowledged >= 200:
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    steps = [event["step"] for event in read_events(tmp_path)]
    assert steps == list(range(len(steps)))
    assert len(steps) >= acknowledged


@pytest.mark.parametrize("jump", [-3_600.0, 3_600.0])
def test_times_never_go_back_when_the_clock_is_set(tmp_path, monkeypatch, jump):
    real = time.time
    with Recorder(tmp_path, "coordinator") as recorder:
        recorder.record("step", step=1)
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        recorder.record("step", step=2)
        recorder.record("step", step=3)
    first, second, third = (event["time"] for event in read_events(tmp_path))
    assert first < second < third
    assert (second - first > 3_000) == (jump > 0)


def test_a_full_disk_says_which_file_and_how_to_go_on(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path, "coordinator")
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(RunFailed, match=r"coordinator-0000.jsonl.*No space left.*dflash resume"):
        recorder.record("step", step=1)


def test_frames_have_a_row_an_event_and_null_where_a_key_is_missing():
    frame = event_frame(
        [{"event": "step", "step": 1, "loss": None}, {"event": "x"}, {"event": "step", "step": 2, "loss": 0.5}], "step"
    )
    assert frame["loss"].to_list() == [None, 0.5]
    assert event_frame([], "step").is_empty()


def test_steps_done_again_after_a_resume_replace_those_they_repeat():
    steps = pl.DataFrame({"step": [1, 2, 3, 2, 3], "time": [1.0, 2.0, 3.0, 10.0, 11.0], "loss": [5.0, 4.0, 3.0, 4.5, 3.5]})
    assert committed_steps(steps)["loss"].to_list() == [5.0, 4.5, 3.5]
    steps = pl.DataFrame({"step": [1, 2, 3, 4, 2], "time": [11.0, 12.0, 13.0, 14.0, 2.0], "loss": [5.0, 4.0, 3.0, 2.0, 4.5]})
    assert committed_steps(steps)["loss"].to_list() == [
        5.0,
        4.5,
    ]  # the clock was set back; steps 3 and 4 have not been done again yet
