"""The text of a file as blocks of UTF-8, whatever it is packed in (gzip, zstd) and written in (UTF-8, UTF-16, UTF-32).

Text in UTF-16 or UTF-32 is told by its mark, or by the zero bytes beside its first letter, and rewritten as it streams by.
"""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Iterator
from typing import BinaryIO

import zstandard

_COMPRESSED_READ_BYTES = 2**16  # a few of them inflate to a block; one can't inflate to more than memory holds
UTF8_MARK = codecs.BOM_UTF8
_MARKS = (  # the longer first: the mark of UTF-16 begins that of UTF-32
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def text_blocks(raw: BinaryIO, packing: str, block_bytes: int) -> Iterator[bytes]:
    """The text, about `block_bytes` at a time. `packing` is `gz`, `zst` or empty.

    Raises:
        UnicodeDecodeError: the file says it is UTF-16 or UTF-32, and is not.
        EOFError, OSError, zlib.error, zstandard.ZstdError: it is damaged or can't be read.
    """
    blocks = _unpacked(raw, packing, block_bytes)
    first = next(blocks, b"")
    encoding = _encoding_of(first)
    if encoding is None:
        if first:
            yield first
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    yield decoder.decode(first).encode()
    for block in blocks:
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


def _encoding_of(start: bytes) -> str | None:
    """The encoding a file begins in, when it is not UTF-8."""
    marked = next((name for mark, name in _MARKS if start.startswith(mark)), None)
    if marked is None and len(start) >= 4 and start[:2] != b"\0\0":
        zeros = [byte == 0 for byte in start[:4]]
        return "utf-16-le" if zeros == [False, True] * 2 else "utf-16-be" if zeros == [True, False] * 2 else None
    return marked


def _unpacked(raw: BinaryIO, packing: str, block_bytes: int) -> Iterator[bytes]:
    if packing == "zst":
        yield from _unzstd(raw, block_bytes)
    elif packing == "gz":
        with gzip.GzipFile(fileobj=raw) as inflated:
            while block := inflated.read(block_bytes):
                yield block
    else:
        while block := raw.read(block_bytes):
            yield block


def _unzstd(raw: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    """Frame after frame; unlike the library's own stream reader it notices a last frame that is cut off."""
    gathered: list[bytes] = []
    frame = None
    while packed := raw.read(_COMPRESSED_READ_BYTES):
        while packed:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            gathered.append(frame.decompress(packed))
            packed = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
        if sum(map(len, gathered)) >= block_bytes:
            yield b"".join(gathered)
            gathered.clear()
    if frame is not None:
        raise EOFError("the last zstd frame has no end")
    yield b"".join(gathered)
