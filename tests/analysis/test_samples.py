from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.injected_faults import MEDIAN_TOKENS, SIGMA
from dflash.analysis import samples
from dflash.analysis.eventlog import load_events
from dflash.errors import RefusedInput


class Data:
    """The lengths the simulated run was made with."""

    rng = np.random.default_rng([1, MEDIAN_TOKENS])
    lengths = np.clip(MEDIAN_TOKENS * np.exp(SIGMA * rng.standard_normal(12_000)), 16, 8_192).astype(np.int32)

    def __len__(self):
        return len(self.lengths)


def test_the_samples_of_a_batch_are_those_it_was_made_of(simulated, monkeypatch):
    monkeypatch.setattr(samples, "TokenDataset", SimpleNamespace(open=lambda _: Data()))
    log = load_events(simulated(seed=1))
    rows = log.batches.filter(log.batches["batch"].str.contains(r"\.0\.")).head(20)
    found = samples.samples_of(log, rows["batch"].to_list())
    for batch, longest, tokens in rows.select("batch", "longest", "tokens").iter_rows():
        assert Data.lengths[found[batch]].sum() == tokens
        assert Data.lengths[found[batch]].max() == longest


def test_batches_that_cannot_be_planned_again_are_refused(simulated, monkeypatch):
    monkeypatch.setattr(samples, "TokenDataset", SimpleNamespace(open=lambda _: Data()))
    log = load_events(simulated(seed=1))
    with pytest.raises(RefusedInput, match="planned anew"):
        samples.samples_of(log, ["0.1.3"])
    log.rare["change"] = [{"accepted": True, "key": "batching.strategy"}]
    with pytest.raises(RefusedInput, match="was changed while it ran"):
        samples.samples_of(log, ["0.0.3"])
