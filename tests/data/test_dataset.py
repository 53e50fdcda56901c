"""A prepared folder, opened: random access, its checks, and the flat form that is made again when it is missing."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash.data import prepare as prepare_module
from dflash.data.dataset import TokenDataset
from dflash.data.lengths import read_lengths
from dflash.data.options import PrepareOptions
from dflash.data.prepare import prepare
from dflash.errors import RefusedInput
from tests.data.conftest import make_tokenizer

_ROWS = [
    {"input_ids": [(7 * n + i) % 300 for i in range(3 + n % 50)], "loss_mask": [int(i % 5 < 3) for i in range(3 + n % 50)]}
    for n in range(400)
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, _ROWS)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_module, "CHUNK_BYTES", 10_000)
        patch.setattr("dflash.data.readers.SEGMENT_BYTES", 3_000)
        prepare([folder / "rows.jsonl"], tokenizer_folder, folder / "out", options=PrepareOptions(workers=1))
    return folder / "out"


@pytest.fixture
def copied(prepared: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prepared, tmp_path / "data")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 399), max_size=20))
def test_rows_are_the_rows_asked_for_end_to_end(prepared: Path, ids: list[int]) -> None:
    found = TokenDataset.open(prepared).rows(ids)
    assert found.sample_ids.tolist() == ids
    assert found.tokens.tolist() == [token for i in ids for token in _ROWS[i]["input_ids"]]
    assert found.loss_mask.tolist() == [bool(bit) for i in ids for bit in _ROWS[i]["loss_mask"]]
    assert found.offsets.tolist() == np.cumsum([0, *(len(_ROWS[i]["input_ids"]) for i in ids)]).tolist()
    assert found.lengths.tolist() == [len(_ROWS[i]["input_ids"]) for i in ids]
    assert len(found) == len(ids)
    assert (found.tokens.dtype, found.loss_mask.dtype, found.offsets.dtype, found.sample_ids.dtype) == ("i4", "?", "i8", "i8")


def test_lengths_and_loss_tokens(prepared: Path) -> None:
    data = TokenDataset.open(prepared)
    assert data.lengths.tolist() == [len(row["input_ids"]) for row in _ROWS] == read_lengths(prepared).tolist()
    assert data.loss_tokens.tolist() == [sum(row["loss_mask"]) for row in _ROWS]
    assert (data.lengths.dtype, data.loss_tokens.dtype, len(data)) == ("i4", "i4", 400)
    assert len(data.manifest.shards) > 2


@pytest.mark.parametrize("ids", [[400], [-1], [3, 1000]])
def test_id_that_is_not_there_is_an_index_error(prepared: Path, ids: list[int]) -> None:
    with pytest.raises(IndexError, match="of 400 rows"):
        TokenDataset.open(prepared).rows(ids)


def test_dataset_travels_as_its_path(prepared: Path) -> None:
    data = TokenDataset.open(prepared)
    packed = pickle.dumps(data)
    assert len(packed) < 1000
    assert pickle.loads(packed).rows([3]).tokens.tolist() == data.rows([3]).tokens.tolist()


def test_flat_form_is_made_again_when_it_is_missing(copied: Path) -> None:
    [flat] = copied.glob("flat-*")
    before = {path.name: path.read_bytes() for path in flat.iterdir()}
    shutil.rmtree(flat)
    (copied / "flat-0123456789abcdef").mkdir()
    assert TokenDataset.open(copied).rows([5]).tokens.tolist() == _ROWS[5]["input_ids"]
    assert {path.name: path.read_bytes() for path in flat.iterdir()} == before
    assert list(copied.glob("flat-*")) == [flat]


def test_many_processes_may_open_it_at_once_without_flat_form(copied: Path) -> None:
    [flat] = copied.glob("flat-*")
    shutil.rmtree(flat)
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        found = list(pool.map(_tokens_of_row_7, [copied] * 8))
    assert found == [_ROWS[7]["input_ids"]] * 8
    assert [path.name for path in copied.glob("flat-*")] == [flat.name]


def _tokens_of_row_7(folder: Path) -> list[int]:
    return TokenDataset.open(folder).rows([7]).tokens.tolist()


def test_missing_short_or_altered_shard_is_named_when_the_flat_form_is_made(copied: Path) -> None:
    shutil.rmtree(next(copied.glob("flat-*")))
    shard = copied / "shards" / "part-000001.parquet"
    whole = shard.read_bytes()
    os.truncate(shard, 100)
    with pytest.raises(RefusedInput, match=r"part-000001\.parquet: 100 bytes long instead of"):
        TokenDataset.open(copied)
    shard.unlink()
    with pytest.raises(RefusedInput, match=r"part-000001\.parquet: missing"):
        TokenDataset.open(copied)
    place = len(whole) // 3
    shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(RefusedInput, match=r"part-000001\.parquet: damaged"):
        TokenDataset.open(copied)
    shard.write_bytes(whole)
    assert len(TokenDataset.open(copied)) == 400


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: text.replace('"format": 1', '"format": 2'), "format: Input should be 1"),
        (lambda text: text.replace('"kept"', '"held"'), "counts.held"),
        (lambda text: text[:100], "the file: Invalid JSON"),
    ],
)
def test_manifest_of_another_format_or_damaged_is_refused_with_its_key(copied: Path, change: object, fault: str) -> None:
    path = copied / "manifest.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(RefusedInput, match=f"manifest.json: {fault}.*prepare the data again"):
        TokenDataset.open(copied)


def test_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match="no such folder"):
        TokenDataset.open(tmp_path / "gone")
    with pytest.raises(RefusedInput, match="not a prepared dataset"):
        TokenDataset.open(tmp_path)


def test_target_with_another_tokenizer_or_a_small_vocabulary_is_refused_with_both_named(
    prepared: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    data = TokenDataset.open(prepared)
    data.check_tokenizer(tokenizer_folder)
    data.check_target(300, name="tiny", fingerprint=data.manifest.tokenizer.fingerprint)
    data.check_target(300, name="tiny")
    with pytest.raises(
        RefusedInput, match=rf"holds token 299 of the tokenizer {tokenizer_folder}, but the target tiny knows only 299"
    ):
        data.check_target(299, name="tiny")
    with pytest.raises(
        RefusedInput, match=rf"{tokenizer_folder} .*, but the target tiny has another .*again with --tokenizer tiny"
    ):
        data.check_target(300, name="tiny", fingerprint="0" * 64)
    other = make_tokenizer(tmp_path / "other", None)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<|channel|>", "<|canal|>"))
    (other / "tokenizer_config.json").write_text((other / "tokenizer_config.json").read_text().replace("<|channel|>", "<|canal|>"))
    with pytest.raises(RefusedInput, match="has another"):
        data.check_tokenizer(other)


def test_dataset_and_lengths_import_without_torch_or_tokenizers() -> None:
    code = (
        "import sys, dflash.data, dflash.data.dataset, dflash.data.lengths, dflash.data.rows; "
        "print([m for m in ('torch', 'transformers', 'tokenizers', 'datasets') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
