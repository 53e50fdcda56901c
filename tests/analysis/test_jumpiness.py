import numpy as np
import pytest

from dflash.analysis.eventlog import load_events
from dflash.analysis.jumpiness import judge_jumpiness


def steps(count=400, mix=0.0, seed=0, spikes=(), grad_spikes=()):
    rng = np.random.default_rng(seed)
    events = []
    for step in range(count):
        shares = rng.dirichlet(np.ones(4) * 3)
        loss = 3 - step / 1_000 + 0.02 * rng.normal() + mix * (shares[0] - 0.25)
        loss += 1.0 if step in spikes else 0.0
        norm = 0.5 + 0.02 * rng.normal() + (5.0 if step in grad_spikes else 0.0)
        fields = {
            "step": step,
            "loss": loss,
            "grad_norm": norm,
            "tokens": 1_000,
            "class_tokens": [int(1_000 * share) for share in shares],
        }
        events.append(("step", {**fields, "batch_ids": [f"0/0/{step}"]}))
    return events


def test_jumps_that_follow_the_length_mix_are_healthy(written):
    found = judge_jumpiness(load_events(written(steps(mix=0.5))))
    assert found.verdict == "healthy"
    assert found.explained > 0.5
    assert found.p < 0.01


def test_jumps_that_follow_nothing_are_undecided(written):
    found = judge_jumpiness(load_events(written(steps())))
    assert found.verdict == "undecided"
    assert found.explained < 0.1
    assert found.j1 / found.j2 == pytest.approx(1.0, abs=0.15)


def test_a_gradient_that_leaps_before_the_loss_is_unstable_and_the_spikes_name_their_batches(written):
    found = judge_jumpiness(load_events(written(steps(mix=0.5, spikes=(200, 300), grad_spikes=(198, 299)))))
    assert found.verdict == "unstable"
    assert [spike.step for spike in found.spikes] == [200, 300]
    assert found.spikes[0].batches[0]["batch"] == "0/0/200"


def test_a_gradient_that_leaps_after_the_loss_is_not_its_cause(written):
    assert judge_jumpiness(load_events(written(steps(mix=0.5, spikes=(200,), grad_spikes=(203,))))).verdict == "healthy"


def test_the_first_fall_of_a_fresh_run_is_no_spike_and_its_large_gradients_no_alarm(written):
    events = steps(mix=0.5, spikes=(200,))
    for at, (_, fields) in enumerate(events[:25]):
        fields["loss"] += 60 * (1 - at / 25)
        fields["grad_norm"] += 50
    found = judge_jumpiness(load_events(written(events)))
    assert [spike.step for spike in found.spikes] == [200]
    assert found.above_7 == 1
    assert found.verdict == "healthy"


def test_a_first_fall_that_wavers_is_one_fall(written):
    events = steps(mix=0.5, spikes=(200,))
    for at, (_, fields) in enumerate(events[:80]):
        fields["loss"] += 60 * np.exp(-at / 4) + 3 * np.exp(-at / 25) + (4 if at % 3 else 0) * np.exp(-at / 10)
        fields["grad_norm"] += 50 * np.exp(-at / 10)
    found = judge_jumpiness(load_events(written(events)))
    assert [spike.step for spike in found.spikes] == [200]
    assert found.verdict == "healthy"


def test_a_run_of_the_same_order_decides_where_the_mix_does_not(written):
    events = steps()
    for _, fields in events:
        del fields["class_tokens"]
    one, other = written(events, "one"), written(events, "other")
    found = judge_jumpiness(load_events(one), load_events(other))
    assert found.verdict == "healthy"
    assert found.same_order == pytest.approx(1.0)


@pytest.mark.parametrize("count", [0, 1, 50])
def test_few_rows_are_too_little_data(written, count):
    assert judge_jumpiness(load_events(written([("warning", {"message": "x"}), *steps(count)]))).verdict == "too little data"


def test_losses_that_are_missing_nan_or_all_alike_are_survived(written):
    events = [("step", {"step": step, "loss": None if step % 3 else 2.0, "tokens": 1}) for step in range(400)]
    assert judge_jumpiness(load_events(written(events))).verdict == "undecided"


def test_the_simulated_runs_loss_follows_its_mix(simulated):
    found = judge_jumpiness(load_events(simulated(seed=1)))
    assert (found.verdict, found.source) == ("healthy", "batches")
