"""Text logs: held against every known line format; the first chunk in which any is found decides for the one with most lines.

Chunks are taken apart by several threads; what a chunk can't know by itself (the line before it, the phase it begins in) is added in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import polars as pl

from dflash.importing import console_log, megatron, mllog, step_lines
from dflash.importing.in_order import in_order
from dflash.importing.lines import LineReader, numbered_lines
from dflash.importing.readings import LISTED, Readings, numeric
from dflash.importing.spool import Spool

DETECT = {
    console_log.NAME: console_log.DETECT, megatron.NAME: megatron.DETECT, mllog.NAME: mllog.DETECT, step_lines.NAME: step_lines.DETECT,
}  # fmt: skip
_Chunk = tuple[int, str]


@dataclass(frozen=True)
class _Parsed:
    """A chunk's readings and the accounts of its lines; `sequence_length` if it tells Megatron's."""

    frame: pl.DataFrame
    nonfinite: int
    blank: int
    understood: int
    odd: list[tuple[int, str]]
    sequence_length: int | None = None


def format_of(texts: pl.Series) -> str | None:
    """The format most of these lines have; None if they have none."""
    counts = {name: int(texts.str.contains(pattern).sum()) for name, pattern in DETECT.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def read_text(paths: Sequence[Path], spool: Spool) -> Readings | None:
    """Read files as one log; None if no line of any known format is in them.

    Raises:
        RefusedInput: a file can't be read.
        OSError: there is no room for temporary files.
    """
    read: list[int] = [0]
    notes: list[str] = []
    chunks = _chunks(paths, read, notes)
    before: list[_Parsed] = []
    for first, text in chunks:
        lines = numbered_lines(first, text)
        name = format_of(lines["text"])
        if name is not None:
            break
        before.append(_accounted(lines, pl.DataFrame(), []))
    else:
        return None
    readings = _collected(name, chain(before, _parsed(name, chain([(first, text)], chunks))), spool)
    readings.lines_read, readings.notes = read[0], readings.notes + notes
    return readings


def _chunks(paths: Sequence[Path], read: list[int], notes: list[str]) -> Iterator[_Chunk]:
    """Chunks of all files, lines numbered through; `read` and `notes` are brought up to date on the way."""
    for path in paths:
        reader, offset = LineReader(path), read[0]
        for first, text in reader.texts():
            read[0] = offset + reader.lines_read
            yield offset + first, text
        notes += reader.notes


def _whole_iterations(chunks: Iterator[_Chunk]) -> Iterator[_Chunk]:
    """Chunks cut before an iteration line that the next chunk may go on with."""
    held: _Chunk | None = None
    for first, text in chunks:
        if held is not None:
            first, text = held[0], f"{held[1]}\n{text}"
            held = None
        before, *tail = text.rsplit("\n", megatron.MAX_PIECES + 1)
        starts = [at for at, line in enumerate(tail) if re.search(megatron.DETECT, line)]
        if starts:
            before = "\n".join([before, *tail[: starts[-1]]])
            held = first + before.count("\n") + 1, "\n".join(tail[starts[-1] :])
            text = before
        yield first, text
    if held is not None:
        yield held


def _parsed(name: str, chunks: Iterator[_Chunk]) -> Iterator[_Parsed]:
    if name != mllog.NAME:
        yield from in_order(_whole_iterations(chunks) if name == megatron.NAME else chunks, partial(_parse, name))
        return
    phase = "train"
    for first, text in chunks:
        lines = numbered_lines(first, text)
        frame, understood, phase = mllog.read(lines, phase)
        yield _accounted(lines, frame, understood)


def _parse(name: str, chunk: _Chunk) -> _Parsed:
    lines = numbered_lines(*chunk)
    if name == megatron.NAME:
        length, telling = megatron.sequence_length(lines)
        joined, used = megatron.join_wrapped(lines)
        return _accounted(lines, megatron.read(joined), [*used, *telling], length)
    frame = (console_log if name == console_log.NAME else step_lines).read(lines)
    return _accounted(lines, frame, frame["line"])


def _accounted(
    lines: pl.DataFrame, frame: pl.DataFrame, understood: Sequence[int] | pl.Series, sequence_length: int | None = None
) -> _Parsed:
    known = pl.Series(understood, dtype=pl.Int64).unique()
    blank = int((lines["text"] == "").sum())
    odd: list[tuple[int, str]] = []
    if blank + len(known) < len(lines):
        rest = lines.filter(pl.col("text") != "").join(known.to_frame("line"), on="line", how="anti", maintain_order="left")
        odd = list(rest.head(LISTED).iter_rows())
    return _Parsed(*numeric(frame), blank, len(known), odd, sequence_length)


def _collected(name: str, parts: Iterator[_Parsed], spool: Spool) -> Readings:
    readings = Readings(spool, name)
    pace = step_lines.Pace()
    length: int | None = None
    for part in parts:
        readings.lines_blank += part.blank
        readings.lines_understood += part.understood
        readings.list_odd(part.odd)
        length = part.sequence_length if length is None else length
        if len(part.frame):
            readings.add(pace(part.frame) if name == step_lines.NAME else part.frame, part.nonfinite)
    if name == step_lines.NAME:
        readings.rate_unit, readings.rate_from = "steps/s", "steps / train_time"
    elif name == megatron.NAME:
        readings.rate_from = "global batch size / elapsed time per iteration"
        readings.rate_unit = "samples/s" if length is None else "Ktok/s"
        readings.derived = [] if length is None else megatron.in_tokens(length)
    elif name == mllog.NAME:
        readings.rate_unit = "samples/s"
    return readings
