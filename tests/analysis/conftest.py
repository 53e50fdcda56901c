"""Runs with events, for the analyses: simulated ones with a known fault, and ones written event by event."""

import pytest

from benchmarks.injected_faults import FAULTS, Machine, simulate_run
from dflash.runs.folder import RunFolder
from dflash.telemetry.recorder import Recorder


@pytest.fixture(scope="session")
def simulated(tmp_path_factory):
    """`simulated("padding", seed=2)`: the folder of a run with these faults (none: healthy), made once."""
    made = {}
    folder = tmp_path_factory.mktemp("simulated")

    def make(*faults, seed=1, **options):
        key = (*faults, seed, *sorted(map(str, options)))
        if key not in made:
            machine = Machine()
            for fault in faults:
                machine = FAULTS[fault](machine)
            made[key] = simulate_run(folder, f"run-{len(made)}", machine, seed=seed, **options)
        return made[key]

    return make


@pytest.fixture
def written(tmp_path):
    """`written([("step", {...}), ...])`: a run's folder with these events, a second apart unless they say their time."""

    def make(events, name="run"):
        with Recorder(tmp_path / name / "events", "coordinator") as recorder:
            for at, (event, fields) in enumerate(events):
                recorder.record(event, **{"time": 1_000.0 + at, **fields})
        (tmp_path / name / "config.yaml").write_text("data: {path: a}\ntarget: {path: b}\n")
        return RunFolder(tmp_path / name)

    return make
