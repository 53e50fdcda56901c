"""Charts of a run: they show what the events say, keep extremes, follow the view, and say what they wait for."""

import json

import numpy as np
import polars as pl
import pytest

from dflash.charts.downsample import keep_extremes, mean_bins, slice_of
from dflash.charts.loss_range import first_fall
from dflash.charts.regression import draw_loss
from dflash.charts.run import CHARTS, describe_progress, draw_run
from dflash.charts.run_axis import View, view_of
from dflash.charts.run_flow import window_rate
from dflash.errors import RefusedInput
from dflash.telemetry.series import Columns, Mark, RunSeries
from tests.workbench.simulated_run import simulate_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    series = RunSeries(simulate_run(tmp_path_factory.mktemp("runs") / "a", "telemetry.sample_every=20") / "events")
    while series.update():
        pass
    return series


def with_losses(folder, losses):
    steps = [
        {"event": "step", "time": 1e9 + step, "step": step, "tokens": 100, "loss": float(loss)}
        for step, loss in enumerate(losses, 1)
    ]
    (folder / "events").mkdir(exist_ok=True)
    (folder / "events" / "coordinator-1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in steps))
    series = RunSeries(folder / "events")
    while series.update():
        pass
    return series


def trace(figure, name):
    return next(each for each in figure.data if each.name == name)


@pytest.mark.parametrize("points", [4, 50, 1_500])
def test_downsampling_keeps_the_extremes_and_the_ends(points):
    draws = np.random.default_rng(points)
    y = draws.normal(size=20_011)
    y[draws.integers(0, y.size, 500)] = np.nan
    y[7_777], y[12_345] = 40.0, -40.0
    x, kept = keep_extremes(np.arange(y.size, dtype=float), y, points)
    assert len(kept) <= points + 6
    assert kept.max() == 40.0
    assert kept.min() == -40.0
    assert (np.diff(x) > 0).all()
    np.testing.assert_array_equal(kept, y[x.astype(int)])


def test_few_points_are_left_as_they_are():
    x, y = keep_extremes(np.array([1.0, 2.0, 3.0]), np.array([1.0, np.nan, 3.0]), 10)
    assert (x.tolist(), y.tolist()) == ([1.0, 3.0], [1.0, 3.0])


def test_bins_hold_means_and_deviations():
    y = np.random.default_rng(0).normal(size=1_003)
    _, mean, deviation = mean_bins(np.arange(y.size, dtype=float), y, 10)
    edges = np.unique(np.linspace(0, y.size, 11).astype(int))
    for number in range(10):
        part = y[edges[number] : edges[number + 1]]
        assert mean[number] == pytest.approx(part.mean())
        assert deviation[number] == pytest.approx(part.std())


def test_a_slice_takes_one_point_more_on_each_side():
    x = np.arange(10.0)
    assert x[slice_of(x, (2.5, 5.5))].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert x[slice_of(x, None)].size == 10


def test_a_rate_is_the_growth_over_the_window_and_never_crosses_a_restart():
    rows = Columns()
    counter = []
    for second in range(40):
        session = 1 if second < 20 else 2
        rows.append({"elapsed_seconds": float(second), "session": session})
        counter.append(100.0 * second if session == 1 else 50.0 * (second - 20))
    rate = window_rate(rows, np.array(counter), 10.0)
    np.testing.assert_allclose(rate[1:20], 100.0)
    np.testing.assert_allclose(rate[21:], 50.0)
    assert np.isnan(rate[[0, 20]]).all()


def test_committed_rate_is_tokens_of_steps_over_their_time(run):
    figure = CHARTS["throughput"]([run], View(axis="step", window_seconds=200.0))
    drawn = trace(figure, "committed")
    elapsed, tokens = run.steps["elapsed_seconds"], run.steps["committed_tokens"]
    last = len(elapsed) - 1
    since = max(index for index in range(last) if elapsed[index] <= elapsed[last] - 200.0)
    assert drawn.y[-1] == pytest.approx((tokens[last] - tokens[since]) / (elapsed[last] - elapsed[since]) / 1_000)


def test_every_chart_draws_on_every_axis_with_titles_and_units(run):
    for axis in ("time", "step", "tokens"):
        for name, figure in draw_run([run], View(axis=axis)).items():
            assert figure.layout.title.text, name
            if name == "devices":  # a simulated run samples no machine
                assert "no sample yet" in figure.layout.annotations[0].text.replace("<br>", " ")
                continue
            assert figure.layout.xaxis.title.text, name
            assert len(figure.data) > 0, name


def test_the_zoom_of_a_view_is_the_range_of_every_chart_along_the_run(run):
    view = View(axis="step", shown=(10.0, 20.0))
    for name, figure in draw_run([run], view).items():
        if name not in ("pool_now", "workers_now", "devices"):
            assert figure.layout.xaxis.range == (10.0, 20.0), name
    steps = trace(CHARTS["loss"]([run], view), "each step").x
    assert (min(steps), max(steps)) == (9, 20)


def test_a_first_fall_of_the_loss_is_left_out_of_the_range_and_a_spike_is_not(tmp_path):
    random = np.random.default_rng(0)
    losses = np.concatenate([np.geomspace(80.0, 12.0, 12), random.uniform(5.0, 8.0, 488)])
    losses[300] = 60.0
    figure = CHARTS["loss"]([with_losses(tmp_path, losses)], View(axis="step"))
    low, high = figure.layout.yaxis.range
    assert low < losses.min() < 60.0 < high < 70.0
    assert "from 80" in figure.layout.title.text
    assert max(trace(figure, "each step").y) == 80.0  # drawn all the same, for those who zoom out
    later = CHARTS["loss"]([with_losses(tmp_path, losses)], View(axis="step", shown=(20.0, 290.0)))
    assert (later.layout.yaxis.range, later.layout.title.text) == (None, "loss")
    rows = pl.DataFrame({"at": np.arange(500.0), "loss": losses})
    assert draw_loss(rows, []).layout.yaxis.range == (low, high)
    assert draw_loss(rows[20:], []).layout.yaxis.range is None


def test_only_what_comes_before_a_loss_is_near_its_median_is_its_first_fall():
    assert first_fall(np.array([])) == 0
    assert first_fall(np.array([np.nan, np.nan])) == 0
    assert first_fall(np.array([6.0, 90.0, 6.0, 6.0])) == 0  # a spike, and no fall
    assert first_fall(np.array([20.0, 10.0, 6.0, 6.0, 6.0])) == 0  # not high enough to matter
    assert first_fall(np.array([np.nan, 80.0, 20.0, 9.1, 8.9, 6.0, 6.0, 90.0, 6.0, 6.0, 6.0])) == 3


def test_shares_of_time_sum_to_the_whole(run):
    figure = CHARTS["workers"]([run], View(axis="time"))
    for group in ("target", "drafter"):
        total = np.sum([each.y for each in figure.data if each.stackgroup == group], axis=0)
        np.testing.assert_allclose(total, 100.0, atol=0.1)
    bars = CHARTS["workers_now"]([run], View())
    np.testing.assert_allclose(np.sum([each.x for each in bars.data], axis=0), 100.0, atol=0.1)


def test_the_heat_map_is_the_mean_number_of_items(run):
    heat = CHARTS["pool_over_time"]([run], View(axis="time")).data[0]
    whole = np.array([run.samples[f"pool-{bucket}-depth_seconds"][-1] for bucket in range(6)]) / run.samples["clock_seconds"][-1]
    seconds = np.diff(heat.x)
    mean = (np.array(heat.z) * seconds).sum(axis=1) / seconds.sum()
    np.testing.assert_allclose(mean, whole, rtol=0.02, atol=0.02)


def test_marks_are_lines_and_dots_with_their_text(run):
    run.marks.append(Mark("change", "pool.policy: oldest → <b>random</b>", 100.0, 3, 1e6))
    try:
        figure = CHARTS["loss"]([run], View(axis="step"))
        assert [shape.x0 for shape in figure.layout.shapes] == [55.0, 3.0]
        assert "&lt;b&gt;" in trace(figure, "events").hovertext[1]
    finally:
        run.marks.pop()


def test_overlaid_runs_have_a_line_each_under_their_names(run, tmp_path):
    other = RunSeries(simulate_run(tmp_path / "b", "telemetry.sample_every=20", seed=2) / "events")
    while other.update():
        pass
    names = {each.name for each in CHARTS["throughput"]([run, other], View()).data}
    assert {"a", "b"} <= names


def test_an_empty_run_says_what_it_waits_for(tmp_path):
    for name, figure in draw_run([RunSeries(tmp_path)]).items():
        assert "yet" in figure.layout.annotations[0].text, name
    assert describe_progress("new", RunSeries(tmp_path, "x")) == "x · new"


def test_an_unknown_axis_is_refused():
    with pytest.raises(RefusedInput, match="time, step, tokens"):
        view_of("bananas", 60.0)
