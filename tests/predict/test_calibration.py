"""Calibration on simulated runs whose true costs are known, and what it says when runs can't tell a term."""

from dataclasses import replace

import pytest

from dflash.errors import RefusedInput
from dflash.predict.calibration import calibrate
from dflash.predict.costs import write_costs
from dflash.predict.simulation import simulate

from .simulated_runs import TRUE, record_run


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    first, _ = record_run(folder, "one")
    second, _ = record_run(folder, "two", "drafter.anchors=64", "batching.strategy=shuffled", "batching.token_budget=2048")
    return first, second


def test_true_terms_are_found_and_predict_another_run(two_runs, tmp_path):
    found = calibrate(two_runs)
    for name in ("target_per_padded_token", "drafter_per_anchor", "step_fixed", "prefetch_fixed"):
        term = found.file.terms[name]
        assert term.known
        assert term.value == pytest.approx(getattr(TRUE, name), rel=0.1)
    assert found.file.noise == pytest.approx(0.03, abs=0.015)
    assert found.file.cores == 2
    assert all(stage["relative_error"] < 0.05 for stage in found.stages.values())
    write_costs(tmp_path / "costs.yaml", found.file)
    other = (
        "drafter.anchors=32",
        "batching.strategy=bucketed",
        "pipeline.targets=2",
        "pool.policy=random",
        "pool.capacity_items=3",
    )
    run, coordinator = record_run(tmp_path, "other", *other, cores=2)
    config = run.config()
    costs = config.simulation.model_copy(update={"costs": str(tmp_path / "costs.yaml")})
    said = simulate(config.model_copy(update={"simulation": costs}))
    assert said.hours * 3_600 == pytest.approx(coordinator.engine.now(), rel=0.04)


def test_one_run_that_varies_nothing_leaves_terms_unknown_and_says_so(tmp_path):
    run, _ = record_run(tmp_path, "equal", "simulation.sigma=0")
    found = calibrate([run])
    unknown = {line.split()[0] for line in found.unknown}
    assert len(unknown & {"target_fixed", "target_per_row", "target_per_padded_token", "target_per_length_squared"}) >= 2
    assert all("left out, at most" in line for line in found.unknown if "evaluation_share" not in line)


def test_seconds_of_workers_that_shared_cores_are_corrected(tmp_path):
    shared, _ = record_run(tmp_path, "shared", "pipeline.targets=4", "pipeline.drafters=2", cores=2)
    found = calibrate([shared])
    assert "jobs a core" in found.warnings[0]
    assert found.file.terms["target_per_padded_token"].value == pytest.approx(2e-4, rel=0.35)


def test_runs_of_two_kinds_are_refused_with_both_named(two_runs, tmp_path):
    other, _ = record_run(tmp_path, "other", "drafter.layers=3")
    with pytest.raises(RefusedInput, match=r"the drafter of one is .*layers.: 5.*of other .*layers.: 3"):
        calibrate([two_runs[0], other])


def test_a_run_too_short_is_refused(tmp_path):
    short, _ = record_run(tmp_path, "short", "optim.max_steps=2")
    with pytest.raises(RefusedInput, match="at least 20 are needed"):
        calibrate([short])


def test_the_share_that_evaluation_takes_is_measured_where_runs_evaluated(tmp_path):
    shown = ("data.holdout=30", "evaluation.every=3", "evaluation.anchors=16")
    run, _ = record_run(tmp_path, "evaluated", *shown, costs=replace(TRUE, evaluation_share=0.5))
    term = calibrate([run]).file.terms["evaluation_share"]
    assert term.value == pytest.approx(0.5, rel=0.1)
    assert 0 < term.low <= term.value <= term.high
    assert calibrate([run]).file.terms["target_fixed"].value == pytest.approx(TRUE.target_fixed, rel=0.1)
    blind, _ = record_run(tmp_path, "blind")
    found = calibrate([blind])
    assert "evaluation_share" not in found.file.terms
    assert any("evaluation_share can't be told" in line for line in found.unknown)
    assert found.file.model().evaluation_share == pytest.approx(1 / 3)


def test_batches_read_from_a_cache_are_fitted_apart_from_computed_ones_and_predict_a_cached_run(tmp_path):
    costs = replace(TRUE, target_read_per_token=1e-5, reads_features=True)
    run, coordinator = record_run(tmp_path, "cached", "target.features=cached", "optim.epochs=2", costs=costs)
    found = calibrate([run])
    assert found.file.terms["target_read_per_token"].value == pytest.approx(1e-5, rel=0.1)
    assert found.file.terms["target_per_padded_token"].value == pytest.approx(2e-4, rel=0.1)
    write_costs(tmp_path / "costs.yaml", found.file)
    config = run.config()
    simulation = config.simulation.model_copy(update={"costs": str(tmp_path / "costs.yaml")})
    predicted = simulate(config.model_copy(update={"simulation": simulation}))
    assert predicted.hours * 3_600 == pytest.approx(coordinator.engine.now(), rel=0.04)
    live = config.target.model_copy(update={"features": "live"})
    assert simulate(config.model_copy(update={"simulation": simulation, "target": live})).hours > predicted.hours
