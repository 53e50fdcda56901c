"""What holds for every plan and every run, whatever the lengths, the settings, and what is changed on the way."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.plan import plan_epoch
from dflash.config import BatchingConfig, build_config
from dflash.pipeline.coordinator import Coordinator
from dflash.pipeline.engines.simulated import CostModel, SimulatedEngine
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reports import Progress
from dflash.pool.policies import POLICIES
from dflash.predict.simulation import Watcher
from tests.pipeline.kept_states import Store

STRATEGIES = ["sorted", "shuffled", "bucketed", "jittered", "packed"]
NEVER_WAIT = sorted(set(POLICIES) - {"round_robin_wait"})
LIMIT = 64

shapes_of_lengths = st.one_of(
    st.lists(st.integers(1, LIMIT), min_size=1, max_size=70),
    st.integers(1, LIMIT).map(lambda length: [length]),
    st.integers(1, 60).map(lambda samples: [LIMIT] * samples),
    st.tuples(st.integers(1, LIMIT), st.integers(1, 60)).map(lambda each: [each[0]] * each[1]),
)
"""Any lengths; one sample; all at the limit; all equal."""
boundaries_to_cover = st.sampled_from([None, [0, LIMIT], [0, 1, 2, 3, LIMIT], [0, LIMIT, LIMIT + 1, LIMIT + 2], [0, 20, 40, LIMIT]])
"""By quantiles; one bucket; some that are empty."""


class Witness(Watcher):
    """Keeps windows as batch ids, and the most bytes and items that the pool held after any turn."""

    def __init__(self):
        super().__init__(float("inf"))
        self.ids, self.most_items = [], 0
        self.change_at = {}
        self.turns = 0

    def trained(self, trained):
        pass

    def stepped(self, report):
        self.ids.append([trained.batch.id for trained in report.batches])
        self.windows.append([trained.batch for trained in report.batches])

    def turned(self, coordinator):
        super().turned(coordinator)
        self.most_items = max(self.most_items, len(coordinator.stock.pool) + coordinator.crew.busy("target"))
        self.turns += 1
        for key, value in self.change_at.pop(self.turns, {}).items():
            section, _, name = key.partition(".")
            tree = coordinator.config.model_dump(mode="json")
            tree[section][name] = value
            coordinator.change(build_config(tree))


def coordinator_of(lengths, sets, *, state=None, store=None, noise=0.3, change_at=None):
    """A run on the simulated engine, new or from a checkpoint's state."""
    config = build_config({"data": {"path": "-"}, "target": {"path": "-"}, "pipeline": {"engine": "simulated"}}, sets)
    lengths = np.asarray(lengths, np.int32)
    ledger = Ledger.restored(state["ledger"]) if state else Ledger()
    witness = Witness()
    witness.change_at = change_at or {}
    coordinator = Coordinator(
        config,
        PlanStream(lengths, np.arange(len(lengths)), config, ledger),
        ledger,
        SimulatedEngine(config.pipeline, CostModel(noise=noise)),
        witness,
        feature_bytes_per_token=10,
        checkpointer=store,
        progress=Progress(**state["progress"]) if state else None,
        saved_policy=state["policy"] if state else None,
    )
    witness.coordinator = coordinator
    return coordinator, witness


def settings_of(strategy, order, boundaries, accumulate, *others):
    boundaries = "null" if boundaries is None else str(boundaries)
    return [
        f"batching.strategy={strategy}", f"batching.order={order}", f"batching.boundaries={boundaries}", "batching.jitter=3",
        f"optim.accumulate={accumulate}", "optim.epochs=2", *others,
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    lengths=shapes_of_lengths,
    boundaries=boundaries_to_cover,
    strategy=st.sampled_from(STRATEGIES),
    order=st.sampled_from(["random", "stratified"]),
    policy=st.sampled_from(NEVER_WAIT),
    spare=st.sampled_from([0, 1, 100]),
    topology=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    capacity=st.integers(1, 4),
    accumulate=st.integers(1, 6),
)
def test_any_lengths_any_boundaries_and_a_budget_of_one_row_make_progress_within_the_pools_bytes(
    lengths, boundaries, strategy, order, policy, spare, topology, capacity, accumulate
):
    budget = max(lengths) + spare
    pool_bytes = 10 * budget  # room for one full batch
    sets = settings_of(
        strategy, order, boundaries, accumulate, f"batching.token_budget={budget}", f"pool.policy={policy}", f"pipeline.targets={topology[0]}",
        f"pipeline.drafters={topology[1]}", f"pool.capacity_items={capacity}", f"pool.capacity_bytes={pool_bytes}",
    )  # fmt: skip
    coordinator, witness = coordinator_of(lengths, sets)
    assert coordinator.run() == "finished"
    trained = sorted(sample for window in witness.windows for batch in window for sample in batch.samples.tolist())
    assert trained == sorted([*range(len(lengths))] * 2)
    assert witness.peak_bytes <= pool_bytes
    assert witness.most_items <= capacity
    for batch in itertools.chain.from_iterable(witness.windows):
        assert batch.padded_tokens <= budget


