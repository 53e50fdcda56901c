"""Differences of configs and notes."""

from dflash.runs.compare import config_differences, read_note, write_note
from dflash.runs.folder import RunFolder
from tests.workbench.simulated_run import simulate_run


def test_only_what_differs_is_told(tmp_path):
    runs = [
        RunFolder(simulate_run(tmp_path / name, *settings, samples=300))
        for name, settings in (("a", ()), ("b", ("optim.lr=1e-3", "pool.policy=random")))
    ]
    assert config_differences(runs) == {"a": "optim.lr=0.0006, pool.policy=oldest", "b": "optim.lr=0.001, pool.policy=random"}
    assert config_differences(runs[:1]) == {"a": ""}


def test_a_run_without_a_readable_config_differs_in_nothing(tmp_path):
    run = RunFolder(simulate_run(tmp_path / "a", samples=300))
    (run.path / "config.yaml").write_text("optim: {unknown: 3}")
    assert config_differences([run]) == {"a": ""}


def test_a_note_is_kept_with_the_run(tmp_path):
    run = RunFolder(simulate_run(tmp_path / "a", samples=300))
    assert read_note(run) == ""
    write_note(run, "warm-up was too short\n")
    assert read_note(run) == "warm-up was too short"
