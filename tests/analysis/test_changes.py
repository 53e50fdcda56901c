import numpy as np
import pytest

from dflash.analysis.changes import find_changes
from dflash.analysis.eventlog import load_events
from dflash.analysis.rates import rate_series


def steps(rates, start=1, seconds=10.0, begin=1_000.0):
    at = begin
    events = []
    for step, rate in enumerate(rates, start=start):
        at += seconds
        events.append(("step", {"time": at, "step": step, "tokens": int(rate * 1_000 * seconds), "loss": 1.0}))
    return events


def rates(before, after, count=100, seed=0):
    rng = np.random.default_rng(seed)
    return [*(before * np.exp(rng.normal(0, 0.05, count))), *(after * np.exp(rng.normal(0, 0.05, count)))]


def begin(time=1_000.0):
    return ("run_started", {"time": time, "step": 0, "boundaries": [0, 10], "engine": "ray"})


def test_a_drop_is_found_with_its_step_its_size_and_how_soon_it_could_be_told(written):
    found = find_changes(load_events(written([begin(), *steps(rates(10, 6))])))
    (change,) = found.changes
    assert found.verdict == "drop"
    assert abs(change.step - 101) <= 1
    assert change.ratio.change == pytest.approx(-0.4, abs=0.03)
    assert 10 <= change.detection_seconds <= 100
    assert "from 10" in found.sentence


def test_a_steady_run_says_what_it_could_not_have_seen(written):
    found = find_changes(load_events(written([begin(), *steps(rates(10, 10))])))
    assert found.verdict == "steady"
    assert f"{found.detectable:.0%}" in found.sentence


def test_evaluations_are_masked_and_listed_as_stalls_and_make_no_change(written):
    values = rates(10, 10)
    events = [begin(), *steps(values)]
    slow = range(20, 200, 20)
    for at in slow:
        events[at][1]["tokens"] //= 5
        time = events[at][1]["time"]
        events.append(("evaluation", {"time": time, "step": at, "evaluation_seconds": 8.0, "loss": 1.0}))
    found = find_changes(load_events(written(events)))
    assert found.verdict == "steady"
    assert found.masked["evaluation"] == len(slow)
    assert {stall.phase for stall in found.stalls} == {"evaluation"}
    assert found.stalled_seconds == pytest.approx(len(slow) * 8, rel=0.1)


def test_a_restart_is_a_warm_up_and_no_change(written):
    values = rates(10, 10)
    first, second = steps(values[:100]), steps([1.0, 1.0, *values[102:]], start=101, begin=2_500.0)
    found = find_changes(load_events(written([begin(), *first, begin(2_500.0), *second])))
    assert found.verdict == "steady"
    assert found.masked == {"warm-up": 4}


def test_batches_stand_in_where_steps_are_few(simulated):
    series = rate_series(load_events(simulated(seed=1)))
    assert series.source == "batches"
    assert len(series.kept) > 50


def test_steps_are_the_rows_where_they_are_finer_than_batches(written):
    batches = [("batch", {"time": 1_000 + at * 5.0, "tokens": 20_000, "step": at // 2}) for at in range(1, 101)]
    series = rate_series(load_events(written([begin(), *batches, *steps(rates(10, 10)[:50])])))
    assert series.source == "steps"


def test_too_few_rows_are_said_to_be_too_few(written):
    assert find_changes(load_events(written([begin(), *steps([10, 10, 10])]))).verdict == "too little data"
    assert find_changes(load_events(written([begin()]))).verdict == "too little data"


def test_the_answer_is_plain_json(written):
    import json

    json.dumps(find_changes(load_events(written([begin(), *steps(rates(10, 6))]))).as_dict())
