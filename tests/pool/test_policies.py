from collections import Counter
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.config import Policy
from dflash.pool.policies import POLICIES, PolicyState
from dflash.pool.pool import PoolItem

NEVER_WAIT = sorted(set(POLICIES) - {"round_robin_wait"})


def pool_of(*buckets):
    return [PoolItem(key, bucket, tokens=1, feature_bytes=1, arrived=float(key)) for key, bucket in enumerate(buckets)]


def pulled(policy, items, state, drafter=0):
    chosen = POLICIES[policy](items, drafter, state)
    state.note_pull(chosen, drafter)
    return chosen


def test_config_and_registry_name_the_same_policies():
    assert set(get_args(Policy)) == set(POLICIES)


@pytest.mark.parametrize("policy", NEVER_WAIT)
@given(buckets=st.lists(st.integers(0, 5), min_size=1, max_size=20), drafter=st.integers(0, 2), seed=st.integers(0, 99))
def test_policies_choose_one_that_is_there_and_never_wait(policy, buckets, drafter, seed):
    items = pool_of(*buckets)
    assert POLICIES[policy](items, drafter, PolicyState(6, seed)) in items


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"random"}))
def test_within_a_bucket_plan_order_holds(policy):
    items = [PoolItem(key, 0, tokens=1, feature_bytes=1, arrived=0.0) for key in (7, 3, 5)]
    assert POLICIES[policy](items, 0, PolicyState(1)).key == 3


def test_longest_queue_takes_from_the_fullest_bucket():
    assert pulled("longest_queue", pool_of(0, 2, 2, 1), PolicyState(3)).bucket == 2


def test_round_robin_skips_empty_buckets_and_keeps_a_cursor_a_drafter():
    state = PolicyState(4)
    items = pool_of(1, 1, 3, 3)
    assert [pulled("round_robin", items, state, drafter=0).bucket for _ in range(3)] == [1, 3, 1]
    assert pulled("round_robin", items, state, drafter=1).bucket == 1


def test_deficit_follows_the_shares():
    state = PolicyState(3, shares=[0.5, 0.3, 0.2])
    counts = Counter(pulled("deficit", pool_of(0, 1, 2), state).bucket for _ in range(100))
    assert counts == {0: 50, 1: 30, 2: 20}


def test_random_depends_on_seed_and_pulls_alone():
    items = pool_of(*range(6))
    first = [pulled("random", items, state).key for state in [PolicyState(6, seed=3)] for _ in range(60)]
    again = [pulled("random", items, state).key for state in [PolicyState(6, seed=3)] for _ in range(60)]
    other = [pulled("random", items, state).key for state in [PolicyState(6, seed=4)] for _ in range(60)]
    assert first == again != other
    assert len(set(first)) == 6


def test_round_robin_wait_waits_for_its_bucket_until_its_patience_ends():
    state = PolicyState(3, wait_seconds=5.0)
    items = pool_of(1, 2)
    state.now = 10.0
    assert POLICIES["round_robin_wait"](items, 0, state) is None
    state.now = 14.9
    assert POLICIES["round_robin_wait"](items, 0, state) is None
    state.now = 15.0
    assert pulled("round_robin_wait", items, state).bucket == 1
    assert pulled("round_robin_wait", items, state).bucket == 2


def test_state_survives_a_checkpoint():
    state = PolicyState(3, seed=1)
    for _ in range(5):
        pulled("round_robin", pool_of(0, 1, 2), state, drafter=1)
    again = PolicyState(3, seed=1)
    again.restore(state.saved())
    assert (again.pulls, again.served, again.cursors) == (state.pulls, state.served, state.cursors)
