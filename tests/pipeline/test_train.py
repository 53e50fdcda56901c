"""Whole runs on the inline engine with the shipped target: trained, stopped, resumed, refused."""

import errno
import json
import math
import os
import shutil
import signal
import threading
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from dflash.errors import RefusedInput, RunFailed
from dflash.model import trainer
from dflash.pipeline.train import drive_run
from dflash.runs.folder import RunFolder, change_config, create_run
from dflash.runs.table import describe_runs
from dflash.telemetry.accounts import STATES
from dflash.telemetry.console import parse_line
from dflash.telemetry.reader import read_events
from tests.pipeline.recount import recount


def weights(run: RunFolder) -> dict[str, np.ndarray]:
    newest = sorted(run.checkpoints.glob("step-*"))[-1]
    return {**load_file(newest / "model.safetensors"), **load_file(newest / "optimizer.safetensors")}


def test_a_run_trains_every_sample_once_an_epoch_and_leaves_its_story(tmp_path, small_config):
    lines = []
    run = create_run(tmp_path, "whole", small_config("optim.epochs=2", "evaluation.every=4"))
    outcome = drive_run(run, lines.append)
    assert outcome.state == run.state() == "finished"
    counts = recount(run)
    assert len(counts) == 2 * 52
    assert set(counts.values()) == {1}
    steps = read_events(run.events, "step")
    assert [step["step"] for step in steps] == list(range(1, outcome.step + 1))
    assert sum(step["tokens"] for step in steps) == outcome.committed_tokens
    assert steps[-1]["loss"] < steps[0]["loss"]
    evaluations = read_events(run.events, "evaluation")
    assert [event["step"] for event in evaluations] == [*range(0, outcome.step, 4), outcome.step]
    assert any(parse_line(line) for line in lines)
    assert [line for line in run.console_log.read_text().splitlines() if line] == lines
    (row,) = describe_runs(tmp_path)
    assert (row["state"], row["step"], row["total_steps"]) == ("finished", outcome.step, outcome.step)


def test_a_tracker_that_breaks_costs_one_warning_and_nothing_of_the_run(tmp_path, small_config, monkeypatch):
    def gone(*_):
        raise ConnectionError("no route")

    monkeypatch.setattr("dflash.runs.trackers.TensorBoard.log", gone)
    run, lines = create_run(tmp_path, "tracked", small_config("telemetry.trackers=[tensorboard]")), []
    assert drive_run(run, lines.append).state == "finished"
    said = [line for line in lines if "tensorboard" in line]
    assert said == ["warning: telemetry.trackers: tensorboard failed and is left off: ConnectionError: no route"]
    assert set(recount(run).values()) == {1}


def test_stage_seconds_and_waits_sum_to_wall_time(tmp_path, small_config):
    run = create_run(tmp_path, "times", small_config("telemetry.trackers=[tensorboard]"))
    drive_run(run, lambda line: None)
    assert list((run.path / "tensorboard").glob("*tfevents*"))
    samples = read_events(run.events, "sample")
    first, last = samples[0], samples[-1]
    for before, after in zip(first["workers"], last["workers"], strict=True):
        spent = sum(after[f"{state}_seconds"] - before[f"{state}_seconds"] for state in STATES)
        assert spent == pytest.approx(last["clock_seconds"] - first["clock_seconds"], rel=0.01, abs=1e-3)


