"""A chart on a real page shows the newest figure, whenever it came."""

import pytest

from tests.browser.lab import cell_errors, open_notebook, points, run_all, run_cell, wait_for_points, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

FIRST = """from dflash.charts.style import Axis, empty_figure, new_figure
from workbench.chart import Chart

def line(count):
    return new_figure(Axis("step"), Axis("loss")).add_scatter(x=list(range(count)), y=list(range(count)))

first = Chart(line(3), name="first")
first"""
SECOND = """second = Chart(empty_figure("waiting"), name="second")
second"""
SLOW = """async () => {
    const plotly = await globalThis.__dflash_plotly__;
    const react = plotly.react;
    plotly.react = async (...given) => { await new Promise(done => setTimeout(done, 3000)); return react.call(plotly, ...given) };
    globalThis.atOnce = () => { plotly.react = react };
}"""


@pytest.fixture
def page(lab):
    """A page with the first chart drawn."""
    page, address, root = lab
    write_notebook(root / "charts.ipynb", [FIRST])
    open_notebook(page, address, "charts.ipynb")
    run_all(page)
    wait_for_points(page, "first", 3)
    return page


def test_a_figure_that_comes_while_the_first_is_drawn_is_not_missed(page):
    page.evaluate(SLOW)
    run_cell(page, SECOND)
    page.wait_for_selector(".dflash-chart[data-name=second]")
    run_cell(page, "second.show(line(5)); second.show(line(7))")
    page.wait_for_timeout(1_000)
    assert points(page, "second") == 0
    page.evaluate("() => globalThis.atOnce()")
    assert wait_for_points(page, "second", 7, seconds=30) == 7
    assert cell_errors(page) == []


def test_a_figure_that_can_not_be_drawn_does_not_stop_the_ones_after_it(page):
    page.evaluate("""async () => {
        const plotly = await globalThis.__dflash_plotly__, react = plotly.react;
        plotly.react = async () => { plotly.react = react; throw new Error("no such trace") };
    }""")
    run_cell(page, "first.show(line(4))")
    page.wait_for_timeout(1_000)
    run_cell(page, "first.show(line(6))")
    assert wait_for_points(page, "first", 6, seconds=30) == 6
