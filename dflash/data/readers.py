"""Input files as a stream of segments: raw stretches of rows that know where they come from.

The parent only cuts files into segments of about a mebibyte, at line ends, between the items of a JSON array or at row batches, and
never looks inside; decoding happens in the workers (`rows_of`). So one reader feeds many cores, and memory is bounded by segments in
flight, whatever the size of a file or of its row groups. How a file is cut depends on the file alone, so a second reading gives the
same segments.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from dflash.data.conversation import SHAPE_KEYS
from dflash.data.inputs import InputFile
from dflash.data.json_items import json_items
from dflash.data.text_blocks import UTF8_MARK, text_blocks
from dflash.errors import RefusedInput

SEGMENT_BYTES = 2**20
LONGEST_LINE_BYTES = 2**26
_SHOWN_BYTES = 2**16  # of a text's start, to tell lines from one big value
_ROWS_A_BATCH = 4096


@dataclass(frozen=True)
class Segment:
    """Some neighbouring rows of one file.

    Attributes:
        file: name of the file.
        first_row: line (text) or row (parquet, arrow) of the first, from 1.
        form: how `data` is to be read: lines; items, each a line behind its number and a tab; an Arrow stream; or the reason why
            there is nothing to read (UTF-8).
        data: the bytes.
        position: bytes of the file read so far, for progress.
    """

    file: str
    first_row: int
    form: Literal["lines", "items", "arrow", "reason"]
    data: bytes
    position: int


def read_segments(file: InputFile) -> Iterator[Segment]:
    """The segments of one file, in order. An empty file gives one segment that says so.

    Raises:
        RefusedInput: the file is damaged, cut off, unreadable, or its columns are of no known shape.
    """
    if file.size_bytes == 0:
        yield Segment(file.name, 1, "reason", b"empty file: it holds no rows", 0)
        return
    empty = True
    try:
        for segment in _text_segments(file) if file.form.startswith("json") else _table_segments(file):
            empty = False
            yield segment
    except UnicodeDecodeError as error:
        raise RefusedInput(
            f"{file.name}: begins as {error.encoding.upper()} and is not ({error.reason}); write the file as UTF-8"
        ) from error
    except (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile, pa.ArrowException) as error:
        raise RefusedInput(f"{file.name}: damaged or cut off ({_first_line(error)}); mend or leave out the file") from error
    except OSError as error:
        raise RefusedInput(f"{file.name}: can't be read ({error.strerror or _first_line(error)})") from error
    if empty:
        yield Segment(file.name, 1, "reason", b"empty file: it holds no rows", file.size_bytes)


def _text_segments(file: InputFile) -> Iterator[Segment]:
    """Of a file of text: by lines, or by the items of one big JSON value, as its start shows."""
    kind, _, packing = file.form.partition(".")
    with file.path.open("rb") as raw:
        blocks = text_blocks(raw, packing, SEGMENT_BYTES)
        shown = list[bytes]()
        while sum(map(len, shown)) < _SHOWN_BYTES and (block := next(blocks, None)) is not None:
            shown.append(block)
        cut = _line_segments if _is_lines(b"".join(shown), kind) else _item_segments
        yield from cut(file, chain(shown, blocks), raw.tell)


def _is_lines(start: bytes, kind: str) -> bool:
    """Whether a text is JSON lines: told by its first line, since either kind is found under either name."""
    line, newline, rest = start.removeprefix(UTF8_MARK).lstrip().partition(b"\n")
    if kind == "json" and not newline:
        return False
    try:
        value = orjson.loads(line)
    except ValueError:
        return kind == "jsonl" and line.strip() not in (b"[", b"{") and not line.startswith(b"[")
    if kind == "jsonl":
        return not isinstance(value, list) or bool(rest.strip())
    return bool(rest.strip())


def _line_segments(file: InputFile, blocks: Iterable[bytes], tell: Callable[[], int]) -> Iterator[Segment]:
    pending, line, skipping, position = b"", 1, False, 0
    for block in blocks:
        position = tell()
        if skipping:
            _, newline, block = block.partition(b"\n")
            if not newline:
                continue
            line, skipping = line + 1, False
        whole, newline, pending = (pending + block).rpartition(b"\n")
        if newline:
            if whole and not whole.isspace():
                yield Segment(file.name, line, "lines", whole, position)
            line += whole.count(b"\n") + 1
        if len(pending) > LONGEST_LINE_BYTES:
            reason = f"line too long: more than {LONGEST_LINE_BYTES} bytes"
            yield Segment(file.name, line, "reason", reason.encode(), position)
            pending, skipping = b"", True
    if pending and not pending.isspace():
        yield Segment(file.name, line, "lines", pending, position)


def _item_segments(file: InputFile, blocks: Iterable[bytes], tell: Callable[[], int]) -> Iterator[Segment]:
    """Each item on a line of its own, behind the number of the line it begins in; its own newlines become \\r, white space too."""
    gathered, size, first = list[bytes](), 0, 1
    for item in json_items(iter(blocks), longest_bytes=LONGEST_LINE_BYTES):
        if gathered and (item.text is None or size >= SEGMENT_BYTES):
            yield Segment(file.name, first, "items", b"\n".join(gathered), tell())
            gathered, size = [], 0
        if item.text is None:
            yield Segment(file.name, item.line, "reason", item.reason.encode(), tell())
            continue
        first = item.line if not gathered else first
        gathered.append(b"%d\t%s" % (item.line, item.text.replace(b"\r", b" ").replace(b"\n", b"\r")))
        size += len(item.text)
    if gathered:
        yield Segment(file.name, first, "items", b"\n".join(gathered), tell())


def _table_segments(file: InputFile) -> Iterator[Segment]:
    row = 1
    for batch, position in _parquet_batches(file) if file.form == "parquet" else _arrow_batches(file):
        share = max(1, batch.num_rows * SEGMENT_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, share):
            piece = batch.slice(start, share)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, piece.schema) as writer:
                writer.write_batch(piece)
            yield Segment(file.name, row, "arrow", sink.getvalue().to_pybytes(), position)
            row += piece.num_rows


def _parquet_batches(file: InputFile) -> Iterator[tuple[Any, int]]:
    with pq.ParquetFile(file.path, memory_map=True, pre_buffer=False) as table:
        columns = _known_columns(file.name, table.schema_arrow.names)
        done = 0
        for group in range(table.num_row_groups):
            facts = table.metadata.row_group(group)
            row_bytes = max(1, facts.total_byte_size // max(1, facts.num_rows))
            rows = min(_ROWS_A_BATCH, max(1, SEGMENT_BYTES // row_bytes))
            for batch in table.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False):
                done += batch.num_rows
                yield batch, file.size_bytes * done // table.metadata.num_rows


def _arrow_batches(file: InputFile) -> Iterator[tuple[Any, int]]:
    with pa.memory_map(file.name) as source, pa.ipc.open_stream(source) as stream:
        columns = _known_columns(file.name, stream.schema.names)
        for batch in stream:
            yield batch.select(columns), source.tell()


def _known_columns(name: str, columns: list[str]) -> list[str]:
    known = [column for column in columns if column in SHAPE_KEYS]
    if not known:
        raise RefusedInput(
            f"{name}: columns {', '.join(columns[:8])} are of no known shape; "
            "known: messages, conversations, prompt + response, instruction + output, text, input_ids"
        )
    return known


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]
