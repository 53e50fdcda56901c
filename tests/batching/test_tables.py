"""A plan as tables: what a row means, and a file that is whole or absent."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from dflash.batching.plan import EpochPlan, plan_epoch
from dflash.batching.tables import batch_table, write_plan
from dflash.config import BatchingConfig
from dflash.errors import RunFailed

LENGTHS = np.array([3, 5, 4, 1])


def hand_made(*, packed: bool) -> EpochPlan:
    return EpochPlan(np.array([1, 0, 2, 3]), np.array([0, 2, 4]), packed)


def test_a_row_of_the_batch_table_describes_a_batch():
    table = batch_table(hand_made(packed=False), LENGTHS, [0, 4, 6])
    assert table.rows() == [(0, 2, 8, 10, 5, 1), (1, 2, 5, 8, 4, 0)]
    assert table.columns == ["batch", "rows", "tokens", "padded_tokens", "longest", "bucket"]


def test_a_packed_batch_is_classed_by_its_token_weighted_mean_length():
    table = batch_table(hand_made(packed=True), LENGTHS, [0, 3, 6])
    assert table["padded_tokens"].to_list() == [8, 5]
    assert table["bucket"].to_list() == [1, 0]  # (25 + 9) / 8 = 4.25 and (16 + 1) / 5 = 3.4, both cut to whole tokens


def test_a_written_plan_reads_back_in_execution_order(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 90, 500)
    plan = plan_epoch(lengths, BatchingConfig(token_budget=300), epoch=0, window=4)
    write_plan(plan, tmp_path / "plan.parquet")
    table = pl.read_parquet(tmp_path / "plan.parquet")
    assert table.schema == {"batch": pl.Int64, "sample": pl.Int64}
    assert table["sample"].to_list() == plan.samples.tolist()
    assert table.group_by("batch", maintain_order=True).len()["len"].to_list() == np.diff(plan.offsets).tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["plan.parquet"]


def test_a_plan_that_can_not_be_written_says_where(tmp_path):
    with pytest.raises(RunFailed, match=r"nowhere.plan\.parquet"):
        write_plan(hand_made(packed=True), tmp_path / "nowhere" / "plan.parquet")
