"""The whole way: files in, a dataset out, whatever goes wrong in between."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import psutil
import pytest
from transformers import AutoTokenizer

from dflash.data import files, workers
from dflash.data import prepare as prepare_module
from dflash.data.dataset import TokenDataset
from dflash.data.options import PrepareOptions
from dflash.data.prepare import PrepareReport, prepare
from dflash.errors import RefusedInput, RunFailed

_GOOD = [
    {"messages": [{"role": "user", "content": f"the fox {n}"}, {"role": "assistant", "content": "jumps over it. " * (1 + n % 7)}]}
    for n in range(240)
]


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_bytes(b"".join((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n" for row in rows))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "corpus.jsonl", _GOOD)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "CHUNK_BYTES", 4000)
    monkeypatch.setattr("dflash.data.readers.SEGMENT_BYTES", 1000)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset but for the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def run(corpus: Path, tokenizer: Path, out: Path, **options: Any) -> PrepareReport:
    return prepare([corpus], tokenizer, out, options=PrepareOptions(**{"workers": 1, **options}))


def test_tokens_are_those_of_the_template_in_the_order_of_the_input(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    report = run(corpus, tokenizer_folder, tmp_path / "out")
    whole = AutoTokenizer.from_pretrained(tokenizer_folder)
    expected = [whole.apply_chat_template(row["messages"], return_dict=True)["input_ids"] for row in _GOOD]
    data = TokenDataset.open(tmp_path / "out")
    assert [data.rows([i]).tokens.tolist() for i in range(len(data))] == expected
    assert (report.rows_read, report.kept, report.rejected, report.truncated) == (240, 240, 0, 0)
    assert report.tokens == sum(map(len, expected)) == data.lengths.sum()
    assert report.loss_tokens == data.loss_tokens.sum() == data.rows(range(240)).loss_mask.sum()
    assert (tmp_path / "out" / "rejected.jsonl").read_bytes() == b""
    assert len(data.manifest.shards) > 3


def test_shards_say_where_each_row_came_from(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    other = write_rows(tmp_path / "other.jsonl", [b"", {"text": "the quick brown fox"}, {"text": "x y z"}])
    prepare([other, corpus], tokenizer_folder, tmp_path / "out", options=PrepareOptions(workers=1))
    shards = sorted((tmp_path / "out" / "shards").iterdir())
    table = pl.concat([pl.read_parquet(shard).with_columns(pl.col("file").cast(pl.String)) for shard in shards])
    assert table.select("file", "line").rows() == [(str(other), 2), (str(other), 3), *((str(corpus), n) for n in range(1, 241))]


def test_prepared_shards_can_be_prepared_again(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    run(corpus, tokenizer_folder, tmp_path / "out")
    run(tmp_path / "out" / "shards", tokenizer_folder, tmp_path / "again")
    first, again = (TokenDataset.open(tmp_path / name).rows(range(240)) for name in ("out", "again"))
    assert (first.tokens == again.tokens).all()
    assert (first.loss_mask == again.loss_mask).all()


def test_each_bad_row_is_listed_with_its_line_and_the_others_are_kept(tokenizer_folder: Path, tmp_path: Path) -> None:
    ask, say = {"role": "user", "content": "the fox"}, {"role": "assistant", "content": "jumps over it"}
    bad: list[tuple[Any, str]] = [
        (b'{"messages": [', "broken JSON"),
        (b'{"text": "\xff\xfe"}', "not UTF-8"),
        (b'{"text": "\\ud800 half"}', "lone surrogate"),
        (b"[1, 2]", "not an object"),
        ({"messages": [ask]}, "no assistant turn"),
        ({"messages": [say, ask]}, "no assistant turn"),
        ({"text": ""}, "empty text"),
        ({"text": "x"}, "fewer than two supervised tokens"),
        ({"text": "the fox " * 100}, "over-long"),
        ({"input_ids": [1, 2, 3], "loss_mask": [1, 1]}, "loss mask of another length"),
        ({"input_ids": [1, 2, 9999]}, "token id outside the vocabulary"),
        ({"messages": [ask, {"role": "assistant", "content": None}]}, "null"),
        ({"tweet": "x"}, "unknown shape"),
        ({"messages": [ask, {"role": "alien", "content": "x"}]}, "unknown role"),
        ({"messages": [ask, {"role": "assistant", "content": {"deep": [1]}}]}, "not text"),
        ({"messages": [ask, {"role": "assistant", "content": "<|im_end|>"}]}, "control token in the text"),
    ]
    rows = [row for one, _ in bad for row in ({"messages": [ask, say]}, one)]
    source = write_rows(tmp_path / "bad.jsonl", rows)
    empty = write_rows(tmp_path / "empty.jsonl", [])
    options = PrepareOptions(workers=1, max_length=60, over_long="reject")
    report = prepare([source, empty], tokenizer_folder, tmp_path / "out", options=options)
    listed = [orjson.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_bytes().splitlines()]
    assert [(row["file"], row["line"], row["reason"].partition(":")[0]) for row in listed] == [
        *((str(source), 2 * place, kind) for place, (_, kind) in enumerate(bad, 1)),
        (str(empty), 1, "empty file"),
    ]
    assert all(set(row) == {"file", "line", "reason"} for row in listed)
    assert (report.kept, report.rejected, report.rows_read) == (len(bad), len(bad) + 1, 2 * len(bad) + 1)
    assert sum(report.reasons.values()) == report.rejected
    assert len(TokenDataset.open(tmp_path / "out")) == len(bad)


def test_cut_rows_are_counted(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "long.jsonl", [{"text": "the fox " * 100}, {"text": "the quick brown fox"}])
    report = run(source, tokenizer_folder, tmp_path / "out", max_length=50)
    assert (report.kept, report.truncated, report.rejected) == (2, 1, 0)
    assert TokenDataset.open(tmp_path / "out").lengths.max() == 50


def test_nothing_kept_is_refused_and_the_reasons_are_told(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "bad.jsonl", [{"text": ""}, {"text": ""}, b"{"])
    for _ in range(2):
        with pytest.raises(RefusedInput, match=r"none of 3 rows could be used: empty text \(2\); broken JSON \(1\)"):
            run(source, tokenizer_folder, tmp_path / "out")
    assert len((tmp_path / "out" / "rejected.jsonl").read_bytes().splitlines()) == 3
    with pytest.raises(RefusedInput, match="unfinished"):
        TokenDataset.open(tmp_path / "out")
    write_rows(source, _GOOD)
    assert run(source, tokenizer_folder, tmp_path / "out").kept == 240


def test_result_does_not_depend_on_the_number_of_workers(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    one = run(corpus, tokenizer_folder, tmp_path / "one")
    three = run(corpus, tokenizer_folder, tmp_path / "three", workers=3)
    assert tree(tmp_path / "one") == tree(tmp_path / "three")
    assert one.as_dict() | {"out": "", "seconds": 0} == three.as_dict() | {"out": "", "seconds": 0}


def test_finished_job_is_reported_and_not_done_again(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(corpus, tokenizer_folder, tmp_path / "out")
    monkeypatch.setattr(workers, "do_chunk", None)
    second = run(corpus, tokenizer_folder, tmp_path / "out")
    assert first.as_dict() | {"seconds": 0} == second.as_dict() | {"seconds": 0}


def test_finished_dataset_of_another_job_is_replaced_only_when_allowed(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    run(corpus, tokenizer_folder, tmp_path / "out")
    before = tree(tmp_path / "out")
    with pytest.raises(RefusedInput, match="other inputs or with other options"):
        run(corpus, tokenizer_folder, tmp_path / "out", loss_on="last", max_length=20)
    write_rows(corpus, _GOOD[:9])
    with pytest.raises(RefusedInput, match="other inputs or with other options"):
        run(corpus, tokenizer_folder, tmp_path / "out")
    assert tree(tmp_path / "out") == before
    assert run(corpus, tokenizer_folder, tmp_path / "out", overwrite=True).kept == 9
    run(corpus, tokenizer_folder, tmp_path / "fresh")
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")


def test_folder_with_other_files_is_left_alone(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    for name in ("notes.txt", "shards/part-1.parquet"):
        out = tmp_path / name.partition("/")[0].removesuffix(".txt")
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
        with pytest.raises(RefusedInput, match="holds other files"):
            run(corpus, tokenizer_folder, out, overwrite=True)
        assert (out / name).read_text() == "mine"


def test_damaged_input_stops_the_work_by_name_and_what_was_done_is_kept(tokenizer_folder: Path, tmp_path: Path) -> None:
    import gzip

    write_rows(tmp_path / "a.jsonl", _GOOD)
    packed = gzip.compress((tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "b.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(RefusedInput, match=r"b\.jsonl\.gz: damaged or cut off"):
        prepare(
            [tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"], tokenizer_folder, tmp_path / "out", options=PrepareOptions(workers=1)
        )
    assert list((tmp_path / "out" / ".unfinished").glob("chunk-*.json"))


def test_two_at_once_in_one_folder_are_refused(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with files.locked(tmp_path / "out", wait=False), pytest.raises(RefusedInput, match="another process is writing there"):
        run(corpus, tokenizer_folder, tmp_path / "out")


def test_full_disk_at_any_write_names_the_file_and_the_same_call_goes_on(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(corpus, [*_GOOD[:60], {"text": ""}])
    run(corpus, tokenizer_folder, tmp_path / "fresh")
    real, left = os.fsync, 0

    def fsync(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    told = []
    while not (tmp_path / "out" / "manifest.json").exists():
        left = 2  # two more files fit at each try
        with suppress(RunFailed) if len(told) < 50 else nullcontext():
            try:
                run(corpus, tokenizer_folder, tmp_path / "out")
            except RunFailed as error:
                told.append(str(error))
                raise
        assert not list((tmp_path / "out").rglob("*.scrap"))
    assert len(told) > 2
    assert all(text.startswith(str(tmp_path / "out")) and "no space left on the disk" in text for text in told)
    assert all("run the same command again" in text for text in told)
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")


def test_changed_options_start_unfinished_work_anew(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stop_after(3, monkeypatch)
    with pytest.raises(RunFailed, match=r"stopped\. What was finished is kept"):
        run(corpus, tokenizer_folder, tmp_path / "out")
    monkeypatch.undo()
    assert list((tmp_path / "out" / "shards").iterdir())
    run(corpus, tokenizer_folder, tmp_path / "out", max_length=15)
    run(corpus, tokenizer_folder, tmp_path / "fresh", max_length=15)
    assert TokenDataset.open(tmp_path / "out").fingerprint == TokenDataset.open(tmp_path / "fresh").fingerprint


def test_finished_chunks_are_not_done_again_unless_damaged(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopping:
        _stop_after(4, stopping)
        with pytest.raises(RunFailed, match="stopped"):
            run(corpus, tokenizer_folder, tmp_path / "out")
    os.truncate(tmp_path / "out" / "shards" / "part-000001.parquet", 100)
    done: list[int] = []
    real = workers.do_chunk
    monkeypatch.setattr(workers, "do_chunk", lambda chunk, *rest: (done.append(chunk.number), real(chunk, *rest))[1])
    run(corpus, tokenizer_folder, tmp_path / "out")
    assert done[:2] == [1, 4]
    assert {0, 2, 3}.isdisjoint(done)
    run(corpus, tokenizer_folder, tmp_path / "fresh")
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")


def _stop_after(chunks: int, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when so many chunks are done."""
    real = workers.do_chunk

    def stopping(chunk: Any, *rest: Any) -> Any:
        if chunk.number == chunks:
            raise KeyboardInterrupt
        return real(chunk, *rest)

    patch.setattr(workers, "do_chunk", stopping)


