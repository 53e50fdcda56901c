import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.analysis.changepoints import detectable_change, find_steps
from dflash.analysis.noise import Noise, compare_rates, measure_noise


def noisy(seed, points, phi=0.5, cv=0.08):
    rng = np.random.default_rng(seed)
    logs = np.empty(points)
    logs[0] = rng.normal(0, cv)
    for at, shock in enumerate(rng.normal(0, cv * np.sqrt(1 - phi**2), points - 1), start=1):
        logs[at] = phi * logs[at - 1] + shock
    return logs


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_noise_of_a_long_series_is_measured_right_although_it_holds_steps(phi):
    logs = noisy(1, 20_000, phi)
    logs[10_000:] -= 0.5
    noise = measure_noise(logs)
    assert noise.phi == pytest.approx(phi, abs=0.05)
    assert noise.sigma == pytest.approx(0.08, rel=0.1)


def test_false_alarms_are_rare_and_large_drops_always_found():
    alarms = sum(bool(found.steps or found.drift) for found in (find_steps(9.5 * np.exp(noisy(seed, 300))) for seed in range(60)))
    assert alarms <= 3
    for seed in range(30):
        logs = noisy(seed, 300)
        logs[150:] += np.log(0.6)
        step = min(find_steps(9.5 * np.exp(logs)).steps, key=lambda step: step.ratio.change)
        assert abs(step.index - 150) <= 3
        assert step.ratio.change == pytest.approx(-0.4, abs=0.08)


@pytest.mark.parametrize(("points", "phi", "most"), [(40, 0.5, 8), (40, 0.8, 14), (300, 0.8, 4), (1_000, 0.9, 3)])
def test_false_alarms_are_rare_in_short_series_and_in_strongly_autocorrelated_ones(points, phi, most):
    alarms = [find_steps(np.exp(noisy(seed, points, phi))) for seed in range(100)]
    assert sum(bool(found.steps or found.drift) for found in alarms) <= most


@pytest.mark.parametrize(("points", "phi", "drop", "least"), [(40, 0.5, 0.4, 55), (300, 0.8, 0.15, 34), (300, 0.8, 0.4, 59)])
def test_a_drop_is_found_near_its_place_although_noise_is_autocorrelated(points, phi, drop, least):
    near = 0
    for seed in range(60):
        logs = noisy(seed, points, phi)
        logs[points // 2 :] += np.log(1 - drop)
        near += min((abs(step.index - points // 2) for step in find_steps(np.exp(logs)).steps), default=points) <= 15
    assert near >= least


def test_a_drop_that_is_made_good_again_is_two_steps():
    logs = noisy(8, 300, 0.5)
    logs[120:160] += np.log(0.6)
    steps = find_steps(np.exp(logs)).steps
    assert [step.ratio.change < 0 for step in steps] == [True, False]
    assert [abs(step.index - at) <= 3 for step, at in zip(steps, (120, 160), strict=True)] == [True, True]


def test_a_drift_is_told_from_steps():
    found = find_steps(9.5 * np.exp(noisy(4, 400) - np.linspace(0, 0.6, 400)))
    assert found.steps == []
    assert found.drift is not None
    assert found.drift.change == pytest.approx(np.expm1(-0.6), abs=0.1)


def test_a_single_stall_is_no_change():
    logs = noisy(5, 300)
    logs[100:103] -= 1.5
    assert find_steps(9.5 * np.exp(logs)).steps == []


def test_a_step_among_a_hundred_thousand_points_is_found_in_its_bin():
    logs = noisy(6, 100_000)
    logs[60_000:] -= 0.3
    (step,) = find_steps(np.exp(logs)).steps
    assert abs(step.index - 60_000) <= 100


def test_what_is_said_to_be_detectable_is_found_most_of_the_time():
    change = detectable_change(Noise(0.08, 0.5), 300)
    hits = 0
    for seed in range(40):
        logs = noisy(100 + seed, 300)
        logs[150:] += np.log(1 - change)
        hits += bool(find_steps(np.exp(logs)).steps)
    assert hits >= 30
    assert change > 0.05


@pytest.mark.parametrize(("lines", "phi"), [(3, 0.5), (5, 0.5), (10, 0.0), (20, 0.8)])
def test_the_interval_of_a_known_boundary_covers_the_truth_about_as_often_as_it_says(lines, phi):
    covered = 0
    for seed in range(300):
        sides = noisy(2 * seed, lines, phi), noisy(2 * seed + 1, lines, phi)
        ratio = compare_rates(9.5 * np.exp(sides[0]), 5.7 * np.exp(sides[1]))
        covered += ratio.low <= -0.4 <= ratio.high
        assert ratio.provisional == (lines < 20)
    assert covered >= 0.86 * 300


def test_one_row_a_side_gives_no_interval_and_identical_rows_no_error():
    ratio = compare_rates(np.array([9.0]), np.array([5.0]))
    assert (ratio.low, ratio.p, ratio.provisional) == (-1.0, 1.0, True)
    assert compare_rates(np.full(5, 3.0), np.full(5, 3.0)).change == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-3, 1e6), min_size=0, max_size=60))
def test_any_positive_series_is_searched_without_an_error(rates):
    found = find_steps(np.array(rates, float))
    indexes = [step.index for step in found.steps]
    assert indexes == sorted(indexes)
    assert all(0 < index < len(rates) for index in indexes)
    assert 0 < found.detectable <= 1
