from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.analysis.levels import fit_levels, fit_line
from tests.analysis.test_changepoints import noisy


def by_least_squares(residuals, parameters):
    """phi and the mean square of the innovations, by numpy's solver."""
    (phi,), *_ = np.linalg.lstsq(residuals[:-1, None], residuals[1:], rcond=None)
    phi = min(max(phi, 0.0), 0.95)
    return phi, ((residuals[1:] - phi * residuals[:-1]) ** 2).sum() / (len(residuals) - 1 - parameters)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 0.9]), st.sets(st.integers(5, 115), max_size=4))
def test_levels_are_the_means_of_the_stretches_and_their_noise_what_least_squares_finds(seed, phi, cuts):
    series = noisy(seed, 120, phi)
    bounds = [0, *sorted(cuts), 120]
    residuals = np.concatenate([series[left:right] - np.mean(series[left:right]) for left, right in pairwise(bounds)])
    fit = fit_levels(series, bounds)
    assert (fit.phi, fit.square) == pytest.approx(by_least_squares(residuals, 2 * (len(cuts) + 1)))


def test_a_line_is_fitted_with_a_slope_whose_error_grows_with_autocorrelation():
    for phi in (0.0, 0.8):
        found = [fit_line(noisy(seed, 300, phi) - 0.001 * np.arange(300))[1:] for seed in range(200)]
        slopes, errors = np.array(found).T
        assert slopes.mean() == pytest.approx(-0.001, abs=3 * slopes.std() / np.sqrt(200))
        assert errors.mean() == pytest.approx(slopes.std(), rel=0.2)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_noise_is_measured_without_bias_around_the_true_levels(phi):
    noises = []
    for seed in range(200):
        logs = noisy(seed, 100, phi)
        logs[40:] -= 0.5
        noises.append(fit_levels(logs, [0, 40, 100]).noise)
    assert np.mean([noise.phi for noise in noises]) == pytest.approx(phi, abs=0.07)
    assert np.median([noise.sigma for noise in noises]) == pytest.approx(0.08, rel=0.12)


def test_a_series_without_noise_is_no_error():
    assert fit_levels(np.full(20, 3.0), [0, 20]).phi == 0
