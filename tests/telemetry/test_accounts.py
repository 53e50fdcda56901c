import random

import pytest

from dflash.telemetry.accounts import STATES, QueueAccount, WorkerAccount


def test_states_of_a_worker_sum_to_wall_time():
    draws = random.Random(0)
    account, now = WorkerAccount("target-0", 5.0), 5.0
    for _ in range(500):
        now += draws.random()
        if draws.random() < 0.5:
            account.enter(draws.choice(STATES), now)
        else:
            account.enter("busy", now)
            now += draws.random()
            account.finish(now, draws.random(), draws.choice(("busy", "evaluation")), {"compile": draws.random() * 0.2})
    snapshot = account.snapshot(now)
    assert sum(snapshot[f"{state}_seconds"] for state in STATES) == pytest.approx(now - 5.0, abs=1e-3)


def test_elapsed_beyond_what_the_worker_reports_is_copy():
    account = WorkerAccount("drafter-0", 0.0)
    account.enter("busy", 0.0)
    account.finish(1.0, 0.7, "busy", {"blocked": 0.1})
    assert {state: spent for state, spent in account.seconds.items() if spent} == pytest.approx(
        {"busy": 0.7, "blocked": 0.1, "copy": 0.2}
    )


def test_a_clock_that_goes_back_takes_nothing_away():
    account = WorkerAccount("target-0", 10.0)
    account.enter("busy", 8.0)
    account.enter("blocked", 11.0)
    assert account.seconds["busy"] == 1.0
    assert min(account.seconds.values()) >= 0


def test_littles_law_holds_for_a_queue_that_was_emptied():
    draws = random.Random(1)
    queue, now, held = QueueAccount("pool", 3, 0.0), 0.0, []
    for _ in range(400):
        now += draws.expovariate(1.0)
        if held and draws.random() < 0.5:
            bucket, arrived = held.pop(draws.randrange(len(held)))
            queue.get(bucket, now, arrived)
        else:
            held.append((draws.randrange(3), now))
            queue.put(held[-1][0], now)
    for bucket, arrived in held:
        queue.get(bucket, now, arrived)
    snapshot = queue.snapshot(now)
    mean_depth = sum(snapshot["depth_seconds"]) / now
    rate, residence = snapshot["gets"] / now, snapshot["residence_seconds"] / snapshot["gets"]
    assert mean_depth == pytest.approx(rate * residence, rel=1e-6)
    assert snapshot["depths"] == [0, 0, 0]
