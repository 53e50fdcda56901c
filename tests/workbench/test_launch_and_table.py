"""The launcher, the table, the lab and the app."""

import pytest

import workbench
from dflash.config import load_config
from dflash.runs.folder import RunFolder
from tests.workbench.conftest import eventually
from tests.workbench.simulated_run import configure, simulate_run
from workbench import BatchingLab, RunLauncher, RunTable


def test_every_setting_has_a_field_and_a_bad_value_is_told_at_it(closing, tmp_path):
    launcher = closing(RunLauncher(configure(), runs=tmp_path))
    assert launcher.fields["optim.lr"].value == "0.0006"
    launcher.fields["optim.lr"].value = "3e-4"
    launcher.fields["batching.boundaries"].value = "[0, 100, 50]"
    assert "not ascending" in launcher._marks["batching.boundaries"].value
    launcher.go.click()
    assert "mend these first" in launcher.message.value
    launcher.fields["batching.boundaries"].value = "[0, 50, 100]"
    assert launcher.config.optim.lr == 3e-4
    assert launcher.config.batching.boundaries == [0, 50, 100]


def test_the_command_line_starts_the_same_run(closing, tmp_path):
    from dflash.config import build_config, dump_config

    (tmp_path / "run.yaml").write_text(dump_config(configure()))
    launcher = closing(RunLauncher(tmp_path / "run.yaml", runs=tmp_path / "runs"))
    launcher.set("pool.policy", "random")
    launcher.set("drafter.target_layer_ids", [1, 2, 3])
    import shlex

    parts = shlex.split(launcher.command_line())
    sets = [parts[index + 1] for index, part in enumerate(parts) if part == "--set"]
    assert build_config(load_config(tmp_path / "run.yaml").model_dump(mode="json"), sets) == launcher.config


def test_the_examination_stands_before_the_start(closing, tmp_path):
    config = configure("pipeline.engine=inline")
    launcher = closing(RunLauncher(config, runs=tmp_path))
    launcher.check.click()
    launcher.worker.wait(30)
    assert "dflash-error" in launcher.found.value  # no such data, no such target
    launcher.go.click()
    launcher.worker.wait(30)
    assert "can&#x27;t work here" in launcher.message.value
    assert launcher.run is None
    assert not launcher.go.disabled


def test_runs_are_listed_sorted_filtered_picked_and_noted(tmp_path, closing):
    for name, policy in (("a", "oldest"), ("b", "random")):
        simulate_run(tmp_path / name, f"pool.policy={policy}", samples=1_000)
    picked = []
    table = closing(RunTable(tmp_path, on_pick=picked.extend))
    table.sort.value, table.down.value = "run", False
    assert table.table.value.index(">a<") < table.table.value.index(">b<")
    table.words.value = "random"
    assert list(table.pick.options) == ["b"]
    table.pick.value = ["b"]
    table.compare.click()
    assert [run.name for run in picked] == ["b"]
    table.note.value = "<i>slow</i>"
    table.keep.click()
    assert "&lt;i&gt;slow" in table.table.value


def test_an_empty_folder_says_so(tmp_path, closing):
    assert "no runs in" in closing(RunTable(tmp_path / "nothing")).table.value


@pytest.fixture
def lengths_file(tmp_path):
    (tmp_path / "lengths.txt").write_text("\n".join(str(20 + 37 * n % 480) for n in range(2_000)))
    return tmp_path / "lengths.txt"


def test_the_lab_compares_shows_and_simulates(lengths_file, closing):
    config = workbench.batching_lab.record_config()
    config = config.model_copy(update={"batching": config.batching.model_copy(update={"token_budget": 4096, "window": 8})})
    plans = {"sorted": {"strategy": "sorted", "order": "random"}, "mixed": {"strategy": "jittered", "order": "stratified"}}
    lab = closing(BatchingLab(lengths_file, config=config, plans=plans))
    assert lab.worker.wait(60)
    assert [row.plan for row in lab.rows] == ["sorted", "mixed"]
    assert set(lab.pools) == {"oldest", "random", "longest_queue", "round_robin", "deficit"}
    lab.plan.value = "sorted"
    assert "sorted" in lab.strip.figure["layout"]["title"]["text"]
    assert lab.worker.wait(60)
    lab.ask.click()
    assert lab.worker.wait(120)
    assert "ways tried" in lab.advice.value
    assert lab.message.value == ""


def test_the_app_shows_all_and_attaches(lengths_file, finished_run, closing):
    app = closing(workbench.app(data=lengths_file, config=configure(), runs=finished_run.parent))
    assert app.places["lengths"].children
    assert len(app.places["run"].children) == 2
    app.compare([RunFolder(finished_run)])
    assert app.tabs.selected_index == 3
    assert eventually(lambda: app._views["charts"].figures)


def test_an_unknown_keyword_says_what_there_is():
    with pytest.raises(TypeError, match="data, config and runs"):
        workbench.app(dta="x")