@pytest.mark.parametrize(("policy", "loss"), [("oldest", "cross_entropy"), ("random", "{kl: 0.5, acceptance: 0.5}")])
def test_a_run_stopped_at_any_step_and_resumed_ends_with_the_same_bits(tmp_path, small_config, policy, loss):
    config = small_config(
        "optim.epochs=2", f"pool.policy={policy}", f"drafter.loss={loss}", "drafter.noise=0.1", "pipeline.targets=2"
    )
    whole = create_run(tmp_path, "whole", config)
    total = drive_run(whole, lambda line: None).step
    for stop_at in (1, total // 2, total - 1):
        run = create_run(tmp_path, f"stopped-{stop_at}", config)
        stop_after(run, stop_at)
        outcome = drive_run(run, lambda line: None)
        assert outcome.state == "finished"
        assert set(recount(run).values()) == {1}
        expected, found = weights(whole), weights(run)
        assert expected.keys() == found.keys()
        for name in expected:
            assert np.array_equal(expected[name], found[name]), name


@pytest.mark.parametrize("loss", ["dpace", "kl", "total_variation", "acceptance", "{cross_entropy: 0.1, total_variation: 0.9}"])
def test_a_run_on_each_objective_learns_and_tells_cross_entropy_beside_it(tmp_path, small_config, loss):
    run = create_run(tmp_path, "run", small_config(f"drafter.loss={loss}", "optim.max_steps=4", "evaluation.every=4"))
    assert drive_run(run, lambda line: None).state == "finished"
    steps, (*_, last) = read_events(run.events, "step"), read_events(run.events, "evaluation")
    assert [step["skipped"] for step in steps] == [False] * 4
    assert steps[-1]["loss"] < steps[0]["loss"]
    for told in (*steps, last):
        assert told["cross_entropy"] > 0
        assert told["cross_entropy"] != told["loss"]


@pytest.mark.parametrize("accumulate", [3, 4, 7])
def test_a_run_goes_on_with_fewer_workers_and_another_window(tmp_path, small_config, accumulate):
    run = create_run(tmp_path, "run", small_config("optim.epochs=2", "pipeline.targets=5", "pipeline.drafters=3"))
    stop_after(run, 3)
    change_config(run, ["pipeline.targets=2", "pipeline.drafters=1", f"optim.accumulate={accumulate}"])
    assert drive_run(run, lambda line: None).state == "finished"
    counts = recount(run)
    assert set(counts.values()) == {1}
    assert len(counts) == 2 * 52
    assert [(event["targets"], event["drafters"]) for event in read_events(run.events, "run_started")] == [(5, 3), (2, 1)]


def stop_after(run, step):
    """Drive the run until this step, then stop it the way Ctrl-C does."""
    pid = os.getpid()

    def watch():
        while not any(event["step"] >= step for event in read_events(run.events, "step")):
            time.sleep(0.005)
        os.kill(pid, signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    outcome = drive_run(run, lambda line: None)
    thread.join()
    assert outcome.state in ("stopped", "finished")


def test_settings_that_checkpoints_depend_on_can_not_be_changed(tmp_path, small_config):
    run = create_run(tmp_path, "run", small_config("optim.max_steps=2"))
    drive_run(run, lambda line: None)
    for change, named in (("drafter.layers=2", "drafter"), ("data.holdout=9", "data.holdout"), ("optim.seed=1", "optim.seed")):
        other = RunFolder(tmp_path / "other")
        shutil.copytree(run.path, other.path)
        change_config(other, [change])
        with pytest.raises(RefusedInput, match=f"belongs to another setting.*{named}"):
            drive_run(other, lambda line: None)
        shutil.rmtree(other.path)


def test_steps_that_are_not_finite_are_skipped_and_three_stop_the_run(tmp_path, small_config, monkeypatch):
    real = trainer.DrafterTrainer.accumulate

    def poisoned(self, rows, features, **options):
        return real(self, rows, features * math.nan if self.steps >= 2 else features, **options)

    monkeypatch.setattr(trainer.DrafterTrainer, "accumulate", poisoned)
    run = create_run(tmp_path, "nan", small_config("optim.epochs=3"))
    with pytest.raises(RunFailed, match=r"step 5: loss or gradient not finite 3 times in a row"):
        drive_run(run, lambda line: None)
    assert run.state() == "failed"
    assert [step["skipped"] for step in read_events(run.events, "step")] == [False, False, True, True, True]
    assert all(np.isfinite(values).all() for values in weights(run).values())


def test_a_full_disk_while_a_checkpoint_is_written_keeps_the_one_before(tmp_path, small_config, monkeypatch):
    run = create_run(tmp_path, "full", small_config())
    real = trainer.DrafterTrainer.save

    def save(self, folder):
        if self.steps > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, folder)

    monkeypatch.setattr(trainer.DrafterTrainer, "save", save)
    with pytest.raises(RunFailed, match=r"No space left on device"):
        drive_run(run, lambda line: None)
    assert [path.name for path in run.checkpoints.glob("step-*")] == ["step-00000002"]
    monkeypatch.undo()
    assert drive_run(run, lambda line: None).state == "finished"
    assert set(recount(run).values()) == {1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["target.path=qwen3_5-tinny"], "qwen3_5-tiny"),
        (["data.path=nowhere"], "nowhere"),
        (["data.holdout=60"], "leaves nothing of 60 samples"),
        (["batching.token_budget=20"], "batching.token_budget=20"),
        (["batching.boundaries=[0, 10]"], "they end below"),
        (["drafter.target_layer_ids=[0, 99]"], "target has layers"),
        (["pipeline.device=cuda"], "pipeline.device"),
        (["pipeline.engine=simulated"], "use inline or ray"),
        (["pool.capacity_bytes=100"], "or lower batching.token_budget"),
        (["drafter.mask_token_id=999999"], "mask"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_with_its_key(tmp_path, small_config, settings, message):
    run = create_run(tmp_path, "bad", small_config(*settings))
    with pytest.raises(RefusedInput, match=message):
        drive_run(run, lambda line: None)
    assert run.state() == "failed"
    assert json.loads((run.path / "exit.json").read_text())["reason"]
