"""One chunk of the work: some segments in, one shard and a list of rejected rows out. Runs in any process, in any order.

A chunk's result file is written last. So a chunk is done when its result is there, whoever died in between, and doing it again
writes the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from dflash.data.decode import rows_of
from dflash.data.encode import EncodedRow, RowEncoder
from dflash.data.files import write_whole
from dflash.data.losses import RowRejected
from dflash.data.manifest import SHARDS_NAME, Counts, ShardFacts, content_digest
from dflash.data.readers import Segment
from dflash.data.tally import Tally

SHARD_SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("file", pa.dictionary(pa.int32(), pa.string())),
        ("line", pa.int64()),
    ]
)
"""What a shard holds: token ids, loss mask, and the file and line each row came from."""


@dataclass(frozen=True)
class Chunk:
    """Neighbouring segments and the chunk's number in the whole."""

    number: int
    segments: list[Segment]

    @property
    def checksum(self) -> int:
        """CRC-32 over the segments' places and bytes."""
        total = 0
        for segment in self.segments:
            total = zlib.crc32(f"{segment.file}:{segment.first_row}:{segment.form}".encode(), total)
            total = zlib.crc32(segment.data, total)
        return total


class ChunkResult(BaseModel):
    """What came of a chunk; `shard` is None when no row was kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checksum: int
    counts: Counts
    shard: ShardFacts | None


class Workplace(NamedTuple):
    """Where chunks are written: `out` is the dataset's folder, `scratch` the one for unfinished work in it."""

    out: Path
    scratch: Path

    def shard(self, number: int) -> Path:
        """The shard of a chunk."""
        return self.out / SHARDS_NAME / f"part-{number:06d}.parquet"

    def rejected(self, number: int) -> Path:
        """The rejected rows of a chunk."""
        return self.scratch / f"chunk-{number:06d}.rejected"

    def result(self, number: int) -> Path:
        """The result of a chunk."""
        return self.scratch / f"chunk-{number:06d}.json"


class _Kept(NamedTuple):
    row: EncodedRow
    file: str
    line: int


def do_chunk(chunk: Chunk, encoder: RowEncoder, place: Workplace) -> ChunkResult:
    """Tokenise a chunk and write its shard, its rejected rows, then its result.

    Raises:
        RunFailed: a file can't be written.
    """
    kept: list[_Kept] = []
    rejected: list[bytes] = []
    tally = Tally(encoder)
    for segment in chunk.segments:
        for line, raw in rows_of(segment):
            try:
                if isinstance(raw, RowRejected):
                    raise raw
                row = encoder.parse(raw)
                kept.append(_Kept(encoder.encode(row), segment.file, line))
                tally.kept(row, kept[-1].row)
            except RowRejected as reason:
                tally.rejected(raw, reason.kind)
                rejected.append(orjson.dumps({"file": segment.file, "line": line, "reason": _printable(str(reason))}))
    shard = _write_shard(chunk.number, kept, place) if kept else None
    write_whole(place.rejected(chunk.number), b"".join(line + b"\n" for line in rejected), scratch=place.scratch, synced=False)
    result = ChunkResult(checksum=chunk.checksum, counts=tally.counts(), shard=shard)
    write_whole(place.result(chunk.number), result.model_dump_json().encode(), scratch=place.scratch, synced=False)
    return result


def finished(chunk: Chunk, place: Workplace) -> ChunkResult | None:
    """The result of a chunk done before, if it is whole and of the same input."""
    try:
        result = ChunkResult.model_validate_json(place.result(chunk.number).read_bytes())
    except (OSError, ValidationError):
        return None
    shard = place.shard(chunk.number)
    whole = result.shard is None or (shard.is_file() and shard.stat().st_size == result.shard.size_bytes)
    return result if whole and result.checksum == chunk.checksum and place.rejected(chunk.number).is_file() else None


def _write_shard(number: int, kept: Sequence[_Kept], place: Workplace) -> ShardFacts:
    offsets = np.cumsum([0, *(len(item.row.tokens) for item in kept)], dtype=np.int64)
    tokens = np.concatenate([item.row.tokens for item in kept])
    masks = np.concatenate([item.row.loss_mask for item in kept])
    columns = [
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(tokens)),
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(masks)),
        pa.array([item.file for item in kept]).dictionary_encode(),
        pa.array([item.line for item in kept], pa.int64()),
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(columns, schema=SHARD_SCHEMA), sink, compression="zstd", use_dictionary=["file"])
    data = sink.getvalue()
    path = place.shard(number)
    write_whole(path, memoryview(data), scratch=place.scratch)
    return ShardFacts(
        name=path.name, rows=len(kept), tokens=len(tokens), size_bytes=data.size, digest=content_digest(tokens, masks, offsets)
    )


def _printable(text: str) -> str:
    """The text with half characters (which JSON can't hold) made visible."""
    return text.encode("utf-8", "backslashreplace").decode()
