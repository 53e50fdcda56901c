"""Readings of a log of any size, kept until they are written: in memory while they are few, in temporary files beyond that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import polars as pl

MOST_BYTES_IN_MEMORY = 384 * 2**20


class Spool:
    """Frames, to be gone through any number of times, each with all columns that any of them has.

    Args:
        near: folder for temporary files, where there should be room for the run as well; None: the system's.
        most_bytes: kept in memory; None: `MOST_BYTES_IN_MEMORY`.
    """

    def __init__(self, near: Path | None = None, most_bytes: int | None = None) -> None:
        self.schema: dict[str, pl.DataType] = {}
        self._near = near if near is not None and near.is_dir() else None
        self._most_bytes = MOST_BYTES_IN_MEMORY if most_bytes is None else most_bytes
        self._room = self._most_bytes
        self._parts: list[pl.DataFrame | Path] = []
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.clear()

    def append(self, frame: pl.DataFrame) -> None:
        """Add a frame; an empty one only adds its columns.

        Raises:
            OSError: no room on disk.
        """
        for name, dtype in frame.schema.items():
            self.schema.setdefault(name, dtype)
        if frame.is_empty():
            return
        self._room -= int(frame.estimated_size())
        self._parts.append(frame if self._room > 0 else self._written(frame))

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for part in self._parts:
            frame = part if isinstance(part, pl.DataFrame) else pl.read_ipc(part)
            missing = {name: pl.lit(None, dtype) for name, dtype in self.schema.items() if name not in frame.columns}
            yield frame.with_columns(**missing) if missing else frame

    def clear(self) -> None:
        """Forget all frames and remove the temporary files."""
        self._parts, self.schema, self._room = [], {}, self._most_bytes
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _written(self, frame: pl.DataFrame) -> Path:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix=".import-", dir=self._near)
        path = Path(self._folder.name) / f"{len(self._parts)}.arrow"
        frame.write_ipc(path, compression="lz4")
        return path
