"""A run that is driven on another machine, or in another container, that shares its folder."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from dflash.config import build_config
from dflash.errors import RefusedInput, RunFailed
from dflash.runs import folder, heartbeat, launch
from dflash.runs.attach import follow
from dflash.runs.control import Mailbox, send_command
from dflash.runs.folder import change_config, create_run, read_json
from dflash.runs.hold import LOCK

CONFIG = build_config({"data": {"path": "data"}, "target": {"path": "qwen3-tiny"}})
DRIVER = """
import os, sys, time
from pathlib import Path
from dflash.runs.control import Mailbox
from dflash.runs.folder import RunFolder
run = RunFolder(Path(sys.argv[1]))
with run.driven():
    box = Mailbox(run)
    print("driving", flush=True)
    while not (came := box.poll()):
        time.sleep(0.05)
    run.write_exit("stopped", reason=f"{came[0].action} {came[0].fault}")
"""


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path, "run", CONFIG)


@pytest.fixture
def elsewhere(monkeypatch):
    """From now on this process is on another machine."""
    return lambda: monkeypatch.setattr(folder, "pid_space", lambda: "another-boot/pid:[1]")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "WATCH_SECONDS", 1.0)


def silence(run, seconds=3_700.0):
    then = time.time() - seconds
    os.utime(run.path / LOCK, (then, then))


def test_it_runs_as_long_as_its_heart_beats_and_takes_commands(run, elsewhere, quick):
    with run.driven():
        elsewhere()
        assert run.state() == "running"
        assert run.reason() is None
        send_command(run, "stop")
        assert [command.fault for command in Mailbox(run).poll()] == [None]
        with pytest.raises(RefusedInput, match="it is running"):
            change_config(run, ["optim.lr=1e-3"])
        run.write_exit("stopped")
    assert run.state() == "stopped"


def test_one_that_fell_silent_is_crashed_for_a_reason_that_names_the_process_and_its_host(run, elsewhere, quick):
    with run.driven():
        pass
    elsewhere()
    silence(run)
    assert run.state() == "crashed"
    expected = f"no sign of life of process {os.getpid()} on {os.uname().nodename} for 1h01m; `dflash resume {run.path}` goes on"
    assert run.reason().startswith(expected)
    with pytest.raises(RefusedInput, match=r"is crashed: nobody would read the command; go on with `dflash resume"):
        send_command(run, "stop")
    assert not (run.path / "control").exists()
    (run.path / LOCK).unlink()
    assert run.reason().startswith(f"no sign of life of {run.driver()}; `dflash resume")


def test_one_whose_clock_is_an_hour_behind_is_found_alive_by_watching(run, elsewhere, quick):
    with run.driven():
        elsewhere()
        ended = threading.Event()

        def beat_with_a_clock_behind():
            while not ended.wait(0.02):
                silence(run, 3_600.0)

        clock = threading.Thread(target=beat_with_a_clock_behind)
        clock.start()
        try:
            assert run.is_driven(patient=True)
            assert run.is_driven()
            assert send_command(run, "pause")
        finally:
            ended.set()
            clock.join()


def test_one_that_lives_is_not_driven_a_second_time_although_the_lock_is_not_shared(run, elsewhere, quick, monkeypatch):
    with run.driven():
        elsewhere()
        monkeypatch.setattr(folder.fcntl, "flock", lambda file, how: None)
        said = []
        with pytest.raises(RefusedInput, match=f"process {os.getpid()} on .* is driving this run"), run.driven(said.append):
            pass
        assert said == [f"{run.path}: watching for a sign of life of {run.driver()} for 1 s, before it is taken over"]
        assert run.state() == "running"


def test_one_that_is_dead_is_taken_over_after_watching_and_one_that_ended_at_once(run, elsewhere, quick):
    with run.driven():
        pass
    elsewhere()
    first = read_json(run.path / "process.json")
    said = []
    with run.driven(said.append):
        assert run.state() == "running"
        assert read_json(run.path / "process.json")["session"] != first["session"]
        run.write_exit("stopped")
    assert len(said) == 1
    with run.driven(said.append):
        pass
    assert len(said) == 1


def test_a_folder_that_can_not_be_locked_is_not_driven(run, monkeypatch):
    def no_locks(file, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(folder.fcntl, "flock", no_locks)
    with pytest.raises(RunFailed, match=r"run\.lock: can't be locked \(Operation not supported\)"), run.driven():
        pass


def test_a_second_start_does_not_pass_for_the_first(run, monkeypatch):
    """Two consoles press resume: the second one's process is refused, although a process drives the run."""
    monkeypatch.setattr(launch.sys, "executable", "/bin/false")
    with run.driven(), pytest.raises(RunFailed, match="ended at once with code 1"):
        launch.drive(run)


@pytest.fixture
def other_machine(tmp_path):
    """Words to put before a command, so that it has a boot's id, pids and a host's name of its own, as on another machine."""
    boot = tmp_path / "boot_id"
    boot.write_text("11111111-2222-3333-4444-555555555555\n")
    enter = ["unshare", "-Urmpuf", "--mount-proc", "sh", "-c"]
    script = f'hostname other && mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "$0" "$@"'
    if shutil.which("unshare") is None or subprocess.run([*enter, script, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make namespaces")
    return [*enter, script]


def test_the_command_line_of_another_machine_sees_steers_and_follows_a_run(run, other_machine):
    def there(*words):
        command = [*other_machine, sys.executable, "-m", "dflash", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=run.path.parent, timeout=120)

    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(run.path)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout.readline() == "driving\n"
    run.console_log.write_text("step=1\n")
    listed = there("runs", "--runs", ".", "--json")
    assert [each["state"] for each in json.loads(listed.stdout)["runs"]] == ["running"], listed.stderr
    refused = there("resume", "run", "--runs", ".")
    assert refused.returncode != 0
    assert "is driving this run" in refused.stderr + refused.stdout
    assert driver.poll() is None
    there("control", "run", "stop", "--runs", ".", "--wait", "0")
    driver.communicate(timeout=60)
    followed = there("attach", "run", "--runs", ".")
    assert followed.stdout == "step=1\nrun is stopped: stop None\n"


def test_following_one_that_falls_silent_ends_with_its_state(run, elsewhere, quick, monkeypatch):
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 1.0)
    with run.driven():
        pass
    elsewhere()
    assert follow(run, print, poll_seconds=0.05) == "crashed"
