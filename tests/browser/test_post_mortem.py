"""A post-mortem read on a real page: a run is chosen, its cause is named, charts are drawn, notes are typed and kept, the report is written."""

import pytest

from benchmarks.injected_faults import FAULTS, Machine, simulate_run
from dflash.report.postmortem import NOTES_FILE
from tests.browser.lab import cell_errors, open_notebook, points, run_all, wait_for_points, write_notebook
from tests.workbench.conftest import eventually

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

CELL = """from workbench import PostMortem
view = PostMortem(runs="runs")
view"""


def test_a_slow_run_is_explained_and_annotated(lab):
    page, address, root = lab
    simulate_run(root / "runs", "healthy", Machine(), seed=1)
    simulate_run(root / "runs", "slowed", Machine(), seed=3, batches=1_280, live={20: FAULTS["drafter speed"](Machine())})
    write_notebook(root / "explain.ipynb", [CELL])
    open_notebook(page, address, "explain.ipynb")
    run_all(page)
    page.get_by_role("button", name="investigate", exact=True).wait_for()
    choose(page, 0, "slowed")
    page.get_by_role("button", name="investigate", exact=True).click()
    page.get_by_role("heading", name="because of a slower drafter").wait_for()
    assert wait_for_points(page, "chart-1", 20) >= 20
    assert points(page, "chart-3") > 0
    assert "healthy" in page.locator(".dflash select").nth(1).text_content()

    notes = page.locator(".dflash textarea")
    notes.fill("seen on a page\n\n<b>not bold</b>")
    page.get_by_role("button", name="write report", exact=True).click()
    assert cell_errors(page) == []
    report = root / "runs" / "slowed" / "report.html"
    assert eventually(report.is_file, 60)
    assert (root / "runs" / "slowed" / NOTES_FILE).read_text() == "seen on a page\n\n<b>not bold</b>\n"

    page.goto(report.as_uri())
    assert page.get_by_text("seen on a page").is_visible()
    assert page.get_by_text("<b>not bold</b>").is_visible()
    page.wait_for_function("() => [...document.querySelectorAll('[data-chart]')].every(e => e.querySelector('.main-svg'))")
    assert not page.errors


def choose(page, which, name):
    """Choose an entry of the view's drop-downs by name."""
    page.locator(".dflash select").nth(which).select_option(label=name)
