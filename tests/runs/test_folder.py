import json
import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest
from typer.testing import CliRunner

from dflash.cli import app
from dflash.config import build_config
from dflash.errors import RefusedInput
from dflash.runs.folder import change_config, create_run, list_runs, open_run, read_json, write_json
from dflash.runs.hold import FolderGone
from dflash.runs.process import beginning_of, pid_space

runner = CliRunner()
CONFIG = build_config({"data": {"path": "data"}, "target": {"path": "qwen3-tiny"}})


def test_a_new_run_holds_its_config(tmp_path):
    run = create_run(tmp_path, "first", CONFIG)
    assert run.config() == CONFIG
    assert run.state() == "new"
    assert [each.name for each in list_runs(tmp_path)] == ["first"]
    assert open_run("first", tmp_path).path == open_run(tmp_path / "first").path == run.path


def test_a_taken_or_impossible_name_is_refused(tmp_path):
    create_run(tmp_path, "first", CONFIG)
    with pytest.raises(RefusedInput, match=r"is there already.*dflash resume"):
        create_run(tmp_path, "first", CONFIG)
    for name in ("../up", "a/b", "", ".hidden", "x" * 101, "a b"):
        if name:
            with pytest.raises(RefusedInput, match="use letters"):
                create_run(tmp_path, name, CONFIG)


def test_a_missing_run_is_refused_with_those_there_are(tmp_path):
    create_run(tmp_path, "first", CONFIG)
    with pytest.raises(RefusedInput, match=r"second: no run there.*runs in .*: first"):
        open_run("second", tmp_path)


def test_states_follow_process_and_exit_record(tmp_path):
    run = create_run(tmp_path, "first", CONFIG)
    with run.driven():
        assert run.state() == "running"
        run.write_exit("stopped", step=3)
        assert run.state() == "stopped"  # although this very process lives on, as a notebook's kernel does
    write_json(run.path / "process.json", {"pid": os.getpid(), "began": "x/1"})  # the pid was taken by another process since
    assert run.state() == "stopped"
    (run.path / "exit.json").unlink()
    assert run.state() == "crashed"
    assert f"ended without a word; `dflash resume {run.path}`" in run.reason()


def test_the_reason_of_an_end_is_told_where_there_is_one(tmp_path):
    run = create_run(tmp_path, "first", CONFIG)
    assert run.reason() is None
    with run.driven():
        assert run.reason() is None
    run.write_exit("finished", step=3)
    assert run.reason() is None
    run.write_exit("crashed", reason="Ray's raylet died")
    assert (run.state(), run.reason()) == ("crashed", "Ray's raylet died")
    run.path.rename(tmp_path / "second")
    assert runner.invoke(app, ["attach", "second", "--runs", str(tmp_path)]).stdout == "second is crashed: Ray's raylet died\n"


def test_a_zombie_does_not_count_as_running(tmp_path):
    run = create_run(tmp_path, "first", CONFIG)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    write_json(run.path / "process.json", {"pid": child.pid, "began": beginning_of(child.pid), "pid_space": pid_space()})
    assert run.state() == "running"
    child.stdin.close()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert run.state() == "crashed"
    child.wait()


@pytest.mark.parametrize("record", [{}, {"pid": "x", "began": "y"}, {"pid": 2**40, "began": "y"}, {"pid": os.getpid()}])
def test_a_process_record_that_names_no_living_process_counts_as_crashed(tmp_path, record):
    run = create_run(tmp_path, "first", CONFIG)
    write_json(run.path / "process.json", record)
    assert run.state() == "crashed"


@pytest.mark.parametrize("hours", [-1, 1, 24 * 365])
def test_a_run_stays_running_when_the_clock_is_set(tmp_path, monkeypatch, hours):
    """Setting the clock moves the time of day at which every process seems to have started."""
    run = create_run(tmp_path, "first", CONFIG)
    with run.driven():
        real_time, real_start = time.time, psutil.Process.create_time
        monkeypatch.setattr(time, "time", lambda: real_time() + hours * 3_600)
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: real_start(process) + hours * 3_600)
        assert run.state() == "running"
        with pytest.raises(RefusedInput, match="is driving this run"), run.driven():
            pass


def test_a_held_folder_is_found_where_it_was_moved_and_missed_when_it_is_gone(tmp_path):
    run = create_run(tmp_path, "first", CONFIG)
    with run.driven() as hold:
        assert hold.find() == run
        for place in ("second", "deeper/third"):
            (tmp_path / place).parent.mkdir(exist_ok=True)
            hold.run.path.rename(tmp_path / place)
            assert hold.find().path == tmp_path / place
        shutil.rmtree(tmp_path / place)
        with pytest.raises(FolderGone, match=r"third: the run's folder was deleted"):
            hold.find()


def test_two_processes_never_drive_one_run(tmp_path):
    run = create_run(tmp_path, "first", CONFIG)
    program = (
        "import sys; from pathlib import Path; from dflash.runs.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).driven():\n    print('driving', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "driving\n"
    assert run.state() == "running"
    with pytest.raises(RefusedInput, match=f"process {child.pid} on {os.uname().nodename} is driving this run"), run.driven():
        pass
    with pytest.raises(RefusedInput, match="it is running"):
        change_config(run, ["optim.lr=1e-3"])
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert run.state() == "crashed"
    with run.driven():
        assert run.state() == "running"


def test_settings_change_between_sessions_or_not_at_all(tmp_path):
    run = create_run(tmp_path, "first", CONFIG)
    change_config(run, ["pool.policy=random"])
    assert run.config().pool.policy == "random"
    with pytest.raises(RefusedInput, match="unknown key"):
        change_config(run, ["pool.polisy=oldest"])
    assert run.config().pool.policy == "random"


def test_json_files_are_whole_or_empty(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    for text in ('{"a": ', "[1]", ""):
        path.write_text(text)
        assert read_json(path) == {}
    path.write_bytes(b"\xff")
    assert read_json(path) == {}
    assert json.loads("{}") == read_json(tmp_path / "absent.json")
