"""Runs on the ray engine: several processes, killed and hung in turn. Each must end whole, every sample trained once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import torch

from dflash.pipeline.engines import ray as ray_engine
from dflash.pipeline.engines.actors import from_shared, to_shared
from dflash.pipeline.engines.cluster import store_bytes
from dflash.pipeline.train import drive_run
from dflash.runs.control import await_answer, send_command
from dflash.runs.folder import change_config, create_run
from dflash.runs.launch import drive, wait_until_ended
from dflash.telemetry.reader import read_events
from tests.pipeline.leftovers import assert_nothing_left, session_of
from tests.pipeline.recount import recount

SETTINGS = (
    "pipeline.engine=ray",
    "pipeline.targets=2",
    "pipeline.drafters=2",
    "pool.capacity_bytes=67108864",
    "checkpoint.every=1",
    "optim.epochs=2",
)
SAMPLES = 52


def assert_whole(run, epochs=2):
    counts = recount(run)
    assert set(counts.values()) == {1}
    assert len(counts) == epochs * SAMPLES


def workers_of(process, kind):
    found = []
    for child in process.children(recursive=True):
        try:
            if f"ray::{kind}" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def wait_for_step_after(run, step):
    while not any(event["step"] > step for event in read_events(run.events, "step")):
        assert run.is_driven(), run.output_log.read_text()
        time.sleep(0.05)


def hit_when_trained(run, kind, number, step):
    """Send a signal to a worker of this process's run once a step was taken."""

    def watch():
        while not any(event["step"] >= step for event in read_events(run.events, "step")):
            time.sleep(0.02)
        os.kill(workers_of(psutil.Process(), kind)[0].pid, number)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_tensors_travel_as_bytes_and_come_back_equal():
    for dtype in (torch.bfloat16, torch.float32):
        features = torch.randn(5, 7).to(dtype)
        assert torch.equal(from_shared(to_shared(features)), features)


def test_the_object_store_is_bounded_by_the_machine():
    assert store_bytes(2**20) == 2**20 + 256 * 2**20
    assert store_bytes(2**50) < psutil.virtual_memory().total


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ray_and_inline_take_the_same_steps(tmp_path, small_config):
    losses = {}
    for engine in ("inline", "ray"):
        # One target hands over in plan order, so that the windows are the same; the drafters still share each one out.
        chosen = (*SETTINGS, f"pipeline.engine={engine}", "pipeline.targets=1", "target.feature_dtype=float32")
        run = create_run(tmp_path, engine, small_config(*chosen))
        assert drive_run(run, lambda line: None).state == "finished"
        assert_whole(run)
        losses[engine] = [step["loss"] for step in read_events(run.events, "step")]
    assert np.allclose(losses["ray"], losses["inline"], rtol=2e-3)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "event"), [("TargetWorker", "worker_lost"), ("DrafterWorker", "rolled_back")])
def test_a_killed_worker_loses_no_sample(tmp_path, small_config, kind, event):
    run = create_run(tmp_path, "run", small_config(*SETTINGS))
    sessions = set()
    hit_when_trained(run, kind, signal.SIGKILL, step=3)
    assert drive_run(run, lambda line: sessions.add(session_of(psutil.Process()))).state == "finished"
    assert read_events(run.events, event)
    assert_whole(run)
    assert len(sessions - {None}) == (2 if event == "rolled_back" else 1)
    for session in sessions - {None}:
        assert_nothing_left(session)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hanging_worker_is_found_and_its_work_done_again(tmp_path, small_config, monkeypatch):
    monkeypatch.setattr(ray_engine, "HANG_SECONDS", 4.0)
    monkeypatch.setattr(ray_engine, "HEALTH_SECONDS", 1.0)
    run = create_run(tmp_path, "run", small_config(*SETTINGS))
    hit_when_trained(run, "TargetWorker", signal.SIGSTOP, step=2)
    assert drive_run(run, lambda line: None).state == "finished"
    assert [lost["worker"].startswith("target-") for lost in read_events(run.events, "worker_lost")] == [True]
    assert_whole(run)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_background_run_is_steered_killed_stopped_and_resumed_and_leaves_nothing_behind(tmp_path, small_config):
    run = create_run(tmp_path, "run", small_config(*SETTINGS, "optim.epochs=20"))
    coordinator = psutil.Process(drive(run))
    wait_for_step_after(run, 0)
    killed = session_of(coordinator)
    answer = await_answer(run, send_command(run, "set", key="pool.policy", value="round_robin"), seconds=60)
    assert answer["accepted"]
    coordinator.kill()
    coordinator.wait()
    assert run.state() == "crashed"

    done = read_events(run.events, "step")[-1]["step"]
    change_config(run, ["pipeline.targets=1", "pipeline.drafters=1"])
    coordinator = psutil.Process(drive(run))
    wait_for_step_after(run, done)
    session = session_of(coordinator)
    send_command(run, "stop")
    assert wait_until_ended(run, 60) == "stopped"
    assert_nothing_left(session)

    epochs = read_events(run.events, "step")[-1]["epoch"] + 1
    change_config(run, [f"optim.epochs={epochs}"])
    command = [sys.executable, "-m", "dflash", "resume", str(run.path), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=500)
    assert [json.loads(line)["state"] for line in done.stdout.splitlines()] == ["finished"]
    assert run.config().pool.policy == "round_robin"
    assert_whole(run, epochs)
    assert_nothing_left(killed)  # with nobody to clear up: Ray's processes end with the one that started them, the last in a minute
