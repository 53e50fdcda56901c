import json

import pytest

from dflash.config import build_config
from dflash.runs.folder import create_run
from dflash.runs.table import describe_run, describe_runs


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path, "run", build_config({"data": {"path": "data"}, "target": {"path": "qwen3-tiny"}}))


def write(run, session, events):
    run.events.mkdir(exist_ok=True)
    lines = [json.dumps(event) for event in events]
    (run.events / f"coordinator-{session}.jsonl").write_text("\n".join([*lines, '{"event":"step","st']))  # torn, as of a kill


def step(number, seconds, loss=2.0):
    return {"event": "step", "time": 2e9 + seconds, "step": number, "tokens": 1_000, "loss": loss, "acceptance_length": 1.5}


def test_a_run_without_events_is_listed(run):
    assert describe_runs(run.path.parent) == [
        {"run": "run", "state": "new", "step": 0, "total_steps": None, "loss": None, "acceptance_length": None, "ktok_s": None,
         "last_event": None}
    ]  # fmt: skip


def test_the_last_step_and_the_rate_between_the_steps_are_told(run):
    started = {"event": "run_started", "time": 2e9, "step": 0, "total_steps": 50}
    write(run, 1, [started, *(step(number, 2.0 * number, 1.0 / number) for number in range(1, 5))])
    row = describe_run(run)
    assert (row["step"], row["total_steps"], row["loss"], row["acceptance_length"]) == (4, 50, 0.25, 1.5)
    assert row["ktok_s"] == pytest.approx(3 * 1_000 / 6.0 / 1_000)


def test_a_session_without_steps_yet_is_listed_with_the_step_it_goes_on_from(run):
    started = {"event": "run_started", "time": 2e9, "step": 0, "total_steps": 50}
    write(run, 1, [started, *(step(number, number, 1.0 / number) for number in range(1, 10))])
    write(run, 2, [{**started, "step": 5, "total_steps": 40}])
    row = describe_run(run)
    assert (row["step"], row["total_steps"], row["loss"], row["ktok_s"]) == (5, 40, 0.2, None)
    write(run, 3, [])  # before the session told how it began, the newest step that was ever made
    assert (describe_run(run)["step"], describe_run(run)["total_steps"]) == (9, 40)
    write(run, 4, [{**started, "step": 7}])
    for earlier in (1, 2, 3):
        (run.events / f"coordinator-{earlier}.jsonl").unlink()
    assert (describe_run(run)["step"], describe_run(run)["loss"]) == (7, None)