@settings(max_examples=50, deadline=None)
@given(
    data=st.data(),
    lengths=st.lists(st.integers(1, LIMIT), min_size=20, max_size=150),
    strategy=st.sampled_from(STRATEGIES),
    window=st.integers(2, 8),
)
def test_windows_are_the_plans_own_after_any_resume(data, lengths, strategy, window):
    """One worker of each kind finishes in plan order, so each step must hold one whole window of the plan, resumed or not."""
    sets = settings_of(strategy, "stratified", None, window, f"batching.token_budget={2 * LIMIT}", "checkpoint.every=1")
    store = Store()
    run, seen = coordinator_of(lengths, sets, store=store)
    run.run()
    whole = seen.ids
    for epoch in (0, 1):
        ids = [each for step in whole for each in step if each.epoch == epoch]
        assert [step for step in whole if step[0].epoch == epoch] == [ids[at : at + window] for at in range(0, len(ids), window)]
        assert [each.number for each in ids] == list(range(len(ids)))
    step = data.draw(st.integers(1, len(whole)), label="resumed after step")
    rest, seen = coordinator_of(lengths, sets, state=store.states[step])
    rest.run()
    assert seen.ids == whole[step:]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, LIMIT), min_size=30, max_size=150),
    policy=st.sampled_from(NEVER_WAIT),
    topology=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    capacity=st.integers(1, 8),
    changes=st.dictionaries(
        st.integers(1, 60),
        st.sampled_from([
            {"pool.capacity_items": 1}, {"pool.policy": "random"}, {"batching.strategy": "packed"}, {"optim.accumulate": 3},
            {"batching.boundaries": [0, 10, LIMIT]}, {"pool.capacity_bytes": 20 * LIMIT},
        ]),
        max_size=3,
    ),
)  # fmt: skip
def test_no_item_outlives_its_epoch_in_the_pool_whatever_is_changed(lengths, policy, topology, capacity, changes):
    """The bound that holds for every policy: a batch is pulled before any batch of a later epoch is."""
    sets = settings_of(
        "bucketed", "random", None, 4, f"batching.token_budget={2 * LIMIT}", f"pool.policy={policy}", f"pool.capacity_items={capacity}",
        f"pipeline.targets={topology[0]}", f"pipeline.drafters={topology[1]}", "pool.capacity_bytes=100000",
    )  # fmt: skip
    coordinator, witness = coordinator_of(lengths, sets, change_at=changes)
    assert coordinator.run() == "finished"
    epochs = [each.epoch for step in witness.ids for each in step]
    assert epochs == sorted(epochs)
    trained = sorted(sample for window in witness.windows for batch in window for sample in batch.samples.tolist())
    assert trained == sorted([*range(len(lengths))] * 2)


PINNED = {
    ("sorted", "random"): "df7a0466aa2e4e72",
    ("shuffled", "random"): "d1068097602821c0",
    ("bucketed", "random"): "339afcadb627831b",
    ("jittered", "random"): "6ac4f8d940c39feb",
    ("jittered", "stratified"): "a98fec08d368145d",
    ("packed", "random"): "19662a27b85f0c9a",
    ("packed", "stratified"): "0be634f1f733b8e9",
}


@pytest.mark.parametrize(("strategy", "order"), PINNED)
def test_the_same_seed_gives_the_same_plan_on_any_machine(strategy, order):
    """Pinned by a hash of the whole plan of 5,000 lengths made by integer arithmetic, so that nothing rests on a machine's logarithm."""
    lengths = 16 + (np.arange(5_000, dtype=np.int64) * 2_654_435_761 % 2**32) % 4_000
    batching = BatchingConfig(strategy=strategy, order=order, token_budget=16_384, seed=11)
    plan = plan_epoch(lengths.astype(np.int32), batching, epoch=3, window=32)
    content = plan.samples.astype("<i8").tobytes() + plan.offsets.astype("<i8").tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == PINNED[strategy, order]
