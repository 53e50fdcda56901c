"""The charts of a change stand on the axis they name: in its unit, with the change where it was."""

import numpy as np
import polars as pl
import pytest

from dflash.analysis.rates import RateSeries
from dflash.charts.regression import draw_loss, draw_rate, draw_two_rates


def series(rows: int, seconds: float, unit: str = "Ktok/s") -> RateSeries:
    random = np.random.default_rng(rows)
    frame = pl.DataFrame(
        {
            "at": seconds * np.arange(1, rows + 1),
            "seconds": np.full(rows, seconds),
            "step": np.arange(1, rows + 1),
            "rate": random.uniform(5.0, 15.0, rows),
            "phase": ["warm-up"] + ["train"] * (rows - 1),
        }
    )
    return RateSeries(frame, unit, "steps")


@pytest.mark.parametrize(("rows", "unit", "size"), [(9, "s", 1), (60, "min", 60), (1_500, "h", 3_600), (40_000, "d", 86_400)])
def test_time_is_in_the_unit_that_suits_the_run(rows, unit, size):
    run, half = series(rows, 10.0), 10.0 * rows / 2
    figure = draw_rate(run, changes=[half])
    assert figure.layout.xaxis.title.text == f"time since the start ({unit})"
    assert max(figure.data[0].x) == pytest.approx(10.0 * rows / size, rel=0.01)
    assert figure.layout.shapes[0].x0 == pytest.approx(half / size)
    loss = draw_loss(run.frame.with_columns(loss=pl.col("rate")), [], changes=[half])
    assert loss.layout.xaxis.title.text == figure.layout.xaxis.title.text
    assert loss.layout.shapes[0].x0 == pytest.approx(half / size)


@pytest.mark.parametrize(
    ("unit", "title", "a_unit"),
    [
        ("Ktok/s", "real tokens committed (millions)", 1e6 / 1e3),
        ("samples/s", "samples (thousands)", 1e3),
        ("steps/s", "steps (thousands)", 1e3),
    ],
)
def test_work_done_is_the_rate_summed_over_time(unit, title, a_unit):
    run = series(200, 3.0, unit)
    figure = draw_rate(run, changes=[300.0], by="tokens")
    done = sum(rate * 3.0 for rate in run.frame["rate"])
    assert figure.layout.xaxis.title.text == title
    assert max(figure.data[0].x) == pytest.approx(done / a_unit)
    assert figure.layout.shapes[0].x0 == pytest.approx(sum(rate * 3.0 for rate in run.frame["rate"][:100]) / a_unit)


def test_two_runs_share_the_unit_of_the_longer_one():
    short, long = series(20, 10.0), series(2_000, 10.0)
    for before, after in ((short, long), (long, short)):
        figure = draw_two_rates(before, after)
        assert figure.layout.xaxis.title.text == "time since the start (h)"
        ends = [max(line.x) * 3_600 for line in figure.data]
        assert ends == pytest.approx([before.frame["at"].max(), after.frame["at"].max()], rel=0.01)
