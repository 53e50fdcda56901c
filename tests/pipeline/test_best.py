"""The best checkpoint: which one is chosen, and that it is always there, whole."""

import errno
import math
import os
import shutil

import pytest

from dflash.config import EvaluationConfig
from dflash.errors import RunFailed
from dflash.model.results import BatchResult, Rounds
from dflash.pipeline.best import BestKeeper
from dflash.pipeline.checkpoints import CheckpointStore, find_fault
from dflash.pipeline.reports import EvaluationReport
from dflash.runs.best import best_folders, kept_best


def report(step, *, walked=None, decoded=None, loss=1.0):
    """An evaluation that walked over, or decoded, so many tokens in a thousand rounds."""
    simulated = BatchResult(loss, 1.0, 10, 10, 1, 1, 0.0, walk=Rounds(8, walked, 1000)) if walked is not None else None
    return EvaluationReport(step, 8, 4, simulated, Rounds(4, decoded, 1000) if decoded is not None else None, {})


@pytest.fixture
def store(tmp_path):
    said = []
    store = CheckpointStore(tmp_path / "checkpoints", 2, {"data": "abc"}, said.append)
    store.said = said
    return store


def keeper(store, **settings):
    return BestKeeper(EvaluationConfig(**settings), store, store.said.append)


def offer(best, *reports):
    for each in reports:
        best.offer(each, lambda job, step=each.step: (job.folder / "model.safetensors").write_bytes(b"weights %d" % step))


def checkpoint(store, step):
    (store.begin(step).folder / "model.safetensors").write_bytes(b"weights")
    store.commit(step, {})


def test_the_highest_acceptance_stays_and_of_equals_the_earlier_one(store):
    best = keeper(store)
    offer(best, report(2, walked=1200), report(4, walked=1500), report(6, walked=1500), report(8, walked=1400))
    assert (best.best.step, best.best.acceptance_length, best.best.measure.by) == (4, 1.5, "walk")
    assert [folder.name for folder in best_folders(store.folder)] == ["best-0002-step-00000004"]
    assert kept_best(store.folder) == store.best() == best.best


def test_what_is_no_number_is_never_chosen_and_first_weights_are_not(store):
    best = keeper(store)
    empty = EvaluationReport(3, 0, 0, BatchResult(1.0, 1.0, 1, 1, 0, 0, 0.0, walk=Rounds()), None, {})
    offer(best, report(0, walked=1900), report(2, walked=1800, loss=math.nan), empty, report(4, decoded=1700))
    assert best.best is None
    offer(best, report(6, walked=1000))
    assert best.best.step == 6


def test_real_decoding_decides_where_the_run_decodes(store):
    best = keeper(store, decode_every=2)
    offer(best, report(2, walked=1900, decoded=1300), report(3, walked=1990), report(4, walked=1400, decoded=1350))
    assert (best.best.step, best.best.acceptance_length, best.best.measure.by) == (4, 1.35, "decoding")


def test_figures_measured_in_another_way_are_not_compared(store):
    offer(keeper(store), report(2, walked=1900))
    after = keeper(store, decode_every=2)
    assert after.best.step == 2
    offer(after, report(4, decoded=1300), report(6, decoded=1200))
    assert after.best.step == 4


def test_it_outlives_newer_checkpoints_and_a_resume(store):
    offer(keeper(store), report(1, walked=1500))
    for step in range(1, 6):
        checkpoint(store, step)
    assert sorted(path.name for path in store.folder.iterdir()) == ["best-0001-step-00000001", "step-00000004", "step-00000005"]
    assert store.newest().step == 5
    resumed = keeper(store)
    offer(resumed, report(7, walked=1499), report(8, walked=1501))
    assert resumed.best.step == 8


def test_a_session_killed_between_two_choices_leaves_the_later_one(store):
    best = keeper(store)
    offer(best, report(600, walked=1500))
    old = best.best.folder
    shutil.copytree(old, store.folder.parent / "kept")
    offer(best, report(400, walked=1600))  # after going back to an earlier checkpoint
    shutil.copytree(store.folder.parent / "kept", old)
    assert kept_best(store.folder).step == store.best().step == 400
    offer(keeper(store), report(500, walked=1700))
    assert [folder.name for folder in best_folders(store.folder)] == ["best-0003-step-00000500"]


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_full_disk_leaves_the_best_before_it_whole(store, monkeypatch, failing):
    best = keeper(store)
    offer(best, report(2, walked=1200))
    with monkeypatch.context() as broken:
        broken.setattr(os, failing, lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(RunFailed, match=r"No space left on device.*earlier checkpoints are whole"):
            offer(best, report(4, walked=1500))
    assert [path.name for path in store.folder.iterdir()] == ["best-0001-step-00000002"]
    assert find_fault(best.best.folder) is None
    assert best.best.step == keeper(store).best.step == 2


def test_a_damaged_best_is_passed_over_and_said(store):
    best = keeper(store)
    offer(best, report(2, walked=1900))
    (best.best.folder / "model.safetensors").write_bytes(b"cut")
    resumed = keeper(store)
    assert resumed.best is None
    assert "model.safetensors is cut short or altered" in store.said[-1]
    offer(resumed, report(4, walked=1100))
    assert store.best().step == 4
