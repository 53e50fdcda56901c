"""The bounded pool of ready features between targets and drafters.

Room is reserved BEFORE a target starts on a batch, by the bytes its features will take, so the pool never holds more than its
bounds, what is being produced included; a target that finds no room is blocked. The alternative, producing first and then
waiting with the result in hand, holds one more item a target than anybody has counted.

The pool holds descriptions, not tensors: the features themselves stay with the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar


class Ordered(Protocol):
    """What names a batch: something that sorts in plan order."""

    def __lt__(self, other: Any, /) -> bool: ...


Key = TypeVar("Key", bound=Ordered)


@dataclass(frozen=True, slots=True)
class PoolItem(Generic[Key]):
    """Features of one batch, ready for a drafter.

    `key` names the batch; keys sort in plan order. `arrived` is the engine's time in seconds.
    """

    key: Key
    bucket: int
    tokens: int
    feature_bytes: int
    arrived: float


class FeaturePool(Generic[Key]):
    """Ready items in order of arrival, bounded in items and in bytes."""

    def __init__(self, capacity_items: int, capacity_bytes: int, buckets: int) -> None:
        self.capacity_items = capacity_items
        self.capacity_bytes = capacity_bytes
        self.buckets = buckets
        self.items: list[PoolItem[Key]] = []
        self._reserved: dict[Key, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def held_bytes(self) -> int:
        """Bytes of ready items and of those being produced."""
        return self._bytes

    def has_room(self, feature_bytes: int) -> bool:
        """Whether an item of so many bytes may be produced now. Alone it always may: a later epoch's largest batch is not known yet."""
        held = len(self.items) + len(self._reserved)
        return not held or (held < self.capacity_items and self._bytes + feature_bytes <= self.capacity_bytes)

    def names(self) -> Iterator[Key]:
        """Names of all items, ready ones and those being produced."""
        yield from (item.key for item in self.items)
        yield from self._reserved

    def reserve(self, key: Key, feature_bytes: int) -> None:
        """Keep room for an item about to be produced. The caller has asked `has_room`."""
        if key in self._reserved:
            raise ValueError(f"batch {key} has room reserved already")
        self._reserved[key] = feature_bytes
        self._bytes += feature_bytes

    def cancel(self, key: Key) -> None:
        """Give back the room of an item that will not come."""
        self._bytes -= self._reserved.pop(key)

    def put(self, item: PoolItem[Key]) -> None:
        """Add a produced item, using the room reserved for it."""
        self._bytes += item.feature_bytes - self._reserved.pop(item.key)
        self.items.append(item)

    def take(self, item: PoolItem[Key]) -> None:
        """Remove an item that a drafter pulled."""
        self.items.remove(item)
        self._bytes -= item.feature_bytes

    def histogram(self) -> list[int]:
        """Ready items a length bucket (`q_hsb` of the console line)."""
        return count_buckets((item.bucket for item in self.items), self.buckets)


def count_buckets(buckets: Iterable[int], count: int) -> list[int]:
    """How often each of `count` buckets occurs."""
    histogram = [0] * count
    for bucket in buckets:
        histogram[bucket] += 1
    return histogram


def oldest_in(items: Sequence[PoolItem[Key]], bucket: int) -> PoolItem[Key]:
    """The item of a bucket that comes first in plan order."""
    return min((item for item in items if item.bucket == bucket), key=_plan_order)


def oldest_of(items: Sequence[PoolItem[Key]]) -> PoolItem[Key]:
    """The item that comes first in plan order."""
    return min(items, key=_plan_order)


def _plan_order(item: PoolItem[Key]) -> Key:
    return item.key
