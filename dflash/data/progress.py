"""The bar of `prepare` on standard error: bytes of the input done, rows a second, time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dflash.data.chunk import Chunk
from dflash.data.manifest import Counts


class PrepareProgress:
    """Follows chunks from the reader to their end. Bytes are those of the files as they lie on the disk, compressed or not."""

    def __init__(self, total_bytes: int, *, shown: bool) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._reading = self._bar.add_task("tokenising", total=max(1, total_bytes), told="")
        self._bytes_of: dict[int, int] = {}
        self._rows = self._rejected = 0
        self._started = time.monotonic()

    def __enter__(self) -> PrepareProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def watched(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The same chunks; takes down how many bytes of the files each stands for."""
        file, position = "", 0
        for chunk in chunks:
            covered = 0
            for segment in chunk.segments:
                before = position if segment.file == file else 0
                file, position = segment.file, segment.position
                covered += position - before
            self._bytes_of[chunk.number] = covered
            yield chunk

    def done(self, number: int, counts: Counts) -> None:
        """A chunk is done."""
        self._rows += counts.rows_read
        self._rejected += counts.rejected
        rate = self._rows / max(1e-9, time.monotonic() - self._started)
        told = f"{self._rows:,} rows, {rate:,.0f}/s" + (f", {self._rejected:,} rejected" if self._rejected else "")
        self._bar.update(self._reading, advance=self._bytes_of.pop(number, 0), told=told)

    def laid_out(self, rows: int) -> Callable[[int], None]:
        """Begins the second bar, the flat form; the function is to be called with the rows done."""
        task = self._bar.add_task("laying out", total=rows, told="")
        return lambda done: self._bar.advance(task, done)
