"""Steering a run that goes on: confirmed or refused by the run itself, seen by every console."""

import shutil

import pytest

from tests.workbench.conftest import eventually
from workbench import RunConsole


def test_a_change_is_previewed_applied_confirmed_seen_by_others_and_undone(paced_run, closing):
    folder, _ = paced_run
    console, other = (closing(RunConsole(folder, refresh_seconds=0.5)) for _ in range(2))
    console.key.value = "pool.policy"
    console.value.value = "random"
    assert eventually(lambda: "oldest → random" in console.preview.value and "predicted" in console.preview.value)
    console.apply.click()
    assert eventually(lambda: "confirmed by the run" in console.message.value)
    assert eventually(lambda: [each["new"] for each in other.changes] == ["random"])
    other.undo.click()
    assert eventually(lambda: [each["new"] for each in console.changes] == ["random", "oldest"])


def test_what_cannot_be_is_refused_before_it_is_sent_or_by_the_run(paced_run, closing):
    folder, _ = paced_run
    console = closing(RunConsole(folder, refresh_seconds=0.5))
    console.key.value = "pool.capacity_items"
    console.value.value = "-3"
    console.apply.click()
    assert "greater than or equal to 1" in console.message.value
    assert console.pending == {}
    console.send("set", key="optim.lr", value=1.0)
    assert eventually(lambda: "refused by the run" in console.message.value)


def test_pause_continue_stop(paced_run, closing):
    folder, process = paced_run
    console = closing(RunConsole(folder, refresh_seconds=0.5))
    console.buttons["pause"].click()
    assert eventually(lambda: "paused" in console.state.value)
    assert console.buttons["pause"].disabled
    console.buttons["continue"].click()
    assert eventually(lambda: "running" in console.state.value)
    console.buttons["stop"].click()
    assert console.sure.layout.display == ""  # asks first
    console.sure.click()
    assert eventually(lambda: process.poll() == 0)
    assert eventually(lambda: "stopped" in console.state.value)
    assert not console.buttons["resume"].disabled


def test_a_console_attached_to_a_finished_run_shows_it_and_sends_nothing(finished_run, closing):
    console = closing(RunConsole(finished_run))
    assert "step 55 of 55" in console.state.value
    assert console.progress.value == pytest.approx(1.0)
    console._command("pause")
    assert "nobody would read the command" in console.message.value


def test_a_run_that_can_not_be_resumed_says_which_file_is_to_blame(finished_run, closing, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "blocked")
    (run / "output.log").mkdir()
    console = closing(RunConsole(run))
    console.buttons["resume"].click()
    assert eventually(lambda: f"{run / 'output.log'}: is a directory" in console.message.value)


def test_a_console_on_another_host_steers_a_run_and_says_when_it_fell_silent(paced_run, closing, monkeypatch):
    folder, process = paced_run
    monkeypatch.setattr("dflash.runs.folder.pid_space", lambda: "another-boot/pid:[1]")
    monkeypatch.setattr("dflash.runs.heartbeat.SILENT_SECONDS", 5.0)
    console = closing(RunConsole(folder, refresh_seconds=0.5))
    assert f"process {process.pid} on " in console.state.value
    assert not console.buttons["pause"].disabled
    console.key.value = "pool.policy"
    console.value.value = "random"
    console.apply.click()
    assert eventually(lambda: "confirmed by the run" in console.message.value)
    process.kill()
    assert eventually(lambda: f"crashed: no sign of life of process {process.pid} on " in console.state.value)
    assert console.buttons["pause"].disabled
    assert not console.buttons["resume"].disabled
