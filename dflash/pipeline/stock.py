"""Batches in stock: read and waiting for a target (`ready`), or with features and waiting for a drafter (`pool`), and the room they take.

Both are bounded. What comes first in the plan comes first here, so a batch that a lost worker leaves undone is made again before new work.
By then the stock may be full of the next epoch's batches, which no drafter takes before the batch is trained: the latest of them then gives
its place up and is made again later. So there is always room for what the drafters wait for, whatever the policy and the bounds, and
whatever was lost, late or changed; it costs the target a second pass over as many batches as were lost.
"""

from __future__ import annotations

import bisect
from dataclasses import replace
from typing import Any, NamedTuple

from dflash.config import RunConfig
from dflash.errors import RefusedInput
from dflash.pipeline.jobs import Completion, Engine, PlannedBatch, Prefetch, Produce
from dflash.pipeline.ledger import BatchId, BatchState, Ledger
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reports import Passage, Trained
from dflash.pool.policies import POLICIES, PolicyState
from dflash.pool.pool import FeaturePool, PoolItem
from dflash.telemetry.accounts import QueueAccount


class Ready(NamedTuple):
    """A batch that was read, and when."""

    batch: PlannedBatch
    arrived: float


class Stock:
    """What lies between the plan and the drafters.

    Attributes:
        ready: batches that were read, in plan order.
        pool: features that no drafter has taken yet.
        queues: depth of both over time, by name.
        passages: of every batch that was read and is not trained yet.
        policy_state: what the pull policy remembers.
        turn: the coordinator's, for the passages.
    """

    def __init__(self, config: RunConfig, stream: PlanStream, ledger: Ledger, engine: Engine, feature_bytes_per_token: int) -> None:
        self.config, self.stream, self.ledger, self.engine = config, stream, ledger, engine
        self.feature_bytes_per_token = feature_bytes_per_token
        buckets = len(stream.boundaries) - 1
        self.pool: FeaturePool[BatchId] = FeaturePool(config.pool.capacity_items, config.pool.capacity_bytes, buckets)
        self.policy_state = PolicyState(buckets, config.batching.seed, config.pool.wait_seconds)
        self.ready: list[Ready] = []
        self.passages: dict[BatchId, Passage] = {}
        self.turn = 0
        self._batches: dict[BatchId, PlannedBatch] = {}
        now = engine.now()
        self.queues = {"prefetch": QueueAccount("prefetch", 1, now), "pool": QueueAccount("pool", buckets, now)}
        self.refuse_items_larger_than_the_pool(config)

    # ---- on the way to a target

    def next_to_read(self, reading: int) -> PlannedBatch | None:
        """A batch for a free reader, when there is place for it; `reading` are with readers already."""
        batch = self.stream.peek()
        if batch is None:
            return None
        if len(self.ready) + reading >= self.config.pipeline.prefetch:
            if not self.ready or not batch.id.epoch == self.ledger.epochs_done < self.ready[-1].batch.id.epoch:
                return None  # only what was lost or planned anew comes before what was read already
            self._give_up_ready()
        batch = self._batches[batch.id] = self.stream.issue()
        return batch

    def was_read(self, batch: PlannedBatch, seconds: float) -> None:
        """A reader is done with a batch."""
        now = self.engine.now()
        self.passages[batch.id] = Passage({"prefetch": seconds}, [self.turn])
        bisect.insort(self.ready, Ready(batch, now), key=lambda each: each.batch.id)
        self.queues["prefetch"].put(0, now)

    def next_to_produce(self) -> PlannedBatch | None:
        """A batch for a free target, with its room in the pool reserved."""
        if not self.ready or not (self.has_room() or self._make_room()):
            return None
        batch, arrived = self.ready.pop(0)
        self.queues["prefetch"].get(0, self.engine.now(), arrived)
        self.pool.reserve(batch.id, self._feature_bytes(batch))
        return batch

    def has_room(self) -> bool:
        """Whether the pool has room for the batch that is next for a target."""
        return self.pool.has_room(self._feature_bytes(self.ready[0].batch))

    def mark_full(self) -> None:
        """Note whether the pool keeps targets waiting."""
        self.queues["pool"].mark_full(bool(self.ready) and not self.has_room(), self.engine.now())

    # ---- on the way to a drafter

    def was_produced(self, batch: BatchId, seconds: float) -> None:
        """A target is done with a batch."""
        now, described = self.engine.now(), self._batches[batch]  # its bucket may have changed since the job was given out
        self.passages[batch].seconds["target"] = seconds
        self.passages[batch].turns.append(self.turn)
        self.ledger.advance(batch, BatchState.POOLED)
        self.pool.put(PoolItem(batch, described.bucket, described.tokens, self._feature_bytes(described), now))
        self.queues["pool"].put(described.bucket, now)

    def pull(self, drafter: int, epoch: int) -> PlannedBatch | None:
        """The item of an epoch that the policy chooses for a free drafter; None: there is none, or the policy waits."""
        candidates = [item for item in self.pool.items if item.key.epoch == epoch]
        if not candidates:
            return None
        now = self.policy_state.now = self.engine.now()
        item = POLICIES[self.config.pool.policy](candidates, drafter, self.policy_state)
        if item is None:
            return None
        self._take(item)
        self.policy_state.note_pull(item, drafter)
        self.ledger.advance(item.key, BatchState.TAKEN)
        self.passages[item.key].seconds["residence"] = now - item.arrived
        self.passages[item.key].turns.append(self.turn)
        return self._batches[item.key]

    def was_trained(self, batch: BatchId, drafter: int, ended: Completion) -> Trained:
        """A drafter is done with a batch, and so is the stock. Returns its whole way."""
        passage = self.passages.pop(batch)
        seconds, turns = {**passage.seconds, "drafter": ended.busy_seconds}, [*passage.turns, self.turn]
        self.engine.forget(batch)
        return Trained(self._batches.pop(batch), drafter, ended.result, seconds, turns)

    # ---- made again

    def was_lost(self, job: Prefetch | Produce) -> None:
        """A worker is gone with a batch: its room is free again, and it is next to be read."""
        if isinstance(job, Produce):
            self.pool.cancel(job.batch.id)
        self._make_again(job.batch.id)

    def _make_room(self) -> bool:
        """Give up features of later epochs if drafters would wait in vain for a batch of this one. Returns whether there is room."""
        epoch = self.ledger.epochs_done
        if self.ready[0].batch.id.epoch != epoch or any(key.epoch == epoch for key in self.pool.names()):
            return False
        while self.pool.items and not self.has_room():
            latest = max(self.pool.items, key=lambda item: item.key)
            self._take(latest)
            self._make_again(latest.key)
        return self.has_room()

    def _give_up_ready(self) -> None:
        batch, arrived = self.ready.pop()
        self.queues["prefetch"].get(0, self.engine.now(), arrived)
        self._make_again(batch.id)

    def _make_again(self, batch: BatchId) -> None:
        self.engine.forget(batch)
        self.passages.pop(batch, None)
        del self._batches[batch]
        self.stream.give_back(batch)

    def _take(self, item: PoolItem[BatchId]) -> None:
        self.pool.take(item)
        self.queues["pool"].get(item.bucket, self.engine.now(), item.arrived)

    # ---- settings

    def change(self, config: RunConfig) -> None:
        """Take over changed settings; the stream has them already."""
        self.config = config
        self.pool.capacity_items, self.pool.capacity_bytes = config.pool.capacity_items, config.pool.capacity_bytes
        self.policy_state.wait_seconds = config.pool.wait_seconds

    def sort_into_new_buckets(self) -> None:
        """The stream's boundaries are others now."""
        now, buckets = self.engine.now(), len(self.stream.boundaries) - 1
        for key, batch in self._batches.items():
            self._batches[key] = replace(batch, bucket=self.stream.bucket(batch.longest))
        self.pool.buckets = buckets
        self.pool.items = [replace(item, bucket=self._batches[item.key].bucket) for item in self.pool.items]
        self.policy_state = PolicyState(buckets, self.policy_state.seed, self.config.pool.wait_seconds)
        self.queues["pool"] = self.queues["pool"].with_buckets(self.pool.histogram(), now)

    def refuse_items_larger_than_the_pool(self, config: RunConfig) -> None:
        """The largest batch of the first epoch must fit into the pool.

        Raises:
            RefusedInput: it does not.
        """
        largest = self.stream.largest_batch_tokens() * self.feature_bytes_per_token
        if largest > config.pool.capacity_bytes:
            raise RefusedInput(
                f"pool.capacity_bytes={config.pool.capacity_bytes:,} is smaller than the features of the largest batch "
                f"({largest:,} bytes): raise it, or lower batching.token_budget"
            )

    def saved_policy(self) -> dict[str, Any]:
        """What a checkpoint keeps of the stock: the policy's memory. The batches themselves are made again."""
        return self.policy_state.saved()

    def _feature_bytes(self, batch: PlannedBatch) -> int:
        return batch.tokens * self.feature_bytes_per_token
