"""The bar counts the bytes of the files as they lie on the disk, each once, and keeps off standard output."""

from __future__ import annotations

import gzip
from pathlib import Path

import orjson
import polars as pl
import pytest

from dflash.data import prepare as prepare_module
from dflash.data.inputs import find_inputs
from dflash.data.manifest import Counts
from dflash.data.progress import PrepareProgress


def test_bytes_of_all_chunks_add_up_to_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare_module, "CHUNK_BYTES", 3_000)
    monkeypatch.setattr("dflash.data.readers.SEGMENT_BYTES", 1_000)
    rows = [{"text": f"row {n}"} for n in range(900)]
    lines = b"\n".join(map(orjson.dumps, rows)) + b"\n"
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "c.jsonl").write_bytes(b"")
    pl.DataFrame(rows).write_parquet(tmp_path / "d.parquet", row_group_size=200)
    files = find_inputs([tmp_path], out=tmp_path / "out")
    total = sum(file.size_bytes for file in files)
    with PrepareProgress(total, shown=True) as bar:
        chunks = list(bar.watched(prepare_module._chunks(files)))
        for chunk in reversed(chunks):
            bar.done(chunk.number, Counts(rows_read=10, kept=9, rejected=1))
        [task] = bar._bar.tasks
        assert task.completed == total
    assert len(chunks) > 10
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{len(chunks) * 10:,} rows" in shown.err
    assert f"{len(chunks):,} rejected" in shown.err


def test_bar_is_silent_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with PrepareProgress(10, shown=False) as bar:
        bar.laid_out(5)(5)
    assert capsys.readouterr() == ("", "")
