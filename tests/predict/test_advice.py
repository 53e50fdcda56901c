"""Advice: what it offers holds the mix, runs as patched, and never lowers what it may not."""

import pytest

from dflash.errors import RefusedInput
from dflash.predict.advice import advise, patched_config
from dflash.predict.simulation import simulate


def base(small, *sets):
    return small(
        "batching.strategy=shuffled", "batching.order=random", "batching.token_budget=4096", "pipeline.targets=2", "pipeline.drafters=2",
        "simulation.samples=6000", "optim.accumulate=32", "simulation.hours=0.05", "pool.policy=random", "simulation.drafter_per_token=1e-5",
        "pool.capacity_bytes=6000000000", *sets,
    )  # fmt: skip


def test_the_best_hold_the_mix_and_their_patches_do_what_was_said(small):
    config = base(small)
    found = advise(config, mix=0.3)
    assert 1 <= len(found.suggestions) <= 3
    rates = [each.ktok_s for each in found.suggestions]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 1.5 * found.now.ktok_s
    for each in found.suggestions:
        assert each.vr <= 0.3
        assert "batching.strategy=sorted" not in each.patch
        assert simulate(patched_config(config, each.patch)).ktok_s == pytest.approx(each.ktok_s)
    assert "3 targets to 1 drafters balance" in found.suggestions[0].reason


def test_anchors_are_lowered_only_when_allowed_and_said(small):
    slow = ("simulation.drafter_per_anchor=1e-3", "drafter.anchors=64", "simulation.drafter_per_token=0")
    kept = advise(base(small, *slow), mix=0.3)
    assert not any("anchors" in part for each in kept.suggestions for part in each.patch)
    lowered = advise(base(small, *slow), mix=0.3, least_anchors=16)
    assert "drafter.anchors=16" in lowered.suggestions[0].patch
    assert "16 anchors instead of 64, which teach less" in lowered.suggestions[0].reason


def test_a_mix_that_nothing_holds_gives_none(small):
    assert advise(base(small), mix=0.0).suggestions == []


def test_memory_for_fewer_batches_than_targets_is_refused(small):
    with pytest.raises(RefusedInput, match="fewer than the"):
        advise(base(small, "pool.capacity_bytes=230000000"), mix=0.3)
