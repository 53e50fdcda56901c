import errno
import os

import pytest

from dflash.errors import RefusedInput, RunFailed
from dflash.pipeline.checkpoints import CheckpointStore, find_fault


@pytest.fixture
def store(tmp_path):
    said = []
    store = CheckpointStore(tmp_path / "checkpoints", 3, {"data": "abc", "optim.seed": 0}, said.append)
    store.said = said
    return store


def write(store, step, weights=b"weights"):
    job = store.begin(step)
    (job.folder / "model.safetensors").write_bytes(weights)
    store.commit(step, {"progress": {"step": step}})


def test_the_newest_is_found_with_its_state(store):
    assert store.newest() is None
    for step in (1, 2, 10):
        write(store, step)
    assert store.newest().step == 10
    assert store.newest().state["progress"] == {"step": 10}


def test_only_the_newest_few_are_kept(store):
    for step in range(1, 7):
        write(store, step)
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000004", "step-00000005", "step-00000006"]


@pytest.mark.parametrize("damage", ["cut", "flip", "no file", "no state", "cut state"])
def test_a_damaged_checkpoint_is_passed_over_and_said(store, damage):
    write(store, 1)
    write(store, 2)
    weights, state = store.folder / "step-00000002/model.safetensors", store.folder / "step-00000002/state.json"
    if damage == "cut":
        weights.write_bytes(b"weig")
    elif damage == "flip":
        weights.write_bytes(b"weighty")
    elif damage == "no file":
        weights.unlink()
    elif damage == "no state":
        state.unlink()
    else:
        state.write_text(state.read_text()[:20])
    assert store.newest().step == 1
    assert "step-00000002" in store.said[0]
    assert "the checkpoint before it is used" in store.said[0]


def test_with_none_whole_it_is_refused(store):
    write(store, 1)
    (store.folder / "step-00000001/state.json").unlink()
    with pytest.raises(RefusedInput, match="none of 1 checkpoints is whole"):
        store.newest()


def test_a_checkpoint_of_another_setting_is_refused_by_name(store):
    write(store, 1)
    store.belongs_to = {"data": "xyz", "optim.seed": 0}
    with pytest.raises(RefusedInput, match=r"data: checkpoint 'abc', now 'xyz'"):
        store.newest()


def test_of_a_setting_with_parts_only_those_that_differ_are_named(store):
    store.belongs_to = {"drafter": {"layers": 1, "rope": {"theta": 1e4, "type": "default"}}}
    write(store, 1)
    store.belongs_to = {"drafter": {"layers": 1, "rope": {"theta": 1e6, "type": "default"}, "bias": False}}
    with pytest.raises(
        RefusedInput,
        match=r"\(drafter\.rope\.theta: checkpoint 10000\.0, now 1000000\.0; drafter\.bias: checkpoint None, now False\)",
    ):
        store.newest()


def test_a_write_that_was_interrupted_leaves_the_old_ones_visible(store):
    write(store, 1)
    store.begin(2)
    assert store.newest().step == 1
    write(store, 2)
    assert store.newest().step == 2


def test_a_full_disk_keeps_earlier_checkpoints_and_leaves_no_parts(store, monkeypatch):
    write(store, 1)
    job = store.begin(2)
    (job.folder / "model.safetensors").write_bytes(b"x")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(RunFailed, match=r"No space left on device.*earlier checkpoints are whole"):
        store.commit(2, {})
    assert [path.name for path in store.folder.iterdir()] == ["step-00000001"]
    assert find_fault(store.folder / "step-00000001") is None
