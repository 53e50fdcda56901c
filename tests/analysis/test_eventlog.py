import json

import pytest

from dflash.analysis import eventlog
from dflash.analysis.eventlog import load_events
from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import read_events


def events_of_a_run():
    yield "run_started", {"step": 0, "boundaries": [0, 8]}
    for step in range(1, 40):
        yield (
            "batch",
            {
                "batch": f"0.0.{step}",
                "drafter": step % 2,
                "tokens": 100 + step,
                "loss": None if step % 3 else 2.5,
                "extra": {"a": [1]},
            },
        )
        yield (
            "step",
            {"step": step, "epoch": 0, "loss": 3 if step % 2 else 2.5, "class_tokens": [step, 1], "batch_ids": [f"0.0.{step}"]},
        )
        if step % 4 == 0:
            yield "sample", {"clock_seconds": float(step), "workers": [], "queues": []}
    yield "run_ended", {"state": "finished"}


def check_against_plain_reading(run):
    """Every kept column holds what reading line by line finds."""
    log = load_events(run)
    events = sorted(read_events(run.events), key=lambda event: event["time"])
    for kind, frame in (("step", log.steps), ("batch", log.batches)):
        rows = [event for event in events if event["event"] == kind]
        assert frame["at"].to_list() == [event["time"] - events[0]["time"] for event in rows]
        assert "extra" not in frame.columns
        for name in frame.columns[1:]:
            assert frame[name].to_list() == [event.get(name) for event in rows], name
    assert [event["step"] for event in log.rare["run_started"]] == [0]
    return log


@pytest.mark.parametrize("block_bytes", [64, 1_000, 2**24])
def test_the_columns_hold_what_the_events_say_however_the_file_falls_into_blocks(written, monkeypatch, block_bytes):
    monkeypatch.setattr(eventlog, "BLOCK_BYTES", block_bytes)
    log = check_against_plain_reading(written(list(events_of_a_run())))
    assert len(log.rare["sample"]) == 9


def test_torn_lines_and_lines_of_another_shape_cost_only_themselves(written):
    run = written(list(events_of_a_run()))
    (path,) = run.events.glob("*.jsonl")
    lines = path.read_text().splitlines()
    lines[5:5] = ['{"event":"step","time":', '{"event":"step","time":"noon"}', "[1]", "\ufffd", '{"event":"batch","loss":']
    path.write_text("\n".join(lines) + '\n{"event":"step","time":12')
    for kind in ("step", "batch"):
        assert len(getattr(load_events(run), {"step": "steps", "batch": "batches"}[kind])) == 39


def test_sessions_in_several_files_are_put_in_order_of_time(written, tmp_path):
    run = written([("step", {"step": 2, "time": 50.0}), ("step", {"step": 3, "time": 60.0})])
    (run.events / "a-0000.jsonl").write_text(json.dumps({"event": "step", "time": 55.0, "step": 9}, separators=(",", ":")) + "\n")
    log = load_events(RunFolder(run.path))
    assert log.steps.rows() == [(0.0, 2), (5.0, 9), (10.0, 3)]


def test_very_many_samples_are_thinned_evenly_and_the_last_is_kept(written, monkeypatch):
    monkeypatch.setattr(eventlog, "MOST_SAMPLES", 8)
    log = load_events(written([("sample", {"clock_seconds": float(at)}) for at in range(30)]))
    assert [sample["clock_seconds"] for sample in log.rare["sample"]] == [0.0, 8.0, 16.0, 24.0, 29.0]


def test_a_run_without_events_is_empty(written):
    log = load_events(written([]))
    assert (len(log.steps), len(log.lines), log.seconds, log.engine) == (0, 0, 0.0, None)
