"""Input files as a stream of segments: raw stretches of rows that know where they come from.

The parent only cuts files into segments of about a mebibyte, at line ends or row batches, and never looks inside; decoding
happens in the workers (`rows_of`). So one reader feeds many cores, and memory is bounded by segments in flight, whatever the size
of a file or of its row groups. How a file is cut depends on the file alone, so a second reading gives the same segments.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from dflash.data.conversation import SHAPE_KEYS
from dflash.data.inputs import InputFile
from dflash.errors import RefusedInput

SEGMENT_BYTES = 2**20
LONGEST_LINE_BYTES = 2**26
_COMPRESSED_READ_BYTES = 2**16  # a few of them inflate to a segment; one can't inflate to more than memory holds
_ROWS_A_BATCH = 4096


@dataclass(frozen=True)
class Segment:
    """Some neighbouring rows of one file.

    Attributes:
        file: name of the file.
        first_row: line (jsonl) or row (parquet, arrow) of the first, from 1.
        form: how `data` is to be read: lines, an Arrow stream, or the reason why there is nothing to read (UTF-8).
        data: the bytes.
        position: bytes of the file read so far, for progress.
    """

    file: str
    first_row: int
    form: Literal["lines", "arrow", "reason"]
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
        for segment in _line_segments(file) if file.form.startswith("jsonl") else _table_segments(file):
            empty = False
            yield segment
    except (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile, pa.ArrowException) as error:
        raise RefusedInput(f"{file.name}: damaged or cut off ({_first_line(error)}); mend or leave out the file") from error
    except OSError as error:
        raise RefusedInput(f"{file.name}: can't be read ({error.strerror or _first_line(error)})") from error
    if empty:
        yield Segment(file.name, 1, "reason", b"empty file: it holds no rows", file.size_bytes)


def _line_segments(file: InputFile) -> Iterator[Segment]:
    pending, line, skipping, position = b"", 1, False, 0
    with file.path.open("rb") as raw:
        for block in _blocks(raw, file.form):
            position = raw.tell()
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


def _blocks(raw: BinaryIO, form: str) -> Iterator[bytes]:
    """The text of a file, a segment's worth at a time."""
    if form == "jsonl":
        while block := raw.read(SEGMENT_BYTES):
            yield block
    elif form == "jsonl.gz":
        with gzip.GzipFile(fileobj=raw) as inflated:
            while block := inflated.read(SEGMENT_BYTES):
                yield block
    else:
        yield from _unzstd(raw)


def _unzstd(raw: BinaryIO) -> Iterator[bytes]:
    """Frame after frame; unlike the library's own stream reader it notices a last frame that is cut off."""
    gathered: list[bytes] = []
    frame = None
    while packed := raw.read(_COMPRESSED_READ_BYTES):
        while packed:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            gathered.append(frame.decompress(packed))
            packed = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
        if sum(map(len, gathered)) >= SEGMENT_BYTES:
            yield b"".join(gathered)
            gathered.clear()
    if frame is not None:
        raise EOFError("the last zstd frame has no end")
    yield b"".join(gathered)


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
