"""The notebooks are stored clean and short, and run top to bottom."""

import nbformat
import pytest

from dflash.runs.folder import list_runs
from tests.notebooks.execute import NOTEBOOKS, execute, texts

NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_outputs_and_state(name):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert "widgets" not in notebook.metadata
    assert len(cells) <= 10
    assert max(len(cell.source.splitlines()) for cell in cells) <= 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all notebooks, so that the sample data is made once."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_run_trains_a_drafter_and_draws_it(folder):
    notebook = execute("00_first_run.ipynb", folder)
    [run] = list_runs(folder / "runs")
    assert run.state() == "finished"
    assert "'finished'" in texts(notebook)
    assert "acceptance_length" in texts(notebook)
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    charts = {model["state"]["name"]: model["state"]["figure"] for model in state.values() if "figure" in model["state"]}
    assert set(charts) == {"loss", "throughput", "pool_now", "pool_over_time"}
    assert charts["loss"]["data"][0]["name"] == "each step"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lengths_and_batching_are_explored_on_the_sample_data(folder):
    assert "boundaries: [0, 128, 256, 384, 512]" in texts(execute("01_explore_lengths.ipynb", folder))
    assert "jittered, stratified" in texts(execute("02_tune_batching.ipynb", folder))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_live_change_is_confirmed_by_the_run(folder):
    shown = texts(execute("03_train_live.ipynb", folder))
    assert "'accepted': True" in shown
    assert "'finished'" in shown


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_runs_are_compared_and_written_as_a_page(folder):
    execute("04_compare_runs.ipynb", folder)
    assert {"lr-1e-3", "lr-4e-3"} <= {run.name for run in list_runs(folder / "runs")}
    assert (folder / "compare.html").stat().st_size > 1_000_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_change_made_live_is_explained_afterwards(folder):
    shown = texts(execute("05_post_mortem.ipynb", folder))
    assert "'accepted': True" in shown
    report = (folder / "report.html").read_text()
    assert "padding went from" in report
    assert "batching.strategy" in report
