"""The feature cache: what is read is what was written, whoever wrote it and however it died."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dflash.data.rows import TokenRows
from dflash.errors import RefusedInput, RunFailed
from dflash.model import feature_cache
from dflash.model.cache_facts import CacheFacts
from dflash.model.cache_journal import RECORD
from dflash.model.feature_cache import CachedTarget, FeatureCache

LENGTHS = np.random.default_rng(0).integers(1, 30, 40).astype(np.int32)
WIDTH = 8


def facts(folder: Path, dtype: str = "bfloat16", **made_of: object) -> CacheFacts:
    total = int(LENGTHS.sum())
    return CacheFacts(folder, {"data": "d", "layer_ids": [1, 2], **made_of}, WIDTH, 4, dtype, len(LENGTHS), total)


def opened(folder: Path, dtype: str = "bfloat16") -> FeatureCache:
    return FeatureCache(facts(folder, dtype), LENGTHS)


def exact(samples: list[int]) -> torch.Tensor:
    """What the target computes of some samples: a function of the sample alone."""
    made = [torch.randn(LENGTHS[each], WIDTH, generator=torch.Generator().manual_seed(int(each))) for each in samples]
    return torch.cat(made).to(torch.bfloat16)


def rows(samples: list[int]) -> TokenRows:
    offsets = np.concatenate([[0], np.cumsum(LENGTHS[samples])]).astype(np.int64)
    total = int(offsets[-1])
    return TokenRows(np.array(samples), np.zeros(total, np.int32), np.ones(total, np.bool_), offsets)


class Counting:
    """A target that counts what it computes."""

    def __init__(self) -> None:
        self.computed: list[int] = []

    def features(self, rows: TokenRows, *, packed: bool) -> torch.Tensor:
        self.computed += rows.sample_ids.tolist()
        return exact(rows.sample_ids.tolist())


def cached(folder: Path, dtype: str = "bfloat16") -> tuple[CachedTarget, Counting]:
    target = Counting()
    cache = opened(folder, dtype)
    return CachedTarget(cache, lambda: target, dtype=torch.bfloat16, device=torch.device("cpu")), target


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3"])
def test_what_is_computed_once_is_read_ever_after_in_any_order(dtype: str, tmp_path: Path) -> None:
    target, computed = cached(tmp_path / "c", dtype)
    first = {sample: target.features(rows([sample]), packed=False) for sample in range(20)}
    again, later = cached(tmp_path / "c", dtype)
    order = np.random.default_rng(1).permutation(20).tolist()
    assert torch.equal(again.features(rows(order), packed=True), torch.cat([first[sample] for sample in order]))
    assert (computed.computed, later.computed) == (list(range(20)), [])
    if dtype == "bfloat16":
        assert torch.equal(again.features(rows(order), packed=False), exact(order))


def test_of_a_batch_only_what_is_missing_is_computed(tmp_path: Path) -> None:
    target, computed = cached(tmp_path / "c")
    target.features(rows([3, 5]), packed=False)
    assert torch.equal(target.features(rows([1, 5, 2, 3]), packed=False), exact([1, 5, 2, 3]))
    assert computed.computed == [3, 5, 1, 2]


def test_several_writers_see_each_others_rows_and_none_disturbs_another(tmp_path: Path) -> None:
    workers = [cached(tmp_path / "c") for _ in range(3)]
    for at in range(0, 36, 3):
        workers[at // 3 % 3][0].features(rows([at, at + 1, at + 2]), packed=False)
    for target, _ in workers:
        assert torch.equal(target.features(rows(list(range(36))), packed=False), exact(list(range(36))))
    assert sorted(sample for _, counting in workers for sample in counting.computed) == list(range(36))
    assert opened(tmp_path / "c").state().samples == 36


def test_the_error_told_is_that_of_what_is_kept(tmp_path: Path) -> None:
    cache = opened(tmp_path / "c", "float8_e4m3")
    samples = list(range(len(LENGTHS)))
    for half in (samples[:15], samples[15:]):
        cache.write(np.array(half), exact(half))
    there, kept = exact(samples).double().numpy(), cache.read(np.array(samples), torch.float32).double().numpy()
    state = cache.state()
    assert state.relative_rms_error == pytest.approx(np.sqrt(((there - kept) ** 2).sum() / (there**2).sum()), rel=1e-5)
    cosines = (there * kept).sum(1) / np.linalg.norm(there, axis=1) / np.linalg.norm(kept, axis=1)
    assert state.cosine == pytest.approx(cosines.mean(), rel=1e-9)
    assert 0.01 < state.relative_rms_error < 1 / 16
    assert opened(tmp_path / "b").state().samples == 0


def test_bytes_that_changed_on_disk_are_computed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, _ = cached(tmp_path / "c")
    target.features(rows([0, 1, 2]), packed=False)
    place = tmp_path / "c/features.bin"
    data = bytearray(place.read_bytes())
    data[int(LENGTHS[0]) * WIDTH * 2 + 3] ^= 1  # in sample 1
    place.write_bytes(data)
    again, computed = cached(tmp_path / "c")
    assert torch.equal(again.features(rows([0, 1, 2]), packed=False), exact([0, 1, 2]))
    assert computed.computed == [1]
    assert "features of sample 1 are damaged" in caplog.text


@pytest.mark.parametrize("kept_bytes", [1, RECORD.itemsize - 1])
def test_a_torn_record_is_passed_over(kept_bytes: int, tmp_path: Path) -> None:
    opened(tmp_path / "c").write(np.array([0]), exact([0]))
    opened(tmp_path / "c").write(np.array([1]), exact([1]))
    for place in (tmp_path / "c").glob("rows-*"):
        data = place.read_bytes()
        if int.from_bytes(data[:8], "little") == 1:
            place.write_bytes(data[:kept_bytes])
    cache = opened(tmp_path / "c")
    assert cache.holds(np.array([0, 1])).tolist() == [True, False]
    cache.write(np.array([1]), exact([1]))
    assert opened(tmp_path / "c").holds(np.array([0, 1])).all()


def test_a_full_disk_stops_with_a_reason_and_leaves_nothing_half_written_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened(tmp_path / "c")
    cache.write(np.array([0]), exact([0]))
    real, room = os.pwrite, [100]

    def pwrite(handle: int, data: memoryview, place: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(handle, data[: room[0]], place)
        room[0] -= written
        return written

    monkeypatch.setattr(feature_cache.os, "pwrite", pwrite)
    with pytest.raises(RunFailed, match=r"features\.bin: no space left on the disk.*What was finished is kept"):
        cache.write(np.array([1, 2, 3]), exact([1, 2, 3]))
    monkeypatch.undo()
    again, computed = cached(tmp_path / "c")
    assert torch.equal(again.features(rows([0, 1, 2, 3]), packed=False), exact([0, 1, 2, 3]))
    assert computed.computed == [1, 2, 3]


def fill_slowly(folder: Path) -> None:
    cache = opened(folder)
    for sample in range(len(LENGTHS)):
        if not cache.holds(np.array([sample]))[0]:
            cache.write(np.array([sample]), exact([sample]))
            time.sleep(0.002)


def records_in(folder: Path) -> NDArray[np.void]:
    return np.concatenate([np.zeros(0, RECORD), *(np.fromfile(place, RECORD) for place in folder.glob("rows-*"))])


def test_killed_in_the_middle_and_begun_again_nothing_is_doubled_or_missing(tmp_path: Path) -> None:
    for kill_after in (5, 11, len(LENGTHS) + 1):
        process = multiprocessing.get_context("fork").Process(target=fill_slowly, args=(tmp_path / "c",))
        process.start()
        while process.is_alive() and len(records_in(tmp_path / "c")) < kill_after:
            time.sleep(0.001)
        process.kill()
        process.join()
    assert process.exitcode in (0, -9)
    assert sorted(records_in(tmp_path / "c")["sample"].tolist()) == list(range(len(LENGTHS)))
    everything = list(range(len(LENGTHS)))
    assert torch.equal(opened(tmp_path / "c").read(np.array(everything), torch.bfloat16), exact(everything))
    assert (tmp_path / "c/features.bin").stat().st_size == int(LENGTHS.sum()) * WIDTH * 2


def test_another_cache_in_the_folder_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    made = facts(tmp_path / "c")
    opened(tmp_path / "c")
    for change in ({"data": "e"}, {"layer_ids": [1, 3]}, {"target_weights": "w"}):
        other = facts(tmp_path / "c", **change)
        with pytest.raises(
            RefusedInput,
            match=rf"{next(iter(change))} .*, here .*{made.fingerprint[:12]}, here {other.fingerprint[:12]}.*another folder",
        ):
            FeatureCache(other, LENGTHS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    with pytest.raises(RefusedInput, match="is no feature cache"):
        opened(tmp_path / "mine")
    with pytest.raises(RefusedInput, match="is no feature cache"):
        FeatureCache(replace(made, folder=tmp_path / "mine/thesis.txt"), LENGTHS)


def test_disk_yet_to_take_is_told(tmp_path: Path) -> None:
    made = facts(tmp_path / "c", "float8_e4m3")
    assert made.size_bytes == int(LENGTHS.sum()) * (WIDTH + 2 * 4)
    assert made.missing_bytes() == made.size_bytes
    cache = opened(tmp_path / "c", "float8_e4m3")
    everything = np.arange(len(LENGTHS))
    cache.write(everything, exact(everything.tolist()))
    assert made.missing_bytes() == 0
