"""Events as columns: complete, cheap to follow, right over resumes, torn lines and clocks that go back."""

import json

import numpy as np
import pytest

from dflash.telemetry.reader import Tail
from dflash.telemetry.series import Columns, RunSeries
from tests.workbench.simulated_run import simulate_run


def write(path, *events):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for event in events:
            file.write(json.dumps(event, separators=(",", ":")) + "\n")


def step(number, seconds, tokens=100, wall=1000.0):
    return {
        "event": "step",
        "time": wall + seconds,
        "seconds": seconds,
        "step": number,
        "tokens": tokens,
        "loss": 3.0 - number / 100,
    }


def read(folder):
    series = RunSeries(folder)
    while series.update():
        pass
    return series


def test_columns_keep_every_row_over_growth_and_name_a_missing_value_nan():
    columns = Columns()
    rows = [{f"c{number % 20}": float(number), "all": float(number)} for number in range(2_000)]
    for row in rows:
        columns.append(row)
    assert len(columns) == 2_000
    np.testing.assert_array_equal(columns["all"], np.arange(2_000.0))
    expected = [row.get("c7", np.nan) for row in rows]
    np.testing.assert_array_equal(columns["c7"], expected)
    assert np.isnan(columns["never"]).all()
    columns.cut(10)
    columns.append({"all": -1.0})
    assert columns["all"].tolist() == [*map(float, range(10)), -1.0]
    assert np.isnan(columns["c7"][10])


def test_steps_done_again_after_a_resume_replace_the_ones_they_repeat(tmp_path):
    write(
        tmp_path / "coordinator-0000.jsonl",
        {"event": "run_started", "time": 1000.0, "seconds": 0.0, "step": 0},
        *(step(n, n) for n in range(1, 6)),
    )
    again = [
        {"event": "run_started", "time": 1100.0, "seconds": 0.0, "step": 3},
        *(step(n, n - 3, 200, 1100.0) for n in range(4, 8)),
    ]
    write(tmp_path / "coordinator-0001.jsonl", *again)
    series = read(tmp_path)
    assert series.steps["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert series.steps["committed_tokens"].tolist() == [100, 200, 300, 500, 700, 900, 1100]
    assert series.steps["session"].tolist() == [1, 1, 1, 2, 2, 2, 2]
    assert [mark.kind for mark in series.marks] == ["restart"]


def test_time_never_goes_back_when_the_clock_does(tmp_path):
    write(tmp_path / "coordinator-0000.jsonl", *(step(n, n, wall=1000.0 if n < 4 else 400.0) for n in range(1, 8)))
    write(tmp_path / "coordinator-0001.jsonl", *(step(n, n - 7, wall=200.0) for n in range(8, 12)))
    elapsed = read(tmp_path).steps["elapsed_seconds"]
    assert (np.diff(elapsed) >= 0).all()


def test_a_torn_line_waits_and_a_foreign_line_is_counted(tmp_path):
    path = tmp_path / "coordinator-0000.jsonl"
    write(path, step(1, 1.0), {"event": "step", "time": 1.0, "seconds": 2.0, "step": "not a number"}, ["no event"])
    with path.open("a") as file:
        file.write('{"event":"step","time":3')
    series = read(tmp_path)
    assert (len(series.steps), series.bad_lines, series.unreadable) == (1, 1, 1)
    with path.open("a") as file:
        file.write('.0,"seconds":3.0,"step":2}\n')
    assert series.update()
    assert len(series.steps) == 2


def test_a_large_file_is_read_in_pieces_in_order_and_batch_events_stay_unparsed(tmp_path, monkeypatch):
    batches = [{"event": "batch", "time": 1.0, "seconds": float(n), "filler": "x" * 200} for n in range(200)]
    for session in range(2):
        for number in range(50):
            write(tmp_path / f"coordinator-{session:04}.jsonl", *batches[:4], step(1 + 50 * session + number, float(number)))
    tail = Tail(tmp_path, kinds=("step",), most_bytes=4_096)
    parsed = []
    monkeypatch.setattr(tail, "_parse", lambda line, parse=tail._parse: parsed.append(line) or parse(line))
    found, calls = [], 0
    while True:
        found += tail.new_events()
        calls += 1
        if not tail.more:
            break
    assert [event["step"] for event in found] == list(range(1, 101))
    assert len(parsed) == 100
    assert calls > 10


def test_a_line_longer_than_a_piece_is_still_read(tmp_path):
    write(tmp_path / "coordinator-0000.jsonl", {**step(1, 1.0), "filler": "x" * 10_000}, step(2, 2.0))
    tail = Tail(tmp_path, most_bytes=512)
    found = []
    for _ in range(5):
        found += tail.new_events()
    assert [event["step"] for event in found] == [1, 2]


def test_a_run_of_a_newer_version_is_told(tmp_path):
    write(tmp_path / "coordinator-0000.jsonl", {"event": "run_started", "time": 1.0, "seconds": 0.0, "schema": 99})
    assert read(tmp_path).newer


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    return simulate_run(tmp_path_factory.mktemp("run") / "one", "telemetry.sample_every=20")


def test_columns_agree_with_the_events_of_a_whole_run(simulated):
    events = [json.loads(line) for line in next((simulated / "events").glob("*.jsonl")).read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    series = read(simulated / "events")
    np.testing.assert_allclose(series.steps["loss"], [event["loss"] for event in steps])
    np.testing.assert_allclose(series.steps["committed_tokens"], np.cumsum([event["tokens"] for event in steps]))
    samples = [event for event in events if event["event"] == "sample"]
    np.testing.assert_allclose(series.samples["committed_tokens"], [event["committed_tokens"] for event in samples])
    assert series.boundaries[0] == 0
    assert {"target-4", "drafter-2", "prefetch-0"} <= set(series.workers)
    assert series.ended == "finished"
