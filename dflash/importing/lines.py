"""Text logs as frames of numbered lines, a chunk at a time, so that a file of any size is read in bounded memory.

gzip and Zstandard are known by their first bytes, UTF-16 by its byte order mark; bytes that are no text become the replacement character.
Colours (ANSI escapes) and carriage returns are taken off. A line longer than `MAX_LINE_BYTES` is cut there: no log line is that long, and a
file without line ends must not fill the memory. A compressed file that breaks off is read as far as it goes, with a note.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import polars as pl
import zstandard

from dflash.errors import RefusedInput

CHUNK_BYTES = 16 * 2**20
MAX_LINE_BYTES = 2**16
BROKEN = (EOFError, zlib.error, zstandard.ZstdError)  # what reading a damaged compressed file raises, beside OSError
_ANSI = r"\x1b\[[0-9;?]*[ -/]*[@-~]"
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: "utf-8"}


@dataclass
class LineReader:
    """Reads one file. `lines_read` and `notes` tell, once it is through, how many lines there were and what was odd."""

    path: Path
    lines_read: int = 0
    notes: list[str] = field(default_factory=list)

    def chunks(self) -> Iterator[pl.DataFrame]:
        """Frames of `line` (Int64, from 1) and `text` (String, cleaned).

        Raises:
            RefusedInput: the file can't be opened or read.
        """
        return (numbered_lines(*chunk) for chunk in self.texts())

    def texts(self) -> Iterator[tuple[int, str]]:
        """The same before it is taken apart: the number of a chunk's first line, and its lines joined by newlines.

        Raises:
            RefusedInput: the file can't be opened or read.
        """
        for text in self._texts():
            first = self.lines_read + 1
            self.lines_read += text.count("\n") + 1
            yield first, text

    def _texts(self) -> Iterator[str]:
        """Whole lines joined by newlines, the last newline left off."""
        with open_bytes(self.path) as stream:
            mark, encoding = _byte_order_mark(stream)
            decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
            held, cut = decoder.decode(mark), False
            while chunk := self._read(stream):
                held += decoder.decode(chunk)
                if len(chunk) < CHUNK_BYTES:  # the file's end: kept together, so that wrapped lines can be joined
                    continue
                whole, newline, rest = held.rpartition("\n")
                if newline:
                    yield whole
                    held = rest
                if len(held) > MAX_LINE_BYTES:
                    cut, held = True, held[:MAX_LINE_BYTES]
            held += decoder.decode(b"", final=True)
            if held:
                yield held.removesuffix("\n")
            if cut:
                self.notes.append(f"{self.path.name}: a line longer than {MAX_LINE_BYTES:,} characters was cut")

    def _read(self, stream: IO[bytes]) -> bytes:
        """Up to a chunk; what came before a break in a compressed file is kept."""
        read, size = [], 0
        try:
            while size < CHUNK_BYTES and (part := stream.read1(CHUNK_BYTES)):  # type: ignore[attr-defined]
                read.append(part)
                size += len(part)
        except BROKEN as error:
            note = f"{self.path.name}: the compressed file breaks off ({error}); read as far as it goes"
            self.notes = list(dict.fromkeys([*self.notes, note]))
        except OSError as error:
            raise RefusedInput(f"{self.path}: can't be read ({error.strerror or error})") from error
        return b"".join(read)


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, uncompressed; reading them may raise one of `BROKEN`.

    Raises:
        RefusedInput: the file can't be opened.
    """
    try:
        file: Any = path.open("rb")
        magic = file.read(4)
        file.seek(0)
    except OSError as error:
        raise RefusedInput(f"{path}: can't be read ({error.strerror or error})") from error
    if magic[:2] == b"\x1f\x8b":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if magic == b"\x28\xb5\x2f\xfd":
        return cast(IO[bytes], zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=True))
    return cast(IO[bytes], file)


def _byte_order_mark(stream: IO[bytes]) -> tuple[bytes, str]:
    """The first bytes without a mark, and the encoding the mark names."""
    try:
        first = stream.read(4)
    except (*BROKEN, OSError):
        return b"", "utf-8"
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if first.startswith(mark):
            return first[len(mark) :], encoding
    return first, "utf-8"


def numbered_lines(first: int, text: str) -> pl.DataFrame:
    """A chunk as a frame of `line` and `text`."""
    lines = pl.Series("text", [text], dtype=pl.String).str.split("\n").explode()
    numbers = pl.int_range(first, first + len(lines), eager=True, dtype=pl.Int64).alias("line")
    return pl.DataFrame([numbers, clean(lines, "\x1b" in text)])


def clean(texts: pl.Series, coloured: bool = True) -> pl.Series:
    """Lines without colours, line ends and trailing blanks, cut at the longest a line may be."""
    if coloured:
        texts = texts.str.replace_all(_ANSI, "")
    too_long = texts.str.len_bytes() > MAX_LINE_BYTES
    if too_long.any():
        texts = pl.select(pl.when(too_long).then(texts.str.head(MAX_LINE_BYTES)).otherwise(texts)).to_series()
    return texts.str.strip_chars_end("\r\n \t")
