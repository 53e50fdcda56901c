"""Segments to rows, in the workers: JSON lines or Arrow batches become plain values, and what can't be decoded is named.

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


def rows_of(segment: Segment) -> Iterator[tuple[int, object]]:
    """Each row of a segment with its line or row number from 1. A row that can't be decoded comes as the `RowRejected` it earned.

    Blank lines are counted as lines but are no rows.
    """
    if segment.form == "reason":
        kind, _, detail = segment.data.decode().partition(": ")
        yield segment.first_row, RowRejected(kind, detail)
    elif segment.form == "arrow":
        yield from _table_rows(segment)
    else:
        for number, line in enumerate(segment.data.split(b"\n"), segment.first_row):
            if line and not line.isspace():
                yield number, _parsed(line.rstrip(), first=number == 1)


def _parsed(line: bytes, *, first: bool) -> object:
    try:
        return orjson.loads(line)
    except ValueError:
        return _parsed_mildly(line.removeprefix(b"\xef\xbb\xbf") if first else line)


def _parsed_mildly(line: bytes) -> object:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return RowRejected("not UTF-8", f"byte 0x{line[error.start]:02x} at column {error.start + 1}")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return RowRejected("broken JSON", f"{error.msg.removesuffix(' at')} at column {error.colno}")
    except (RecursionError, ValueError) as error:
        return RowRejected("broken JSON", f"{'nested too deeply' if isinstance(error, RecursionError) else error}")


def _table_rows(segment: Segment) -> Iterator[tuple[int, object]]:
    with pa.ipc.open_stream(segment.data) as stream:
        for batch in stream:
            try:
                rows: list[object] = batch.to_pylist()
            except UnicodeDecodeError:  # some row of it; arrow does not check what a file calls text
                rows = [_row_alone(batch, index) for index in range(batch.num_rows)]
            yield from enumerate(rows, segment.first_row)


def _row_alone(batch: pa.RecordBatch, index: int) -> object:
    try:
        return batch.slice(index, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return RowRejected("not UTF-8", f"byte 0x{error.object[error.start]:02x} in a text column")
