"""Live charts without a page: one thread draws what came, and nothing when nothing came."""

import os
import shutil
import signal

import numpy as np
import pytest

from dflash.errors import RefusedInput
from tests.workbench.conftest import eventually
from workbench import LiveCharts
from workbench.chart import Chart, as_message


def points(view, chart="loss"):
    return len(view.figures[chart].data[0].x) if view.figures and view.figures[chart].data else 0


def test_a_finished_run_is_drawn_at_once_and_then_left_alone(finished_run, closing):
    view = closing(LiveCharts(finished_run, refresh_seconds=0.5))
    assert points(view) == 55
    assert "step 55 of 55" in view.status.value
    drawn = view.figures["loss"]
    view.catch_up()
    assert view.figures["loss"] is drawn
    assert view._ticker.seconds > 1.0


def test_a_run_that_goes_on_gains_points_and_survives_sigkill(paced_run, closing):
    folder, process = paced_run
    view = closing(LiveCharts(folder, axis="time", refresh_seconds=0.5))
    assert eventually(lambda: points(view) >= 2)
    early = points(view)
    assert eventually(lambda: points(view) > early)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert eventually(lambda: "crashed" in view.status.value)
    assert view.message.value == ""


def test_zoom_and_axis_redraw_every_chart_along_the_run(finished_run, closing):
    view = closing(LiveCharts(finished_run, axis="step"))
    view.charts["loss"]._hear(None, {"kind": "relayout", "changes": {"xaxis.range[0]": 10, "xaxis.range[1]": 20}}, [])
    assert eventually(lambda: view.figures["queues"].layout.xaxis.range == (10, 20))
    view.charts["queues"]._hear(None, {"kind": "relayout", "changes": {"xaxis.autorange": True}}, [])
    assert eventually(lambda: view.figures["loss"].layout.xaxis.range is None)


def test_hold_stops_redrawing(paced_run, closing):
    folder, _ = paced_run
    view = closing(LiveCharts(folder, refresh_seconds=0.5))
    assert eventually(lambda: points(view) >= 1)
    view.pause_button.value = True
    view.catch_up()
    held = points(view)
    eventually(lambda: False, seconds=1.5)
    assert points(view) == held


def test_an_error_appears_in_the_view_and_goes_on_trying(finished_run, tmp_path, closing, monkeypatch):
    view = closing(LiveCharts(finished_run, refresh_seconds=0.5))
    monkeypatch.setattr(view.series[0], "update", lambda: (_ for _ in ()).throw(OSError("disk gone")))
    view._ticker.wake()
    assert eventually(lambda: "disk gone" in view.message.value)
    assert view._ticker.alive


def test_a_folder_that_disappears_does_no_harm(finished_run, tmp_path, closing):
    folder = shutil.copytree(finished_run, tmp_path / "gone")
    view = closing(LiveCharts(folder, refresh_seconds=0.5))
    shutil.rmtree(folder)
    view.catch_up()
    assert points(view) == 55
    assert view._ticker.alive


def test_closing_ends_the_thread_also_while_it_draws(finished_run):
    view = LiveCharts(finished_run, refresh_seconds=0.5)
    view._ticker.wake()
    view.close()
    assert not view._ticker.alive


def test_an_unknown_chart_or_run_is_refused_by_name(finished_run):
    with pytest.raises(TypeError, match="lose"):
        LiveCharts(finished_run, charts=["lose"])
    with pytest.raises(RefusedInput, match="no run there"):
        LiveCharts(finished_run.parent / "nothing")


def test_a_chart_sends_its_figure_without_the_template_and_plotly_once():
    import plotly.graph_objects as go

    first, second = (Chart(go.Figure().add_scatter(x=np.arange(1500.0), y=np.arange(1500.0))) for _ in range(2))
    assert first.library is second.library
    assert "template" not in first.figure["layout"]
    assert first.library.code.count("plotly.js") >= 1
    assert len(str(as_message(go.Figure().add_scatter(x=np.arange(1500.0), y=np.arange(1500.0))))) < 40_000
