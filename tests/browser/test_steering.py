"""A run steered from a real page: charts gain points, a boundary is dragged and applied live, the run confirms it, the kernel is restarted,
the console attached again, and the run stopped."""

import polars as pl
import pytest

from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import read_events
from tests.browser.lab import cell_errors, open_notebook, restart_kernel, run_all, run_cell, wait_for_points, write_notebook
from tests.workbench.conftest import eventually
from tests.workbench.simulated_run import launch_paced, simulated_lengths

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

CHARTS = """from workbench import LengthExplorer, LiveCharts, RunConsole
charts = LiveCharts("runs/live", axis="time", charts=["loss", "throughput", "queues"])
charts"""
EXPLORER = """console = RunConsole("runs/live")
explorer = LengthExplorer("lengths.parquet", boundaries=[0, 800, 1600, 8192])
explorer"""
APPLY = 'console.send("set", key="batching.boundaries", value=explorer.boundaries); console'
AGAIN = """from workbench import RunConsole, LiveCharts
console = RunConsole("runs/live"); charts = LiveCharts("runs/live", charts=["acceptance"])
display(console, charts)"""


def test_a_run_is_watched_changed_left_found_again_and_stopped(lab):
    page, address, root = lab
    write_notebook(root / "steer.ipynb", [CHARTS])
    pl.DataFrame({"length": simulated_lengths(40_000)}).write_parquet(root / "lengths.parquet")
    process = launch_paced(root / "runs" / "live", "telemetry.sample_every=20", "telemetry.log_every=60", samples=40_000, pace=0.01)
    run = RunFolder(root / "runs" / "live")
    try:
        open_notebook(page, address, "steer.ipynb")
        run_all(page)
        early = wait_for_points(page, "throughput", 4)
        assert wait_for_points(page, "throughput", early + 2) > early

        run_cell(page, EXPLORER)
        wait_for_points(page, "lengths", 10)
        moved = drag_line(page, "lengths", 1, 150)
        assert eventually(lambda: boundary_on_page(page, "lengths", 1) != 1600, 30)
        run_cell(page, APPLY)
        answer = eventually(lambda: next((e for e in read_events(run.events, "change")), None), 60)
        assert answer["accepted"]
        assert answer["key"] == "batching.boundaries"
        assert answer["new"][2] == boundary_on_page(page, "lengths", 1)
        assert abs(answer["new"][2] - moved) < 60

        restart_kernel(page)
        assert run.is_driven()
        run_cell(page, AGAIN)
        wait_for_points(page, "acceptance", 2)
        page.get_by_role("button", name="stop", exact=True).last.click()
        page.get_by_role("button", name="yes, stop it").last.click()
        assert eventually(lambda: process.poll() is not None, 60)
        assert run.state() == "stopped"
        assert cell_errors(page) == []
    finally:
        process.kill()
        process.wait()


def drag_line(page, chart, shape, by_pixels):
    """Drag a boundary with the mouse; returns where in tokens it was let go."""
    found = page.evaluate(
        """([name, shape]) => {
            const element = [...document.querySelectorAll('.dflash-chart')].filter(e => e.dataset.name === name).at(-1);
            const plot = element.querySelector('.js-plotly-plot');
            plot.scrollIntoView({block: 'center'});
            const box = plot.getBoundingClientRect(), axis = plot._fullLayout.xaxis, area = plot._fullLayout._size;
            const at = plot.layout.shapes[shape].x0;
            return {
                at,
                x: box.left + area.l + axis.d2p(at),
                y: box.top + area.t + area.h / 2,
                tokensAPixel: (axis.range[1] - axis.range[0]) / area.w,
            };
        }""",
        [chart, shape],
    )
    page.mouse.move(found["x"], found["y"])
    page.mouse.down()
    page.mouse.move(found["x"] + by_pixels / 2, found["y"], steps=4)
    page.mouse.move(found["x"] + by_pixels, found["y"], steps=4)
    page.mouse.up()
    return found["at"] + by_pixels * found["tokensAPixel"]


def boundary_on_page(page, chart, shape):
    return page.evaluate(
        "([name, shape]) => Math.round([...document.querySelectorAll('.dflash-chart')].filter(e => e.dataset.name === name).at(-1)"
        ".querySelector('.js-plotly-plot').layout.shapes[shape].x0)",
        [chart, shape],
    )
