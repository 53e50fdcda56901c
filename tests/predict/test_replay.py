"""A replayed log gives the same pulls: every policy and topology, with ties, late notice, evaluation, checkpoints and a run cut short."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.errors import RefusedInput
from dflash.pipeline.engines.simulated import SimulatedEngine
from dflash.pool.policies import POLICIES
from dflash.predict.replay import replay

from .simulated_runs import TRUE, Lagging, record_run

NEVER_WAIT = sorted(set(POLICIES) - {"round_robin_wait"})


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(NEVER_WAIT),
    strategy=st.sampled_from(["sorted", "shuffled", "bucketed", "jittered", "packed"]),
    order=st.sampled_from(["random", "stratified"]),
    topology=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    capacity=st.integers(1, 6),
    noise=st.sampled_from([0.0, 0.3]),
    engine=st.sampled_from(["ray", "inline"]),
    kind=st.sampled_from([SimulatedEngine, Lagging]),
    shown=st.sampled_from([(), ("data.holdout=20", "evaluation.every=2")]),
    steps=st.sampled_from(["null", "5"]),
    sigma=st.sampled_from(["0", "0.7"]),
)
def test_every_pull_is_replayed(
    tmp_path_factory, policy, strategy, order, topology, capacity, noise, engine, kind, shown, steps, sigma
):
    targets, drafters, readers = topology
    run, _ = record_run(
        tmp_path_factory.mktemp("run"), "run", f"pool.policy={policy}", f"batching.strategy={strategy}", f"batching.order={order}",
        f"pipeline.targets={targets}", f"pipeline.drafters={drafters}", f"pipeline.prefetch_workers={readers}", f"pipeline.engine={engine}",
        f"pool.capacity_items={capacity}", f"optim.max_steps={steps}", f"simulation.sigma={sigma}", "simulation.samples=300", *shown,
        "optim.epochs=2", "checkpoint.every=3", costs=replace(TRUE, noise=noise, checkpoint_seconds=0.4),
        engine_kind=SimulatedEngine if engine == "inline" else kind,
    )  # fmt: skip
    found = replay(run)
    assert found.replayed == found.recorded
    assert found.agreement == 1


def test_another_policy_is_noticed(tmp_path):
    run, _ = record_run(tmp_path, "run", "pipeline.targets=3", "pool.policy=random", "batching.order=random")
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("policy: random", "policy: oldest"))
    assert replay(run).agreement < 0.9


def rewrite(run, change):
    """Change the events of a run."""
    for path in run.events.iterdir():
        events = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(event) + "\n" for event in change(events)))


def test_only_the_first_session_is_replayed(tmp_path):
    run, _ = record_run(tmp_path, "run")
    whole = len(replay(run).recorded)
    rewrite(run, lambda events: [{"event": "run_started"}, *events, {"event": "run_started"}, *events])
    found = replay(run)
    assert (len(found.recorded), found.agreement) == (whole, 1)


def test_a_refused_command_and_a_stop_move_nothing(tmp_path):
    run, _ = record_run(tmp_path, "run", "optim.max_steps=3")
    said = [{"event": "change", "action": "set", "accepted": False}, {"event": "change", "action": "stop", "accepted": True}]
    rewrite(run, lambda events: [*events, *said])
    assert replay(run).agreement == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda events: [], "nothing to replay"),
        (lambda events: [{k: v for k, v in each.items() if k != "turns"} for each in events], "hold no turns"),
        (lambda events: [*events, {"event": "change", "action": "set", "accepted": True}], r"moved from outside \(set\)"),
        (lambda events: [*events, {"event": "worker_lost", "worker": "target-0"}], r"moved from outside \(target-0 was lost\)"),
    ],
)
def test_what_cant_be_replayed_is_refused(tmp_path, change, words):
    run, _ = record_run(tmp_path, "run", "optim.max_steps=3")
    rewrite(run, change)
    with pytest.raises(RefusedInput, match=words):
        replay(run)
