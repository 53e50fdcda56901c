"""The machine's clock is set back by an hour while a run trains: nothing it says or obeys may come of the time of day."""

import json
import time

import numpy as np
import pytest

from dflash.pipeline.train import drive_run
from dflash.runs.control import send_command
from dflash.runs.folder import create_run
from dflash.runs.table import describe_run
from dflash.telemetry.console import parse_line
from dflash.telemetry.reader import committed_steps, event_frame, read_events
from dflash.telemetry.series import RunSeries
from tests.pipeline.recount import recount

HOUR = 3_600.0


@pytest.fixture
def clock(monkeypatch):
    """`clock.ahead` seconds are added to the time of day."""

    class Clock:
        ahead = 0.0

    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + Clock.ahead)
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + Clock.ahead) * 1e9))
    return Clock


def everything(run):
    series = RunSeries(run.events)
    while series.update():
        pass
    return series


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_run_told_steered_and_resumed_over_a_jump_of_the_clock(tmp_path, small_config, clock, jump):
    run, lines = create_run(tmp_path, "run", small_config("telemetry.log_every=0.01", "optim.epochs=3")), []
    told = []

    def show(line):
        lines.append(line)
        steps = read_events(run.events, "step")
        if len(steps) > 3 and not told:
            told.append(send_command(run, "set", key="pool.policy", value="deficit"))
            clock.ahead = jump
            told.append(send_command(run, "set", key="pool.policy", value="random"))
            told.append(send_command(run, "stop"))

    assert drive_run(run, show).state == "stopped"
    changes = read_events(run.events, "change")
    assert [change["id"] for change in changes] == told
    assert [change["new"] for change in changes[:2]] == ["deficit", "random"]
    clock.ahead = 2 * jump
    assert drive_run(run, show).state == "finished"
    assert set(recount(run).values()) == {1}

    for path in run.events.glob("*.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        for name in ("time", "seconds"):
            assert (np.diff([event[name] for event in events]) >= 0).all()
    series = everything(run)
    for columns in (series.steps, series.samples, series.evaluations, series.systems):
        assert (np.diff(columns["elapsed_seconds"]) >= 0).all()
    assert (np.diff([mark.elapsed_seconds for mark in series.marks]) >= 0).all()
    for kind in ("batch", "step", "evaluation", "sample"):
        for event in read_events(run.events, kind):
            assert [name for name, value in event.items() if name.endswith("seconds") and np.min(value) < 0] == []
    read = [line for text in lines if (line := parse_line(text))]
    assert min(line.elapsed_seconds for line in read) >= 0
    assert min(line.eta_seconds for line in read if line.eta_seconds is not None) >= 0
    assert min(line.ktok_per_second for line in read) >= 0
    assert describe_run(run)["ktok_s"] > 0
    steps = event_frame(read_events(run.events), "step")
    assert committed_steps(steps)["step"].to_list() == list(range(1, steps["step"].max() + 1))
