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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_run_trains_a_drafter_and_draws_it(tmp_path):
    notebook = execute("00_first_run.ipynb", tmp_path)
    [run] = list_runs(tmp_path / "runs")
    assert run.state() == "finished"
    assert "'finished'" in texts(notebook)
    assert "acceptance_length" in texts(notebook)
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    charts = {model["state"]["name"]: model["state"]["figure"] for model in state.values() if "figure" in model["state"]}
    assert set(charts) == {"loss", "throughput", "pool_now", "pool_over_time"}
    assert charts["loss"]["data"][0]["name"] == "each step"
