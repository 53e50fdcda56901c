"""A run whose folder is moved or deleted while it goes on: nothing is written where it was, and nothing is lost where it is."""

import shutil

import pytest

from dflash.pipeline.checkpoints import CheckpointStore
from dflash.pipeline.train import drive_run
from dflash.runs.folder import RunFolder, create_run
from dflash.runs.hold import FolderGone
from dflash.telemetry.reader import read_events
from tests.pipeline.recount import recount


def after_step(run, step, act):
    """A listener of console lines that acts once, when the run has taken that step."""
    done = []

    def show(line):
        if not done and any(event["step"] >= step for event in read_events(run.events, "step")):
            done.append(True)
            act()

    return show


@pytest.mark.parametrize("into", ["beside", "inside another folder"])
def test_a_moved_run_stops_with_its_checkpoint_where_it_is_and_goes_on_from_there(tmp_path, small_config, into):
    run = create_run(
        tmp_path / "runs", "before", small_config("telemetry.log_every=0.01", "optim.epochs=3", "checkpoint.every=1000")
    )
    moved = RunFolder(tmp_path / ("runs/after" if into == "beside" else "archive/2026/before"))
    moved.path.parent.mkdir(parents=True, exist_ok=True)
    outcome = drive_run(run, after_step(run, 3, lambda: run.path.rename(moved.path)))
    assert not run.path.exists()
    assert (outcome.state, outcome.run) == ("stopped", str(moved.path))
    assert moved.state() == "stopped"
    assert "moved" in moved.exit_record()["reason"]
    assert any(str(moved.path) in event["message"] for event in read_events(moved.events, "warning"))
    assert CheckpointStore(moved.checkpoints, 3, {}, print).newest().step == outcome.step
    assert drive_run(moved, lambda line: None).state == "finished"
    counts = recount(moved)
    assert set(counts.values()) == {1}
    assert len(counts) == 3 * 52
    assert not run.path.exists()


def test_a_run_moved_just_before_a_checkpoint_writes_it_where_the_folder_is(tmp_path, small_config, monkeypatch):
    run = create_run(tmp_path, "before", small_config("checkpoint.every=2", "optim.epochs=2"))
    moved = RunFolder(tmp_path / "after")
    begin = CheckpointStore.begin

    def move_then_begin(store, step):
        if run.path.exists():
            run.path.rename(moved.path)
        return begin(store, step)

    monkeypatch.setattr(CheckpointStore, "begin", move_then_begin)
    assert drive_run(run, lambda line: None).state == "stopped"
    assert not run.path.exists()
    assert CheckpointStore(moved.checkpoints, 3, {}, print).newest().step >= 2


def test_a_run_whose_folder_is_deleted_ends_with_the_reason(tmp_path, small_config):
    run = create_run(tmp_path, "gone", small_config("telemetry.log_every=0.01", "optim.epochs=200"))
    with pytest.raises(FolderGone, match=r"gone: the run's folder was deleted.*nothing more can be kept"):
        drive_run(run, after_step(run, 2, lambda: shutil.rmtree(run.path)))
    assert not run.path.exists()


def test_another_folder_put_in_its_place_is_not_written_to(tmp_path, small_config):
    config = small_config("telemetry.log_every=0.01", "optim.epochs=20")
    run, moved = create_run(tmp_path, "run", config), RunFolder(tmp_path / "old")

    def swap():
        run.path.rename(moved.path)
        create_run(tmp_path, "run", config)

    assert drive_run(run, after_step(run, 2, swap)).run == str(moved.path)
    assert run.state() == "new"
    assert sorted(path.name for path in run.path.iterdir()) == ["config.yaml"]
    assert moved.state() == "stopped"
