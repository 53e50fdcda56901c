"""Files in, segments out: every row once, with its place, in any form; damage is named."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import datasets
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data import readers
from dflash.data.conversation import RowRejected
from dflash.data.decode import rows_of
from dflash.data.inputs import find_inputs
from dflash.data.readers import read_segments
from dflash.errors import RefusedInput

_ROWS = [{"text": f"row {number} " + "x" * (number % 97)} for number in range(5000)]
_LINES = b"\n".join(orjson.dumps(row) for row in _ROWS) + b"\n"


def read(*places: Path) -> list[tuple[str, int, object]]:
    """Every row with its file's name and line."""
    return [
        (Path(segment.file).name, line, row)
        for file in find_inputs(places, out=Path("nowhere"))
        for segment in read_segments(file)
        for line, row in rows_of(segment)
    ]


def write(path: Path, data: bytes = _LINES) -> Path:
    """The lines in the form the name says."""
    if path.name.endswith(".gz"):
        data = gzip.compress(data)
    elif path.name.endswith(".zst"):
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "A.JSONL"])
def test_json_lines_are_read_with_their_line_numbers(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "SEGMENT_BYTES", 4000)
    assert read(write(tmp_path / name)) == [(name, line, row) for line, row in enumerate(_ROWS, 1)]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.zst", "a.jsonl"])
@pytest.mark.parametrize("indent", [None, 2])
def test_array_of_rows_is_read_with_the_line_each_begins_in(
    tmp_path: Path, name: str, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SEGMENT_BYTES", 4000)
    rows = [{"text": f"row {number}\n"} for number in range(500)]
    expected = [(name, 1 if indent is None else 2 + 3 * number, row) for number, row in enumerate(rows)]
    assert read(write(tmp_path / name, json.dumps(rows, indent=indent).encode())) == expected


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_each_kind_of_json_is_read_under_the_name_of_the_other(tmp_path: Path, name: str) -> None:
    lines = write(tmp_path / name, b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"\r\n{"text": "c"}\r\n')
    assert [(line, row) for _, line, row in read(lines) if isinstance(row, dict)] == [(1, {"text": "a"}), (3, {"text": "c"})]
    pretty = write(tmp_path / name, b'{\n "text": "a"\n}\n{\n "text": "b"\n}\n')
    assert [(line, row) for _, line, row in read(pretty)] == [(1, {"text": "a"}), (4, {"text": "b"})]
    wrapped = write(tmp_path / name, b'{\n"data": [\n{"text": "a"},\n{"text": "b"}]}')
    assert [(line, row) for _, line, row in read(wrapped)] == [(3, {"text": "a"}), (4, {"text": "b"})]


def test_broken_item_is_named_with_its_first_line_and_the_place_of_the_fault(tmp_path: Path) -> None:
    text = '[\n  {\n    "text": "a"\n  },\n  {\r\n    "text": "\u010d",\r\n    "more": tru\r\n  },\n  {"text": "b"}\n]'
    rows = read(write(tmp_path / "a.json", text.encode()))
    assert [(line, row if isinstance(row, dict) else str(row)) for _, line, row in rows] == [
        (2, {"text": "a"}),
        (5, "broken JSON: Expecting value at line 7, column 13"),
        (9, {"text": "b"}),
    ]


def test_settings_of_models_and_datasets_in_a_folder_are_no_rows(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "dataset_infos.json", "package.json", "state.JSON", "chats.json"):
        (tmp_path / name).write_text('[{"text": "a"}]')
    assert [name for name, _, _ in read(tmp_path)] == ["chats.json", "state.JSON"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_text_of_other_encodings_is_read(tmp_path: Path, name: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "SEGMENT_BYTES", 7)
    text = '{"text": "h\u00e9\U0001f98a"}\r\n{"text": "b"}\r\n'
    assert read(write(tmp_path / name, text.encode(encoding))) == [
        (name, 1, {"text": "h\u00e9\U0001f98a"}),
        (name, 2, {"text": "b"}),
    ]


def test_text_that_only_begins_as_utf16_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match=r"a\.jsonl: begins as UTF-16-LE and is not .*; write the file as UTF-8"):
        read(write(tmp_path / "a.jsonl", '{"text": "a"}'.encode("utf-16") + b"\0"))


def test_json_text_in_a_column_is_decoded_and_nulls_of_other_rows_are_taken_out(tmp_path: Path) -> None:
    calls = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {name: 1}}}]} for name in "ab"]
    rows = [{"messages": [{"role": "user", "content": "x"}, call]} for call in calls]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert [row["messages"][1]["tool_calls"] for _, _, row in read(tmp_path / "a.parquet")] == [
        call["tool_calls"] for call in calls
    ]


