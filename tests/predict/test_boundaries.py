"""Boundaries by three rules, by hand, and their curve."""

import numpy as np
import pytest

from dflash.batching.boundaries import bucket_efficiency
from dflash.config import BatchingConfig
from dflash.errors import RefusedInput
from dflash.predict.boundaries import advise_boundaries

LENGTHS = np.clip(np.random.default_rng(0).lognormal(6, 0.7, 5_000), 8, 4096).astype(np.int32)
SETTINGS = BatchingConfig(token_budget=8192)


def test_the_optimum_beats_every_other_rule_and_the_curve_rises():
    found = advise_boundaries(LENGTHS, SETTINGS, buckets=6, by_hand=[0, 100, 200, 400, 800, 1600, 4096])
    assert found.boundaries[0] == 0
    assert found.boundaries[-1] == LENGTHS.max()
    assert len(found.boundaries) == 7
    best = bucket_efficiency(LENGTHS, found.boundaries)
    for rule in found.rules.values():
        assert bucket_efficiency(LENGTHS, rule["boundaries"]) <= best + 1e-12
    assert found.padding_efficiency == found.rules["optimal"]["padding_efficiency"] >= best
    optimal = found.curve.filter(found.curve["rule"] == "optimal")["padding_efficiency"].to_list()
    assert optimal == sorted(optimal)
    assert len(optimal) == 12


def test_boundaries_by_hand_that_do_not_cover_are_refused():
    with pytest.raises(RefusedInput, match=r"they end below .* rows, the longest"):
        advise_boundaries(LENGTHS, SETTINGS, buckets=2, by_hand=[0, 10, 20])


def test_more_buckets_than_distinct_lengths_are_refused():
    with pytest.raises(RefusedInput, match="3 distinct lengths"):
        advise_boundaries(np.array([5, 6, 7], np.int32), SETTINGS, buckets=4)


def test_one_length_needs_one_bucket():
    found = advise_boundaries(np.full(50, 64, np.int32), SETTINGS, buckets=1)
    assert found.boundaries == [0, 64]
    assert found.padding_efficiency == 1