_SCRIPT = """
import sys
from dflash.data import prepare as module, readers
from dflash.data.options import PrepareOptions
from dflash.errors import RunFailed
if __name__ == "__main__":
    module.CHUNK_BYTES, readers.SEGMENT_BYTES = 8_000, 2_000
    try:
        module.prepare([sys.argv[1]], sys.argv[2], sys.argv[3], options=PrepareOptions(workers=2), progress=True)
    except RunFailed as error:
        sys.exit(f"RunFailed: {error}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGINT])
def test_killed_run_goes_on_to_the_same_result(
    tokenizer_folder: Path, tmp_path: Path, death: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_rows(tmp_path / "corpus.jsonl", [{**row, "n": n} for n in range(30) for row in _GOOD])
    (tmp_path / "script.py").write_text(_SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(corpus), str(tokenizer_folder), str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while len(list((tmp_path / "out").glob(".unfinished/chunk-*.json"))) < 5:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    os.killpg(process.pid, death) if death == signal.SIGINT else process.send_signal(death)
    _, told = process.communicate(timeout=60)
    assert death == signal.SIGKILL or "RunFailed" in told
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert len(gone) == len(children), alive

    assert not (tmp_path / "out" / "manifest.json").exists()
    monkeypatch.setattr(prepare_module, "CHUNK_BYTES", 8_000)
    monkeypatch.setattr("dflash.data.readers.SEGMENT_BYTES", 2_000)
    finished = len(list((tmp_path / "out").glob(".unfinished/chunk-*.json")))
    again: list[int] = []
    real = workers.do_chunk
    monkeypatch.setattr(workers, "do_chunk", lambda chunk, *rest: (again.append(chunk.number), real(chunk, *rest))[1])
    report = run(corpus, tokenizer_folder, tmp_path / "out")
    assert report.kept == 7_200
    whole = len(again) + finished
    again.clear()
    run(corpus, tokenizer_folder, tmp_path / "fresh")
    assert len(again) == whole
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")


def test_worker_killed_from_outside_is_told_and_nothing_is_lost(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = workers.finished
    killed = False

    def murderous(chunk: Any, place: Any) -> Any:
        nonlocal killed
        children = psutil.Process().children()
        workers_alive = [
            child for child in children if child.status() != psutil.STATUS_ZOMBIE and "spawn_main" in " ".join(child.cmdline())
        ]
        if not killed and workers_alive:
            workers_alive[0].kill()
            killed = True
        return real(chunk, place)

    monkeypatch.setattr(workers, "finished", murderous)
    with pytest.raises(RunFailed, match="a worker process died"):
        run(corpus, tokenizer_folder, tmp_path / "out", workers=2)
    monkeypatch.undo()
    monkeypatch.setattr(prepare_module, "CHUNK_BYTES", 4000)
    monkeypatch.setattr("dflash.data.readers.SEGMENT_BYTES", 1000)
    run(corpus, tokenizer_folder, tmp_path / "out")
    run(corpus, tokenizer_folder, tmp_path / "fresh")
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")
