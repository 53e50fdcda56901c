import math

import pytest

from benchmarks.injected_faults import FAULTS, Machine
from dflash.analysis.attribution import attribute
from dflash.analysis.bottleneck import find_bottleneck
from dflash.analysis.eventlog import load_events
from dflash.analysis.flow import measure_flow


def explain(before, after):
    logs = load_events(before), load_events(after)
    return attribute(logs[0], (120, logs[0].seconds), logs[1], (120, logs[1].seconds))


@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_is_named_and_nothing_else(simulated, fault):
    found = explain(simulated(seed=1), simulated(fault, seed=2))
    assert found.verdict == "regression"
    assert [cause.factor for cause in found.causes] == [fault]
    assert found.high < 0
    assert abs(found.unexplained) < 0.75


@pytest.mark.parametrize(
    "pair",
    [("padding", "metrics"), ("target speed", "drafter speed"), ("waiting", "evaluation"), ("hand-over", "drafter straggler")],
)
def test_two_faults_at_once_are_reported_as_two(simulated, pair):
    found = explain(simulated(seed=1), simulated(*pair, seed=3))
    assert set(pair) <= {cause.factor for cause in found.causes}


@pytest.mark.parametrize("seeds", [(1, 4), (4, 1), (5, 6)])
def test_healthy_runs_accuse_nothing(simulated, seeds):
    found = explain(simulated(seed=seeds[0]), simulated(seed=seeds[1]))
    assert found.causes == []
    assert found.verdict == "no regression"


def test_the_shares_of_all_factors_add_up_to_the_change(simulated):
    found = explain(simulated(seed=1), simulated("padding", seed=2))
    assert sum(cause.share for cause in found.all_factors) == pytest.approx(1.0, abs=1e-6)
    assert found.change == pytest.approx(found.after.ktok_s / found.before.ktok_s - 1)


def test_mending_the_cause_would_bring_back_about_what_was_lost(simulated):
    found = explain(simulated(seed=1), simulated("drafter speed", seed=2))
    (cause,) = found.causes
    assert found.after.ktok_s * (1 + cause.relief) == pytest.approx(found.before.ktok_s, rel=0.1)
    assert cause.after / cause.before == pytest.approx(1.5, rel=0.05)


def test_a_fault_inside_a_run_is_explained_from_its_two_sides(simulated):
    run = simulated(seed=3, batches=1_280, live={20: FAULTS["target speed"](Machine())})
    log = load_events(run)
    at = float(log.steps.filter(log.steps["step"] == 20)["at"][0])
    found = attribute(log, (120, at), log, (at, log.seconds))
    assert [cause.factor for cause in found.causes] == ["target speed"]


@pytest.mark.parametrize(
    ("faults", "name"),
    [((), "drafters"), (("waiting",), "pull policy"), (("padding",), "targets by padding"), (("prefetch speed",), "prefetch")],
)
def test_the_rules_name_the_bottleneck_and_the_instruments_are_sound(simulated, faults, name):
    log = load_events(simulated(*faults, seed=2))
    flow = measure_flow(log, 120, log.seconds)
    found = find_bottleneck(flow)
    assert found.name == name
    assert found.instruments == []
    assert flow.accounts_add_up < 0.01


def test_broken_instruments_are_told_of(simulated):
    log = load_events(simulated(seed=1))
    for sample in log.rare["sample"]:
        sample["workers"][0]["busy_seconds"] *= 0.5
        sample["queues"][1]["residence_seconds"] *= 2
    found = find_bottleneck(measure_flow(log, 120, log.seconds))
    assert len(found.instruments) == 2


def test_a_run_without_accounts_is_too_little_data(written):
    log = load_events(written([("step", {"step": step, "tokens": 1_000, "loss": 1.0}) for step in range(30)]))
    assert attribute(log, (0, 15), log, (15, 30)).verdict == "too little data"


def test_no_number_of_an_explanation_is_infinite(simulated):
    found = explain(simulated(seed=1), simulated("evaluation", seed=2)).as_dict()
    assert all(math.isfinite(cause[name]) for cause in found["causes"] for name in ("share", "alone", "relief", "p"))


def test_on_one_device_the_stage_that_takes_most_of_its_time_is_the_bottleneck(simulated):
    log = load_events(simulated(seed=1))
    found = find_bottleneck(measure_flow(log, 120, log.seconds), serial=True)
    assert found.name == "targets"
    assert "in turn" in found.evidence
