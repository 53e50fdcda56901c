import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.pool.pool import FeaturePool, PoolItem


def item(key, bucket=0, feature_bytes=10):
    return PoolItem(key, bucket, tokens=1, feature_bytes=feature_bytes, arrived=0.0)


def test_room_counts_what_is_being_produced():
    pool = FeaturePool(capacity_items=2, capacity_bytes=100, buckets=1)
    pool.reserve(0, 10)
    pool.reserve(1, 10)
    assert not pool.has_room(10)
    pool.put(item(0))
    assert not pool.has_room(10)
    pool.take(pool.items[0])
    assert pool.has_room(10)


def test_room_is_bounded_in_bytes():
    pool = FeaturePool(capacity_items=10, capacity_bytes=25, buckets=1)
    pool.reserve(0, 20)
    assert not pool.has_room(6)
    assert pool.has_room(5)


def test_a_cancelled_item_gives_its_room_back():
    pool = FeaturePool(capacity_items=1, capacity_bytes=20, buckets=1)
    pool.reserve(0, 20)
    pool.cancel(0)
    assert pool.has_room(20)
    assert pool.held_bytes == 0


def test_reserving_twice_is_a_fault():
    pool = FeaturePool(capacity_items=3, capacity_bytes=100, buckets=1)
    pool.reserve(0, 1)
    with pytest.raises(ValueError, match="reserved already"):
        pool.reserve(0, 1)


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["make", "put", "take", "lose"])), max_size=60))
def test_never_above_its_bounds_and_bytes_add_up(moves):
    pool = FeaturePool(capacity_items=4, capacity_bytes=100, buckets=3)
    making: dict[int, int] = {}
    for key, (size, move) in enumerate(moves):
        if move == "make" and pool.has_room(size):
            pool.reserve(key, size)
            making[key] = size
        elif move == "put" and making:
            oldest = min(making)
            pool.put(item(oldest, oldest % 3, making.pop(oldest)))
        elif move == "lose" and making:
            pool.cancel(min(making))
            del making[min(making)]
        elif move == "take" and len(pool):
            pool.take(pool.items[-1])
        held = sum(each.feature_bytes for each in pool.items) + sum(making.values())
        assert pool.held_bytes == held <= pool.capacity_bytes
        assert len(pool) + len(making) <= pool.capacity_items
        assert sum(pool.histogram()) == len(pool)
