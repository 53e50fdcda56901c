"""Ray's own daemons killed under a run: it ends at once, says what died, goes on after a resume, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from dflash.pipeline.engines.ray_processes import RayProcesses, done_within
from dflash.pipeline.jobs import EngineDied
from dflash.pipeline.train import drive_run
from dflash.runs.folder import change_config, create_run, read_json
from dflash.runs.launch import wait_until_ended
from dflash.telemetry.reader import read_events
from tests.pipeline.leftovers import assert_nothing_left, session_of
from tests.pipeline.test_ray import SETTINGS, assert_whole, wait_for_step_after

DAEMONS = ["raylet", "gcs_server"]
LONG = (*SETTINGS, "pipeline.targets=1", "pipeline.drafters=1", "optim.epochs=400")


def daemon_of(process, name):
    return next(child for child in process.children() if child.name() == name)


def resume_to_the_end(run, epochs, *settings):
    change_config(run, [f"optim.epochs={epochs}"])
    subprocess.run(
        [sys.executable, "-m", "dflash", "resume", str(run.path), *settings], check=True, stdout=subprocess.DEVNULL, timeout=500
    )
    assert run.state() == "finished"


def test_a_dead_daemon_is_named_and_only_what_ray_started_is_ended():
    mine = subprocess.Popen(["sleep", "60"])
    daemon = subprocess.Popen(["sleep", "60"])
    try:
        processes = RayProcesses({"raylet": psutil.Process(daemon.pid)}, {psutil.Process(daemon.pid)})
        assert processes.fault() is None
        daemon.kill()  # and not waited for: a zombie is dead
        while psutil.Process(daemon.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert f"Ray's raylet (process {daemon.pid}) died" in processes.fault()
        processes.end()
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()
        daemon.wait()


def test_a_process_that_took_over_a_pid_is_left_alone(monkeypatch):
    other = subprocess.Popen(["sleep", "60"])
    try:
        noted = psutil.Process(other.pid)
        monkeypatch.setattr(noted, "_ident", (other.pid, -1.0))  # as if another process had that pid when it was noted
        processes = RayProcesses({"raylet": noted}, {noted})
        assert processes.fault() is not None
        processes.end()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_an_act_that_hangs_is_left_and_one_that_fails_is_told():
    hangs = threading.Event()
    assert done_within(0.01, hangs.wait) is False
    hangs.set()
    assert done_within(30, lambda: None) is True
    with pytest.raises(ZeroDivisionError):
        done_within(30, lambda: 1 / 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_background_run_whose_ray_dies_says_so_and_is_resumed(tmp_path, small_config, daemon):
    run = create_run(tmp_path, "run", small_config(*LONG))
    # Started by a process that ends, as from a terminal: Ray's library ends a driver without a parent as soon as it calls a dead raylet.
    subprocess.run([sys.executable, "-m", "dflash", "resume", str(run.path), "--background"], check=True, stdout=subprocess.DEVNULL)
    coordinator = psutil.Process(read_json(run.path / "process.json")["pid"])
    wait_for_step_after(run, 1)
    session = session_of(coordinator)
    daemon_of(coordinator, daemon).kill()
    assert wait_until_ended(run, 60) == "crashed"
    reason = run.exit_record()["reason"]
    assert f"Ray's {daemon}" in reason
    assert f"dflash resume {run.path}" in reason
    assert read_events(run.events, "run_ended")[-1]["state"] == "crashed"
    printed = run.output_log.read_text()
    assert f"dflash: {reason}" in printed
    assert "Traceback" not in printed
    assert "(raylet)" not in printed
    assert_nothing_left(session)
    done = max(event["epoch"] for event in read_events(run.events, "step"))
    resume_to_the_end(run, done + 1)
    assert_whole(run, done + 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_that_lives_on_can_drive_the_run_again(tmp_path, small_config):
    """A notebook's kernel, say. The raylet's death is noticed at once and is the easier of the two."""
    daemon = "gcs_server"
    run, sessions = create_run(tmp_path, "run", small_config(*LONG)), []

    def hit():
        while not run.is_driven():
            time.sleep(0.05)
        wait_for_step_after(run, 1)
        sessions.append(session_of(psutil.Process()))
        os.kill(daemon_of(psutil.Process(), daemon).pid, signal.SIGKILL)

    thread = threading.Thread(target=hit)
    thread.start()
    with pytest.raises(EngineDied, match=f"Ray's {daemon}"):
        drive_run(run, lambda line: None)
    thread.join()
    assert run.state() == "crashed"
    assert_nothing_left(sessions[0])
    done = max(event["epoch"] for event in read_events(run.events, "step"))
    change_config(run, [f"optim.epochs={done + 1}"])
    assert drive_run(run, lambda line: None).state == "finished"
    assert_whole(run, done + 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_raylet_that_hangs_ends_the_run_with_a_reason(tmp_path, small_config):
    run = create_run(tmp_path, "run", small_config(*LONG))
    program = (
        "import sys; from pathlib import Path\n"
        "from dflash.pipeline.engines import ray; from dflash.pipeline.train import drive_run; from dflash.runs.folder import RunFolder\n"
        "ray.HANG_SECONDS, ray.HEALTH_SECONDS, ray.CLOSE_SECONDS = 4.0, 1.0, 8.0\n"
        "drive_run(RunFolder(Path(sys.argv[1])))\n"
    )
    with run.output_log.open("wb") as log:
        driver = subprocess.Popen([sys.executable, "-c", program, str(run.path)], stdout=log, stderr=log)
    while not run.is_driven():
        assert driver.poll() is None
        time.sleep(0.05)
    wait_for_step_after(run, 1)
    coordinator = psutil.Process(driver.pid)
    session = session_of(coordinator)
    daemon_of(coordinator, "raylet").suspend()
    assert driver.wait(timeout=240) == 1
    assert run.state() == "crashed"
    assert "Ray's daemons hang" in run.reason()
    assert_nothing_left(session)
