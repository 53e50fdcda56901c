"""The explorer: a drag, a text and a rule do the same thing; what it shows is what the plan costs."""

import time

import numpy as np
import polars as pl
import pytest
import yaml

from dflash.batching.boundaries import optimal_boundaries
from dflash.config import build_config
from tests.workbench.conftest import eventually
from workbench import LengthExplorer

LENGTHS = np.clip(np.random.default_rng(0).lognormal(np.log(1617), 0.7, 30_000), 16, 8192).astype(np.int32)


@pytest.fixture
def explorer(closing):
    frame = pl.DataFrame({"length": LENGTHS, "file": np.where(LENGTHS > 1000, "a", "b")})
    return closing(LengthExplorer(frame, boundaries=[0, 1000, 2000, 8192]))


def drag(explorer, shape, to):
    explorer.chart._hear(
        None,
        {"kind": "relayout", "changes": {f"shapes[{shape}].x0": to, f"shapes[{shape}].x1": to, f"shapes[{shape}].y0": 0.1}},
        [],
    )


def test_a_dragged_line_becomes_a_boundary_and_stands_upright_again(explorer):
    before = explorer.figures.padding_efficiency
    drag(explorer, 1, 2500.4)
    assert explorer.boundaries == [0, 1000, 2500, 8192]
    assert explorer.figures.padding_efficiency != before
    assert [(line["x0"], line["y0"], line["y1"]) for line in explorer.chart.figure["layout"]["shapes"]] == [
        (1000, 0, 1),
        (2500, 0, 1),
    ]
    assert explorer.text.value == "0, 1000, 2500, 8192"


@pytest.mark.parametrize(
    ("shape", "to", "expected"),
    [
        (0, -50, [0, 1, 2000, 8192]),
        (1, 99_999, [0, 1000, 8191, 8192]),
        (0, 3000, [0, 2000, 3000, 8192]),
        (0, 2000, [0, 2000, 8192]),
    ],
)
def test_a_line_dragged_out_of_place_is_clamped_and_sorted(explorer, shape, to, expected):
    drag(explorer, shape, to)
    assert explorer.boundaries == expected
    assert explorer.message.value == ""


def test_typed_boundaries_are_checked_where_they_are_typed(explorer):
    explorer.text.value = "0, 500, 8192"
    assert explorer.boundaries == [0, 500, 8192]
    for text, said in (
        ("0, eleven", "whole numbers"),
        ("0, 500, 400, 8192", "not ascending"),
        ("0, 500", "longest row"),
        ("", "at least two"),
    ):
        explorer.text.value = text
        assert said in explorer.message.value
        assert explorer.boundaries == [0, 500, 8192]


def test_rules_undo_and_redo(explorer):
    explorer.buckets.value = 5
    explorer._by_rule(explorer._optimal)
    assert explorer.boundaries == optimal_boundaries(LENGTHS, 5)
    explorer._step(explorer.history.undo)
    assert explorer.boundaries == [0, 1000, 2000, 8192]
    explorer._step(explorer.history.redo)
    assert explorer.boundaries == optimal_boundaries(LENGTHS, 5)


def test_the_mix_follows_on_the_thread(explorer):
    assert eventually(lambda: "edited" in explorer.mix)
    drag(explorer, 0, 1200)
    assert eventually(lambda: "edited" in explorer.mix)
    assert "being measured" not in explorer.table.value


def test_filters_change_what_is_counted(explorer):
    explorer.condition.value = "file = 'b'"
    assert int(explorer.counts.lengths[-1]) <= 1000
    explorer.condition.value = "colour = 3"
    assert "colour" in explorer.message.value


def test_shares_and_axes_draw(explorer):
    for share in ("samples", "tokens", "padded"):
        for log in (False, True):
            explorer.share.value, explorer.log.value = share, log
            assert explorer.chart.figure["layout"]["xaxis"]["type"] == ("log" if log else "linear")


def test_the_patch_is_a_config(explorer, tmp_path):
    explorer.path.value = str(tmp_path / "patch.yaml")
    explorer._save()
    patch = yaml.safe_load((tmp_path / "patch.yaml").read_text())
    config = build_config({"data": {"path": "x"}, "target": {"path": "y"}, **patch})
    assert config.batching.boundaries == [0, 1000, 2000, 8192]


def test_a_drag_over_902_000_lengths_answers_within_200_ms(closing):
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(1617), 0.7, 902_000), 16, 8192).astype(np.int32)
    explorer = closing(LengthExplorer(pl.DataFrame({"length": lengths})))
    explorer._ticker.close()
    spent = []
    for to in (1300, 1400, 1500, 1250, 1350):
        started = time.thread_time()
        drag(explorer, 1, to)
        spent.append(time.thread_time() - started)
    assert sorted(spent)[2] < 0.2