def test_several_zstd_frames_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    half = _LINES.index(b"\n", len(_LINES) // 2) - 3
    path.write_bytes(zstandard.compress(_LINES[:half]) + zstandard.compress(_LINES[half:]))
    assert [row for _, _, row in read(path)] == _ROWS


def test_parquet_is_read_with_row_numbers_across_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "SEGMENT_BYTES", 4000)
    pl.DataFrame(_ROWS).with_columns(other=pl.lit(1)).write_parquet(tmp_path / "a.parquet", row_group_size=700)
    assert read(tmp_path / "a.parquet") == [("a.parquet", line, row) for line, row in enumerate(_ROWS, 1)]


def test_folders_of_save_to_disk_are_read_split_by_split(tmp_path: Path) -> None:
    data = datasets.Dataset.from_list(_ROWS)
    datasets.DatasetDict({"train": data.select(range(4000)), "test": data.select(range(4000, 5000))}).save_to_disk(
        tmp_path / "both"
    )
    data.save_to_disk(tmp_path / "one", num_shards=3)
    assert [row for _, _, row in read(tmp_path / "both")] == _ROWS
    assert [row for _, _, row in read(tmp_path / "one")] == _ROWS


def test_folder_is_walked_by_name_and_other_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "z.jsonl", b'{"text": "z"}\n')
    write(tmp_path / "deep" / "b.jsonl.gz", b'{"text": "b"}\n')
    write(tmp_path / "a.jsonl", b'{"text": "a"}\n')
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / ".hidden.jsonl").write_text("{}")
    assert [name for name, _, _ in read(tmp_path)] == ["a.jsonl", "b.jsonl.gz", "z.jsonl"]


def test_prepared_folders_and_the_folder_to_be_written_are_no_input(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    (tmp_path / "prepared" / "shards").mkdir(parents=True)
    (tmp_path / "prepared" / "manifest.json").write_text("{}")
    (tmp_path / "out").mkdir()
    write(tmp_path / "prepared" / "b.jsonl")
    write(tmp_path / "out" / "c.jsonl")
    assert [file.path.name for file in find_inputs([tmp_path], out=tmp_path / "out")] == ["a.jsonl"]
    with pytest.raises(RefusedInput, match="lies in the folder to be written"):
        find_inputs([tmp_path / "out" / "c.jsonl"], out=tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "reason"), [("gone.jsonl", "no such file"), ("a.txt", "unknown kind"), ("bare", "holds no data files")]
)
def test_missing_and_unknown_inputs_are_refused_by_name(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "bare").mkdir()
    with pytest.raises(RefusedInput, match=f"{name}.*{reason}"):
        find_inputs([tmp_path / name], out=tmp_path / "out")


