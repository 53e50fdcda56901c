"""Segments to rows, in the workers: JSON texts or Arrow batches become plain values, and what can't be decoded is named.

orjson reads what is right; a line it refuses goes to the standard library's parser, which is slower and milder (NaN, half
characters in a field nobody uses) and names the place of the fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import orjson
import pyarrow as pa

from dflash.data.conversation import RowRejected
from dflash.data.readers import Segment
from dflash.data.text_blocks import UTF8_MARK


def rows_of(segment: Segment) -> Iterator[tuple[int, object]]:
    """Each row of a segment with its line or row number from 1. A row that can't be decoded comes as the `RowRejected` it earned.

    Blank lines are counted as lines but are no rows.
    """
    if segment.form == "reason":
        kind, _, detail = segment.data.decode().partition(": ")
        yield segment.first_row, RowRejected(kind, detail)
    elif segment.form == "arrow":
        yield from _table_rows(segment)
    elif segment.form == "items":
        for item in segment.data.split(b"\n"):
            number_text, _, text = item.partition(b"\t")
            number = int(number_text)
            yield number, _parsed(text, first=False, line=number)
    else:
        for number, line in enumerate(segment.data.split(b"\n"), segment.first_row):
            if line and not line.isspace():
                yield number, _parsed(line.rstrip(), first=number == 1)


def _parsed(text: bytes, *, first: bool, line: int | None = None) -> object:
    """A row's text as a value. `line` is the number of its first line when it may be of several, parted by \\r."""
    try:
        return orjson.loads(text)
    except ValueError:
        return _parsed_mildly(text.removeprefix(UTF8_MARK) if first else text, line)


def _parsed_mildly(data: bytes, line: int | None) -> object:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return RowRejected("not UTF-8", f"byte 0x{data[error.start]:02x} at {_place(data[: error.start].decode('latin-1'), line)}")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return RowRejected("broken JSON", f"{error.msg.removesuffix(' at')} at {_place(text[: error.pos], line)}")
    except (RecursionError, ValueError) as error:
        return RowRejected("broken JSON", f"{'nested too deeply' if isinstance(error, RecursionError) else error}")


def _place(before: str, line: int | None) -> str:
    """Where that stands which comes behind `before`."""
    if line is None:
        return f"column {len(before) + 1}"
    return f"line {line + before.count(chr(13))}, column {len(before) - before.rfind(chr(13))}"


def _table_rows(segment: Segment) -> Iterator[tuple[int, object]]:
    with pa.ipc.open_stream(segment.data) as stream:
        for batch in stream:
            try:
                rows: list[object] = batch.to_pylist()
            except UnicodeDecodeError:  # some row of it; arrow does not check what a file calls text
                rows = [_row_alone(batch, index) for index in range(batch.num_rows)]
            if any(part in str(batch.schema) for part in _OF_MANY_SHAPES):
                rows = [_without_nulls(row) for row in rows]
            yield from enumerate(rows, segment.first_row)


_OF_MANY_SHAPES = ("tool_calls", "function_call", "tools")


def _without_nulls(value: object) -> object:
    """A value without the keys that are null: a column gives every object all keys that any object of it has."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _row_alone(batch: pa.RecordBatch, index: int) -> object:
    try:
        return batch.slice(index, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return RowRejected("not UTF-8", f"byte 0x{error.object[error.start]:02x} in a text column")
