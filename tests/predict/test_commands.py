"""The commands as a user types them: one JSON object last, pages that open offline, exit codes."""

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from dflash.cli import app
from dflash.errors import RefusedInput

from .conftest import FIELD
from .simulated_runs import record_run

DRAWN = np.clip(np.random.default_rng(0).lognormal(6, 0.7, 3_000), 8, 4096).astype(np.int32)


@pytest.fixture
def lengths(tmp_path):
    place = tmp_path / "lengths.parquet"
    pl.DataFrame({"length": DRAWN, "source": ["a" if each % 2 else "b" for each in DRAWN]}).write_parquet(place)
    return place


def run(*arguments):
    """The command's JSON."""
    done = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_lengths(lengths, tmp_path):
    page = tmp_path / "lengths.html"
    found = run("lengths", lengths, "--group-by", "source", "--against", lengths, "--html", page, "--json")
    assert found["samples"] == DRAWN.size
    assert found["median"] == int(np.percentile(DRAWN, 50, method="inverted_cdf"))
    assert set(found["groups"]) == {"a", "b"}
    assert found["difference"]["ks"] == 0
    text = page.read_text()
    assert "plotly" in text
    assert "By source" in text


def test_boundaries(lengths, tmp_path):
    page = tmp_path / "boundaries.html"
    found = run(
        "boundaries", lengths, "--buckets", 4, "--token-budget", 8192, "--by-hand", "0,300,900,4096", "--html", page, "--json"
    )  # fmt: skip
    assert len(found["boundaries"]) == 5
    assert found["boundaries"][-1] == DRAWN.max()
    assert found["padding_efficiency"] >= found["rules"]["by_hand"]["padding_efficiency"]
    assert page.exists()


def test_compare_plans(lengths, tmp_path):
    plans, page = tmp_path / "plans.yaml", tmp_path / "plans.html"
    plans.write_text("common: {batching: {token_budget: 8192}}\nplans: {a: {}, b: {batching: {strategy: shuffled, order: random}}}")
    found = run("compare-plans", lengths, "--plans", plans, "--hours", 0.02, "--html", page, "--json")
    assert [each["plan"] for each in found["plans"]] == ["a", "b"]
    assert found["frontier"]
    assert page.exists()


def test_simulate_from_the_config_alone(tmp_path):
    page = tmp_path / "run.html"
    small = ["--set", "simulation.samples=20000", "--hours", "0.2"]
    found = run("simulate", FIELD, *small, "--html", page, "--json")
    assert {"ktok_s", "eta_days", "deadlock", "bottleneck", "workers", "pool", "interval", "lifts", "why"} <= set(found)
    assert found["deadlock"] is None
    assert found["bottleneck"] == "targets"
    assert found["lifts"][0]["resource"] == "target_speed"
    assert page.exists()
    stuck = run("simulate", FIELD, *small, "--set", "pool.policy=round_robin_wait", "--json")
    assert stuck["ktok_s"] == 0
    assert stuck["eta_days"] is None
    assert "waits for an item of length bucket" in stuck["deadlock"]


def test_calibrate_then_advise(tmp_path, lengths):
    for name, sets in (("one", ()), ("two", ("drafter.anchors=64",))):
        record_run(tmp_path, name, *sets)
    costs = tmp_path / "costs.yaml"
    found = run("calibrate", tmp_path / "one", tmp_path / "two", "--out", costs, "--json")
    assert found["terms"]["drafter_per_anchor"]["known"]
    assert costs.exists()
    sets = ["--set", "batching.strategy=shuffled", "--set", "batching.token_budget=8192", "--set", "simulation.hours=0.02"]
    advice = run("advise", tmp_path / "one" / "config.yaml", *sets, "--lengths", lengths, "--costs", costs, "--mix", 1, "--json")
    assert advice["suggestions"]
    assert all("=" in part for each in advice["suggestions"] for part in each["patch"])


@pytest.mark.parametrize("command", [["lengths"], ["boundaries"], ["compare-plans", "--plans", "none.yaml"]])
def test_a_missing_file_is_refused(command, tmp_path):
    with pytest.raises(RefusedInput, match=r"nowhere.parquet|none.yaml"):
        run(command[0], tmp_path / "nowhere.parquet", *command[1:])


def test_people_get_tables(lengths):
    done = CliRunner().invoke(app, ["lengths", str(lengths)], catch_exceptions=False)
    assert "at_longest_share" in done.stdout
    done = CliRunner().invoke(app, ["boundaries", str(lengths)], catch_exceptions=False)
    assert "quantile" in done.stdout
