"""The what-if table and its frontier; plans files that are refused."""

import numpy as np
import pytest

from dflash.charts.plans import lift_bars, pool_items, speed_against_mix, worker_shares
from dflash.errors import RefusedInput
from dflash.predict.plans import compare_plans, mark_frontier, plan_frame, read_plans

LENGTHS = np.clip(np.random.default_rng(0).lognormal(6, 0.7, 4_000), 8, 4096).astype(np.int32)
TEXT = """
common: {pipeline: {targets: 2, drafters: 1}, simulation: {hours: 0.02}, batching: {token_budget: 8192}, optim: {accumulate: 8}}
plans:
  sorted: {batching: {strategy: sorted, order: random}}
  shuffled: {batching: {strategy: shuffled, order: random}}
  stuck: {pool: {policy: round_robin_wait}, batching: {strategy: bucketed}}
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plans.yaml"
    path.write_text(TEXT)
    return compare_plans(LENGTHS, read_plans(path))


def test_each_plan_is_planned_and_simulated(rows):
    by_name = {row.plan: row for row in rows}
    assert list(by_name) == ["sorted", "shuffled", "stuck"]
    assert by_name["sorted"].padding_efficiency > 0.95 > by_name["shuffled"].padding_efficiency
    assert by_name["sorted"].ktok_s > 1.5 * by_name["shuffled"].ktok_s
    assert by_name["sorted"].membership_reuse == 1
    assert by_name["stuck"].deadlock
    assert by_name["stuck"].ktok_s == 0


def test_the_frontier_holds_what_nothing_beats_in_both(rows):
    assert [row.plan for row in rows if row.frontier] == ["sorted", "shuffled"]
    slower = type(rows[0])(**{**vars(rows[0]), "plan": "slower", "ktok_s": rows[0].ktok_s / 2})
    assert [row.plan for row in mark_frontier([*rows, slower]) if row.frontier] == ["sorted", "shuffled"]


def test_the_table_is_drawn_with_the_frontier_joined(rows):
    figure = speed_against_mix(plan_frame(rows))
    line = next(trace for trace in figure.data if trace.name == "frontier")
    assert len(line.x) == 2
    assert speed_against_mix(plan_frame([])).layout.annotations
    assert len(worker_shares({"target-0": {"busy": 0.5, "starved": 0.5}}).data) == 2
    assert pool_items([1.0, 2.0], [0, 10, 20]).data[0].y == (1.0, 2.0)
    assert lift_bars(["a<b>"], [0.2]).data[0].y == ("a&lt;b&gt;",)
    assert lift_bars([], []).layout.annotations


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plans: {a: {batching: {stratgy: sorted}}}", r"plan a: unknown key batching.stratgy; did you mean batching.strategy"),
        ("plans: {}", "holds no plans"),
        ("plans: {a: 3}", "a is not a mapping"),
        ("plan: {a: {}}", "holds no plans"),
        ("{", "can't be read"),
        ("plans: {a: {}}\nmore: 1", "unknown key more"),
    ],
)
def test_a_bad_plans_file_names_the_plan_and_the_key(tmp_path, text, words):
    path = tmp_path / "plans.yaml"
    path.write_text(text)
    with pytest.raises(RefusedInput, match=words):
        read_plans(path)


def test_settings_that_do_not_fit_name_the_plan(tmp_path):
    path = tmp_path / "plans.yaml"
    path.write_text("plans: {tight: {batching: {token_budget: 10}}}")
    with pytest.raises(RefusedInput, match=r"plan tight: batching\.token_budget=10"):
        compare_plans(LENGTHS, read_plans(path))
