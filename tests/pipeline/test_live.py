"""Live control on the simulated engine: what is changed while a run goes on never loses or repeats a sample."""

import json
import os
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash.config import build_config
from dflash.errors import RefusedInput
from dflash.pipeline.engines.simulated import CostModel
from dflash.pipeline.live import LIVE_KEYS, LiveControl
from dflash.runs.control import LARGEST_COMMAND_BYTES, send_command
from dflash.runs.folder import create_run
from dflash.telemetry.reader import read_events
from dflash.telemetry.recorder import Recorder

COSTS = CostModel(noise=0.2)
LENGTHS = np.random.default_rng(3).integers(20, 400, 400)
CHANGES = [
    ("batching.strategy", "shuffled"),
    ("batching.strategy", "packed"),
    ("batching.strategy", "bucketed"),
    ("batching.order", "random"),
    ("batching.boundaries", [0, 100, 200, 400]),
    ("batching.boundaries", [0, 400]),
    ("batching.jitter", 5),
    ("pool.policy", "round_robin"),
    ("pool.policy", "deficit"),
    ("pool.capacity_items", 2),
    ("pipeline.prefetch", 1),
    ("telemetry.metrics_every", 3),
    ("optim.accumulate", 3),
    ("optim.accumulate", 9),
    ("drafter.anchors", 8),
    ("checkpoint.every", 5),
]


def run_with_changes(simulate, changes, *chosen):
    """Run, applying each (turn, key, value) at its turn."""
    run, seen = simulate(LENGTHS, "batching.token_budget=2000", "optim.accumulate=4", "pipeline.targets=3", "pipeline.drafters=2",
                         "optim.epochs=2", *chosen, costs=COSTS)  # fmt: skip
    due, turn = sorted(changes), 0

    def turned(coordinator):
        nonlocal turn
        turn += 1
        while due and due[0][0] <= turn:
            _, key, value = due.pop(0)
            section, _, name = key.partition(".")
            tree = coordinator.config.model_dump(mode="json")
            tree[section][name] = value
            coordinator.change(build_config(tree))

    seen.turned = turned
    assert run.run() == "finished"
    return run, seen


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 500), st.sampled_from(CHANGES)), max_size=6))
def test_every_sample_once_an_epoch_whatever_is_changed_live(simulate, changes):
    run, seen = run_with_changes(simulate, [(turn, *change) for turn, change in changes])
    assert dict(seen.trained_samples) == {(epoch, sample): 1 for epoch in range(2) for sample in range(len(LENGTHS))}
    assert [report.step for report in seen.steps] == list(range(1, run.progress.step + 1))
    assert run.total_steps == run.progress.step
    assert run.stock.pool.held_bytes == 0


@pytest.mark.parametrize("turn", [3, 50, 117, 201])
def test_windows_after_a_replan_are_stratified_again(simulate, turn):
    _, seen = run_with_changes(simulate, [(turn, "batching.jitter", 1)], "optim.accumulate=8")
    new = [[trained.batch for trained in report.batches] for report in seen.steps if report.epoch == 0]
    whole = [window for window in new if len(window) == 8 and all(batch.id.segment == 1 for batch in window)]
    everything = [batch.longest for window in whole for batch in window]
    middles = [np.mean([batch.longest for batch in window]) for window in whole]
    if len(whole) > 2:
        assert np.std(middles) < 0.35 * np.std(everything) / np.sqrt(8)


def test_a_change_survives_a_checkpoint(simulate):
    states = []

    class Store:
        def begin(self, step, *, weights_only=False):
            from dflash.pipeline.jobs import Save

            return Save(None)

        def commit(self, step, state):
            states.append(json.loads(json.dumps(state)))

    chosen = ("batching.token_budget=2000", "optim.accumulate=4", "optim.epochs=1", "pipeline.targets=2")
    run, seen = simulate(LENGTHS, *chosen, costs=COSTS, checkpointer=Store())
    stepped = seen.stepped

    def change_then_stop(report):
        stepped(report)
        if report.step == 2:
            tree = run.config.model_dump(mode="json")
            tree["batching"]["strategy"] = "packed"
            run.change(build_config(tree))
        run.stop_requested = report.step == 4

    seen.stepped = change_then_stop
    run.run()
    seen.stepped = stepped
    rest, _ = simulate(LENGTHS, *chosen, "batching.strategy=packed", costs=COSTS, state=states[-1], watcher=seen)
    assert rest.run() == "finished"
    assert set(seen.trained_samples.values()) == {1}
    assert len(seen.trained_samples) == len(LENGTHS)


