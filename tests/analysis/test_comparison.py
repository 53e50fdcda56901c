import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.analysis.attribution import Cause
from dflash.analysis.comparison import compare_runs, differences
from dflash.analysis.suspects import rank_suspects

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.dictionaries(st.text(st.sampled_from("abc"), min_size=1, max_size=2), inner, max_size=3),
)


@given(TREES)
def test_a_tree_does_not_differ_from_itself(tree):
    assert differences(tree, json.loads(json.dumps(tree))) == []


@given(TREES, TREES)
def test_differences_are_the_same_both_ways_round(one, other):
    there, back = differences(one, other), differences(other, one)
    assert [(each.key, each.old, each.new) for each in there] == [(each.key, each.new, each.old) for each in back]


def test_only_what_differs_is_shown_nested_and_without_ignored_keys():
    old = {"pool": {"policy": "oldest", "size": 3}, "log": {"every": 1}, "list": [1, 2]}
    new = {"pool": {"policy": "random", "size": 3}, "log": {"every": 2}, "list": [1, 3], "more": 1}
    assert [each.key for each in differences(old, new, ["log.*"])] == ["list", "more", "pool.policy"]


def test_runs_are_compared_with_their_results_at_the_same_steps(simulated):
    found = compare_runs(simulated(seed=1), simulated("waiting", seed=2), ignore=["batching.seed"])
    assert [each.key for each in found.config] == ["pool.policy", "pool.wait_seconds"]
    assert len(found.results) == 10
    assert all(row["rate_new"] < row["rate_old"] for row in found.results[2:-1])
    json.dumps(found.as_dict())


def test_uncommitted_code_is_compared_and_a_strange_commit_is_never_handed_to_git(written, monkeypatch):
    import subprocess

    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("git was called"))
    runs = [written([("warning", {"message": "x"})], name) for name in ("one", "other")]
    for run, commit, diff in zip(runs, ("--output=/etc/passwd", "abc"), ("+a\n", "+b\n"), strict=True):
        (run.path / "manifest.json").write_text(json.dumps({"sessions": [{"git": {"commit": commit, "diff": diff}}]}))
    found = compare_runs(*runs)
    assert "-+a" in found.code
    assert "++b" in found.code


def cause(factor, share=1.0):
    return Cause(factor, factor, share, -0.3, 0.4, 1.0, 1.4, 0.0, "")


def test_what_acts_on_the_cause_ranks_first_and_what_cannot_have_caused_it_last(simulated):
    comparison = compare_runs(simulated(seed=1), simulated("waiting", seed=2))
    change = {"event": "change", "key": "telemetry.metrics_every", "old": 8, "new": 1, "step": 5, "who": "me"}
    ranked = rank_suspects(comparison, [change], [cause("waiting")])
    assert ranked[0].key in ("pool.policy", "pool.wait_seconds")
    assert ranked[-1].verdict == "can't have"
    assert next(each for each in ranked if each.key == "telemetry.metrics_every").verdict == "can't have"
    assert next(each for each in ranked if each.key == "batching.seed").verdict == "can't have"
