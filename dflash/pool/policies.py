"""Pull policies: which ready item a free drafter takes.

A policy is one function `(items, drafter, state) -> item or None` in this file, entered in `POLICIES`; the command line, the
simulator and the widgets find it there. `items` is never empty and in order of arrival. Policies choose among what is there and
do not wait (DESIGN, rule 2); the one exception, `round_robin_wait`, is kept to reproduce the field record and returns None while
its bucket is empty and its patience lasts.

With a plan in stratified order the best policy is the plainest, `oldest`: it keeps the mix the planner made. `random` throws half of
that mix away whenever drafters are the bottleneck; `deficit` and `round_robin` matter only for plans without an order.

Nothing starves under `oldest`: an item is overtaken only by items before it in the plan. `round_robin` serves each bucket that
holds anything once in `buckets` pulls of one drafter. The bound of `random`, `longest_queue` and `deficit` is the epoch: an item is
pulled before any item of a later epoch is, under every policy.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash.pool.pool import PoolItem, count_buckets, oldest_in, oldest_of

Items = Sequence[PoolItem[Any]]


@dataclass
class PolicyState:
    """What policies remember. It goes into checkpoints, so that a resumed run pulls as the other would have."""

    buckets: int
    seed: int = 0
    wait_seconds: float | None = None
    shares: list[float] = field(default_factory=list)
    """Share of the plan's batches a bucket; empty: all alike."""
    pulls: int = 0
    served: list[int] = field(default_factory=list)
    cursors: dict[int, int] = field(default_factory=dict)
    waiting_since: dict[int, float] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.served = self.served or [0] * self.buckets

    def note_pull(self, item: PoolItem[Any], drafter: int) -> None:
        """Record that a drafter took an item."""
        self.pulls += 1
        self.served[item.bucket] += 1
        self.waiting_since.pop(drafter, None)

    def saved(self) -> dict[str, Any]:
        """What a checkpoint needs; waits are measured anew after a resume."""
        return {"pulls": self.pulls, "served": self.served, "cursors": {str(k): v for k, v in self.cursors.items()}}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take over what `saved` gave; the counts start anew if the buckets are others."""
        self.pulls = int(saved["pulls"])
        if len(saved["served"]) == self.buckets:
            self.served = [int(count) for count in saved["served"]]
            self.cursors = {int(k): int(v) for k, v in saved["cursors"].items()}


Policy = Callable[[Items, int, PolicyState], "PoolItem[Any] | None"]


def oldest(items: Items, drafter: int, state: PolicyState) -> PoolItem[Any]:
    """The first in plan order."""
    return oldest_of(items)


def random(items: Items, drafter: int, state: PolicyState) -> PoolItem[Any]:
    """Any item, with equal chances; drawn from (seed, pulls so far)."""
    return random_module.Random(f"{state.seed}/{state.pulls}").choice(items)


def longest_queue(items: Items, drafter: int, state: PolicyState) -> PoolItem[Any]:
    """The oldest item of the fullest bucket."""
    histogram = count_buckets((item.bucket for item in items), state.buckets)
    return oldest_in(items, histogram.index(max(histogram)))


def round_robin(items: Items, drafter: int, state: PolicyState) -> PoolItem[Any]:
    """The next bucket in turn that holds anything, each drafter with its own cursor."""
    filled = {item.bucket for item in items}
    cursor = state.cursors.get(drafter, 0)
    bucket = next(b % state.buckets for b in range(cursor, cursor + state.buckets) if b % state.buckets in filled)
    state.cursors[drafter] = (bucket + 1) % state.buckets
    return oldest_in(items, bucket)


def deficit(items: Items, drafter: int, state: PolicyState) -> PoolItem[Any]:
    """The oldest item of the bucket that is furthest behind its share of the plan."""
    shares = state.shares or [1 / state.buckets] * state.buckets
    filled = sorted({item.bucket for item in items})
    behind = [shares[bucket] * (state.pulls + 1) - state.served[bucket] for bucket in filled]
    return oldest_in(items, filled[behind.index(max(behind))])


def round_robin_wait(items: Items, drafter: int, state: PolicyState) -> PoolItem[Any] | None:
    """The record's: the next bucket in turn, waited for while it is empty; after `wait_seconds` the turn moves on.

    Without `wait_seconds` it waits for ever, and on a bounded pool that is a deadlock.
    """
    cursor = state.cursors.get(drafter, 0)
    if all(item.bucket != cursor for item in items):
        since = state.waiting_since.setdefault(drafter, state.now)
        if state.wait_seconds is None or state.now < since + state.wait_seconds:
            return None
        return round_robin(items, drafter, state)
    state.cursors[drafter] = (cursor + 1) % state.buckets
    return oldest_in(items, cursor)


POLICIES: dict[str, Policy] = {
    "oldest": oldest,
    "random": random,
    "longest_queue": longest_queue,
    "round_robin": round_robin,
    "deficit": deficit,
    "round_robin_wait": round_robin_wait,
}
