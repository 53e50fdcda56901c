"""Live trackers: the real TensorBoard, and stand-ins that take just the calls trackio's and wandb's documentation promises."""

import math
import sys
from pathlib import Path

import pytest

from dflash.errors import RefusedInput
from dflash.importing.spool import Spool
from dflash.importing.tensorboard import read
from dflash.runs.folder import RunFolder
from dflash.runs.trackers import LiveTrackers

EVENTS = [
    {"event": "run_started", "step": 0},
    {
        "event": "step",
        "step": 1,
        "loss": 3.0,
        "lr": 1e-4,
        "skipped": False,
        "class_tokens": [1, 2],
        "grad_norm": math.nan,
        "reason": None,
    },
    {"event": "batch", "batch": "0.0.1", "loss": 9.0},
    {"event": "step", "step": 2, "loss": 2.5, "lr": 1e-4},
    {"event": "evaluation", "step": 2, "loss": 2.25, "acceptance_length": 1.5},
]
LOGGED = [
    (1, {"step/loss": 3.0, "step/lr": 1e-4}),
    (2, {"step/loss": 2.5, "step/lr": 1e-4}),
    (2, {"evaluation/loss": 2.25, "evaluation/acceptance_length": 1.5}),
]
TRACKIO = """
calls = []

class Run:
    def log(self, metrics, step=None):
        assert isinstance(metrics, dict) and all(isinstance(key, str) for key in metrics)
        calls.append((step, metrics))

    def finish(self):
        calls.append("finish")

def init(project, name=None, group=None, space_id=None, dataset_id=None, config=None, resume="never", settings=None, private=None):
    assert resume in ("must", "allow", "never")
    calls.append((project, name, resume))
    return Run()
"""
WANDB = """
calls = []

class Run:
    def __init__(self):
        self.newest = 0

    def log(self, data, step=None, commit=None):
        assert step >= self.newest  # lower ones are ignored with a warning
        self.newest = step
        calls.append((step, data))

    def finish(self, exit_code=None, quiet=None):
        calls.append("finish")

def init(entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None, config=None, group=None, job_type=None,
         mode=None, reinit=None, resume=None, settings=None):
    calls.append((project, name, group, dir))
    return Run()
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """`stand_in(name, source)`: a package of that name; gives the module's calls, once it was imported."""

    def make(name, source):
        package = tmp_path / "packages" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(source)
        monkeypatch.syspath_prepend(str(package.parent))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return lambda: sys.modules[name].calls

    yield make
    for name in ("trackio", "wandb"):
        sys.modules.pop(name, None)


def log_all(names, run):
    warnings = []
    with LiveTrackers(names, run, warnings.append) as trackers:
        for event in EVENTS:
            trackers.record(event)
    return warnings


def test_tensorboard_holds_the_finite_scalars_of_steps_and_evaluations(run):
    assert log_all(["tensorboard"], run) == []
    with Spool() as spool:
        files = sorted((run.path / "tensorboard").glob("*tfevents*"))
        read(files, ["loss=step/loss", "lr=step/lr", "accuracy=evaluation/loss"], spool)
        (frame,) = spool
    assert frame.select("step", "loss", "accuracy").rows() == [(1, 3.0, None), (2, 2.5, 2.25)]


def test_trackio_gets_the_run_by_its_name_and_goes_on_with_it_when_resumed(run, stand_in):
    calls = stand_in("trackio", TRACKIO)
    assert log_all(["trackio"], run) == []
    assert calls() == [("dflash", "run", "allow"), *LOGGED, "finish"]


def test_wandb_gets_a_run_a_session_in_a_group_and_keeps_its_files_in_the_runs_folder(run, stand_in):
    calls = stand_in("wandb", WANDB)
    assert log_all(["wandb"], run) == []
    assert calls() == [("dflash", "run", "run", str(run.path)), *LOGGED, "finish"]


@pytest.mark.parametrize("broken", ["init", "log", "finish"])
def test_a_tracker_that_raises_is_left_off_with_one_warning_and_the_others_go_on(run, stand_in, broken):
    fail = "\n\ndef fail(*_, **__):\n    raise ConnectionError('no route')\n\n"
    source = WANDB + fail + ("init = fail" if broken == "init" else f"Run.{broken} = fail")
    stand_in("wandb", source)
    calls = stand_in("trackio", TRACKIO)
    assert log_all(["wandb", "trackio"], run) == ["telemetry.trackers: wandb failed and is left off: ConnectionError: no route"]
    assert calls()[1:-1] == LOGGED


def test_a_package_that_can_not_be_imported_is_left_off_as_well(run, stand_in):
    stand_in("wandb", "import a_module_that_is_not_there")
    assert ["ModuleNotFoundError" in warning for warning in log_all(["wandb"], run)] == [True]


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_missing_package_is_refused_with_what_to_install(run, monkeypatch, name, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(RefusedInput, match=f"pip install {name}"):
        LiveTrackers([name], run, print)


def test_a_folder_that_wandb_left_where_it_ran_is_not_taken_for_the_package(run, monkeypatch, tmp_path):
    (tmp_path / "wandb" / "offline-run").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(path for path in sys.path if not (Path(path) / "wandb").is_dir())])
    with pytest.raises(RefusedInput, match="pip install wandb"):
        LiveTrackers(["wandb"], run, print)


def test_an_unknown_tracker_is_refused_with_those_there_are(run):
    with pytest.raises(RefusedInput, match="tensorboard, trackio, wandb"):
        LiveTrackers(["mlflow"], run, print)
