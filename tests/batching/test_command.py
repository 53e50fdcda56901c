"""`dflash plan` as a function: its keys, its values, the file."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from dflash.batching.command import plan_command
from dflash.batching.figures import plan_figures
from dflash.batching.plan import plan_epoch
from dflash.config import BatchingConfig
from dflash.errors import RefusedInput

KEYS = {"batches", "padding_efficiency", "fill", "max_padded_tokens", "vr", "chi", "membership_reuse", "plan_seconds"}


@pytest.fixture
def lengths_file(tmp_path):
    lengths = np.random.default_rng(0).lognormal(5, 0.7, 4000).clip(2, 1000).astype(np.uint16)
    pl.DataFrame({"length": lengths}).write_parquet(tmp_path / "lengths.parquet")
    return tmp_path / "lengths.parquet", lengths


@pytest.mark.parametrize(("epoch", "neighbour"), [(0, 1), (1, 0), (4, 3)])
def test_the_command_returns_the_contract_and_writes_the_plan(lengths_file, tmp_path, epoch, neighbour):
    path, lengths = lengths_file
    settings = BatchingConfig(token_budget=4096)
    found = plan_command(path, settings, window=8, epoch=epoch, out=tmp_path / "plan.parquet")
    plan, other = (plan_epoch(lengths, settings, epoch=which, window=8) for which in (epoch, neighbour))
    assert found.keys() == KEYS
    assert json.loads(json.dumps(found)) == found
    assert found.pop("plan_seconds") > 0
    assert found == plan_figures(plan, lengths, settings, other).as_dict()
    assert pl.read_parquet(tmp_path / "plan.parquet")["sample"].to_list() == plan.samples.tolist()


def test_a_row_over_the_budget_is_refused(lengths_file):
    with pytest.raises(RefusedInput, match=r"batching\.token_budget=64"):
        plan_command(lengths_file[0], BatchingConfig(token_budget=64), window=8)