def test_file_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match="given twice"):
        find_inputs([write(tmp_path / "a.jsonl"), tmp_path], out=tmp_path / "out")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_cut_off_compressed_file_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    os.truncate(path, path.stat().st_size * 2 // 3)
    with pytest.raises(RefusedInput, match=f"{name}: damaged or cut off"):
        read(path)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_file_that_is_not_what_its_name_says_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1 something else PAR1" * 9)
    with pytest.raises(RefusedInput, match=f"{name}: damaged or cut off"):
        read(tmp_path / name)


def test_parquet_with_a_damaged_page_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"text": [os.urandom(40).hex() for _ in range(5000)]}).write_parquet(path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[1000:60_000] = os.urandom(59_000)
    path.write_bytes(data)
    with pytest.raises(RefusedInput, match=r"a\.parquet"):
        read(path)


def test_parquet_without_known_columns_is_refused_with_its_columns(tmp_path: Path) -> None:
    pl.DataFrame({"tweet": ["x"], "likes": [1]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(RefusedInput, match="columns tweet, likes are of no known shape"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("data", [b"", b"\n \n\n"])
def test_file_without_rows_says_so(tmp_path: Path, data: bytes) -> None:
    [(name, line, row)] = read(write(tmp_path / "a.jsonl", data))
    assert (name, line) == ("a.jsonl", 1)
    assert isinstance(row, RowRejected)
    assert str(row) == "empty file: it holds no rows"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a', "broken JSON: Unterminated string starting at column 10"),
        (b'{"text": "a"} tail', "broken JSON: Extra data at column 15"),
        (b'{"text": "\xff"}', "not UTF-8: byte 0xff at column 11"),
        (b"[" * 200_000 + b"]" * 200_000, "broken JSON: nested too deeply"),
    ],
)
def test_line_that_cannot_be_decoded_is_named_and_the_others_stay(tmp_path: Path, line: bytes, reason: str) -> None:
    rows = read(write(tmp_path / "a.jsonl", b'{"text": "a"}\n\n' + line + b'\r\n{"text": "b"}'))
    assert [(number, str(row)) for _, number, row in rows if isinstance(row, RowRejected)] == [(3, reason)]
    assert [(number, row) for _, number, row in rows if isinstance(row, dict)] == [(1, {"text": "a"}), (4, {"text": "b"})]


def test_json_beyond_the_strict_is_read_when_the_text_is_sound(tmp_path: Path) -> None:
    lines = b'\xef\xbb\xbf{"text": "a"}\n{"text": "b", "score": NaN}\n{"text": "c", "id": "\\ud800"}\n'
    assert [row["text"] for _, _, row in read(write(tmp_path / "a.jsonl", lines)) if isinstance(row, dict)] == ["a", "b", "c"]


def test_line_too_long_is_passed_over_and_counting_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "SEGMENT_BYTES", 50)
    monkeypatch.setattr(readers, "LONGEST_LINE_BYTES", 200)
    lines = [b'{"text": "a"}', b'{"text": "' + b"y" * 1000 + b'"}', b'{"text": "b"}', b'{"text": "' + b"z" * 500]
    rows = read(write(tmp_path / "a.jsonl", b"\n".join(lines)))
    assert [(line, row if isinstance(row, dict) else str(row)) for _, line, row in rows] == [
        (1, {"text": "a"}),
        (2, "line too long: more than 200 bytes"),
        (3, {"text": "b"}),
        (4, "line too long: more than 200 bytes"),
    ]


def test_bytes_not_utf8_in_a_parquet_text_column_reject_only_their_row(tmp_path: Path) -> None:
    column = pa.Array.from_buffers(pa.string(), 3, [None, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffb")])
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    rows = read(tmp_path / "a.parquet")
    assert [row if isinstance(row, dict) else str(row) for _, _, row in rows] == [
        {"text": "a"},
        "not UTF-8: byte 0xff in a text column",
        {"text": "b"},
    ]


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=30), size=st.integers(1, 40))
def test_segments_hold_every_line_once_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    lines = [b"{}", *lines]  # so it is JSON lines, whatever follows
    path.write_bytes(b"\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "SEGMENT_BYTES", size)
        [file] = find_inputs([path], out=Path("nowhere"))
        found = {
            number: line
            for segment in read_segments(file)
            if segment.form == "lines"
            for number, line in enumerate(segment.data.split(b"\n"), segment.first_row)
        }
    expected = {number: line for number, line in enumerate(lines, 1) if line.strip()}
    assert {number: line for number, line in found.items() if line.strip()} == expected
