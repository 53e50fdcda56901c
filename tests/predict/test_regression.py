"""The robust fit: against scipy's nonnegative least squares, with outliers, and with terms that can't be told."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from dflash.predict.regression import fit_terms, nonnegative


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_nonnegative_least_squares_is_exact(seed, columns):
    draws = np.random.default_rng(seed)
    design, values = draws.normal(size=(30, columns)), draws.normal(size=30)
    expected, residual = nnls(design, values)
    found = nonnegative(design, values)
    assert (found >= 0).all()
    assert np.linalg.norm(design @ found - values) == pytest.approx(residual, abs=1e-7)
    assert found == pytest.approx(expected, abs=1e-6)


def columns(draws, batches=200):
    rows = draws.integers(1, 60, batches).astype(float)
    tokens = rows * draws.uniform(50, 600, batches)
    return {"fixed": np.ones(batches), "per_row": rows, "per_token": tokens}


def test_true_terms_are_found_within_their_intervals_despite_stalls():
    draws = np.random.default_rng(1)
    given_columns = columns(draws)
    seconds = 0.2 + 4e-4 * given_columns["per_token"]
    seconds = seconds * draws.normal(1, 0.03, seconds.size)
    seconds[::25] *= 6
    fit = fit_terms(seconds, given_columns)
    terms = {term.name: term for term in fit.terms}
    assert terms["fixed"].value == pytest.approx(0.2, rel=0.15)
    assert terms["per_token"].value == pytest.approx(4e-4, rel=0.02)
    assert terms["per_token"].low <= 4e-4 <= terms["per_token"].high
    assert not terms["per_row"].known
    assert fit.spread == pytest.approx(0.03, abs=0.015)


def test_a_term_that_another_hides_is_named_with_it():
    draws = np.random.default_rng(2)
    tokens = draws.uniform(1_000, 8_000, 100)
    given_columns = {"fixed": np.ones(100), "per_token": tokens, "per_anchor": tokens / 10 * draws.normal(1, 1e-4, 100)}
    fit = fit_terms((0.1 + 1e-3 * tokens) * draws.normal(1, 0.02, 100), given_columns)
    unknown = [term for term in fit.terms if not term.known]
    assert len(unknown) == 1
    assert {unknown[0].name, unknown[0].partner} == {"per_token", "per_anchor"}
    total = fit.value("per_token") + fit.value("per_anchor") / 10
    assert total == pytest.approx(1e-3, rel=0.02)


def test_a_column_that_never_varies_is_hidden_by_the_constant():
    draws = np.random.default_rng(3)
    given_columns = {"fixed": np.ones(50), "others": np.full(50, 2.0)}
    fit = fit_terms(draws.normal(1.0, 0.01, 50), given_columns)
    assert [term.known for term in fit.terms] == [True, False]
    assert fit.terms[1].partner == "fixed"
    assert fit.terms[0].value == pytest.approx(1.0, rel=0.01)
