"""The first notebook in a real JupyterLab: the run starts, its charts are drawn and gain points while it goes on."""

import shutil
import time

import pytest

from dflash.runs.folder import list_runs
from tests.browser.lab import cell_errors, has_run_all, open_notebook, points, run_all, wait_for_points
from tests.notebooks.execute import NOTEBOOKS

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]


def test_charts_of_the_first_run_gain_points_while_it_trains(lab):
    page, address, root = lab
    shutil.copy(NOTEBOOKS / "00_first_run.ipynb", root)
    open_notebook(page, address, "00_first_run.ipynb")
    run_all(page)
    early = wait_for_points(page, "throughput", 3, seconds=400)
    assert wait_for_points(page, "throughput", early + 1, seconds=120) > early
    deadline = time.monotonic() + 300
    while not has_run_all(page) and time.monotonic() < deadline:
        page.wait_for_timeout(500)
    assert cell_errors(page) == []
    [run] = list_runs(root / "runs")
    assert run.state() == "finished"
    assert points(page, "loss") >= 20
    assert points(page, "pool_now") >= 1