def test_settings_changed_between_sessions_replan_the_rest(simulate):
    states = {}

    class Store:
        def begin(self, step, *, weights_only=False):
            from dflash.pipeline.jobs import Save

            return Save(None)

        def commit(self, step, state):
            states[step] = json.loads(json.dumps(state))

    chosen = ("batching.token_budget=2000", "optim.accumulate=4", "optim.epochs=1")
    run, seen = simulate(LENGTHS, *chosen, "optim.max_steps=5", costs=COSTS, checkpointer=Store())
    run.run()
    rest, _ = simulate(
        LENGTHS, *chosen, "batching.strategy=shuffled", "optim.accumulate=7", costs=COSTS, state=states[5], watcher=seen
    )
    rest.run()
    assert set(seen.trained_samples.values()) == {1}
    assert len(seen.trained_samples) == len(LENGTHS)


@pytest.fixture
def live_run(tmp_path, simulate):
    """A run folder with its mailbox, and `steer(*commands)`: run the coordinator with these commands in the inbox from the start."""
    config = build_config({"data": {"path": "none"}, "target": {"path": "none"}})
    run = create_run(tmp_path, "live", config)

    def steer(put):
        with run.driven(), Recorder(run.events, "coordinator") as recorder:
            coordinator, seen = simulate(LENGTHS, "batching.token_budget=2000", "optim.accumulate=4", "optim.epochs=1", costs=COSTS)
            control = LiveControl(run, recorder, lambda line: None)
            put(run)

            def turned(coordinator):
                control._next_poll = 0.0
                control.obey(coordinator)

            seen.turned = turned
            state = coordinator.run()
        return coordinator, state, read_events(run.events, "change")

    steer.run = run
    return steer


def test_an_accepted_command_is_answered_and_kept_in_the_config(live_run):
    coordinator, state, changes = live_run(lambda run: send_command(run, "set", key="pool.policy", value="deficit", who="ann"))
    assert state == "finished"
    (change,) = changes
    assert (change["who"], change["old"], change["new"], change["accepted"]) == ("ann", "oldest", "deficit", True)
    assert coordinator.config.pool.policy == live_run.run.config().pool.policy == "deficit"
    assert os.listdir(live_run.run.path / "control/inbox") == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("optim.lr", 1.0, "can't be changed while a run trains"),
        ("pool.policy", "clever", "pool.policy"),
        ("pool.polisy", "oldest", "can't be changed"),
        ("batching.boundaries", [0, 50], "they end below"),
        ("batching.boundaries", "abc", "valid list"),
        ("pool.capacity_bytes", 10, "smaller than the features"),
        ("optim.accumulate", 0, "greater than or equal to 1"),
    ],
)
def test_a_refused_command_says_why_and_changes_nothing(live_run, key, value, reason):
    coordinator, state, changes = live_run(lambda run: send_command(run, "set", key=key, value=value))
    assert state == "finished"
    (change,) = changes
    assert change["accepted"] is False
    assert reason in change["reason"]
    assert coordinator.config.model_dump(exclude={"pipeline"}) == build_config(
        {"data": {"path": "none"}, "target": {"path": "none"}},
        ["batching.token_budget=2000", "optim.accumulate=4", "optim.epochs=1"],
    ).model_dump(exclude={"pipeline"})  # fmt: skip


def test_stop_and_checkpoint_are_obeyed(live_run):
    _, state, changes = live_run(lambda run: (send_command(run, "checkpoint"), send_command(run, "stop")))
    assert state == "stopped"
    assert [change["action"] for change in changes] == ["checkpoint", "stop"]


def test_junk_in_the_inbox_is_refused_and_harms_nothing(live_run, tmp_path):
    def junk(run):
        inbox = run.path / "control" / "inbox"
        inbox.mkdir(parents=True)
        (inbox / "a.json").write_bytes(os.urandom(200))
        (inbox / "b.json").write_text("[" * 50_000)
        (inbox / "c.json").write_text(json.dumps({"action": "set", "key": "x" * LARGEST_COMMAND_BYTES}))
        (inbox / "d.json").write_text('"text"')
        (inbox / "e.json").symlink_to("/etc/passwd")
        (inbox / "f.json").mkdir()
        os.mkfifo(inbox / "g.json")
        (inbox / "h.json").write_text(json.dumps({"id": "old", "session": "another", "action": "stop"}))
        (inbox / "i.json").write_text(
            json.dumps({"action": "explode", "session": json.loads((run.path / "process.json").read_text())["session"]})
        )

    _, state, changes = live_run(junk)
    assert state == "finished"
    assert len(changes) == 9
    assert not any(change["accepted"] for change in changes)
    reasons = " | ".join(change["reason"] for change in changes)
    for reason in ("not JSON", "64", "no JSON object", "can't be opened", "no regular file", "earlier session", "no such action"):
        assert reason in reasons
    assert os.listdir(live_run.run.path / "control/inbox") == []


def test_a_burst_is_obeyed_in_order(live_run):
    draws = random.Random(0)
    values = [draws.randint(1, 50) for _ in range(300)]
    coordinator, state, changes = live_run(
        lambda run: [send_command(run, "set", key="pool.capacity_items", value=value) for value in values]
    )
    assert state == "finished"
    assert [change["new"] for change in changes] == values[: len(changes)]
    assert len(changes) >= 200
    assert coordinator.stock.pool.capacity_items == changes[-1]["new"]


def test_commands_to_a_run_that_is_not_running_are_refused(tmp_path):
    run = create_run(tmp_path, "idle", build_config({"data": {"path": "none"}, "target": {"path": "none"}}))
    with pytest.raises(RefusedInput, match=r"is new: nobody would read the command"):
        send_command(run, "stop")
    with pytest.raises(RefusedInput, match="no such action"):
        send_command(run, "explode")


def test_every_live_key_is_a_setting():
    from dflash.config import known_keys

    assert set(LIVE_KEYS) <= set(known_keys())


def test_littles_law_and_charts_survive_a_change_of_buckets(tmp_path, simulate):
    """Depths a bucket begin anew with new boundaries; the whole pool's go on, so nothing that reads them sees a negative queue."""
    from dflash.analysis.flow import _queue
    from dflash.pipeline.reporting import RunReporter

    with Recorder(tmp_path, "coordinator") as recorder:
        run, seen = simulate(LENGTHS, "batching.token_budget=2000", "optim.accumulate=4", "optim.epochs=3", costs=COSTS)
        reporter = RunReporter(run.config, recorder, lambda line: None, run_tokens=1)
        stepped = seen.stepped

        def sample_and_change(report):
            stepped(report)
            reporter.sample(run, run.engine.now())
            if report.step == 6:
                tree = run.config.model_dump(mode="json")
                tree["batching"]["boundaries"] = [0, 200, 400]
                run.change(build_config(tree))

        seen.stepped = sample_and_change
        run.run()
    samples = read_events(tmp_path, "sample")
    pools = [(sample["clock_seconds"], queue) for sample in samples for queue in sample["queues"] if queue["queue"] == "pool"]
    (began, first), (ended, last) = pools[0], pools[-1]
    queue = _queue(first, last, ended - began)
    assert len(last["depths"]) == 2
    assert queue.depth >= 0
    assert all(depth >= 0 for depth in queue.by_bucket)
    assert queue.little == pytest.approx(1.0, abs=0.1)
