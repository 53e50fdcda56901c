"""Append-only event files: one JSON object a line, one writer a file.

Each event is written with one unbuffered write, so a SIGKILL loses nothing that was logged and can at most tear the last line, which
readers skip. Every line has `event`, `time` (seconds since 1970) and `seconds` (since the recorder was opened, on a clock that only
goes forward). When the machine's clock is set back, `time` goes on as if it had not been: it never goes back in a file. NaN and
infinities become null, with their keys listed in `nonfinite`.

Events and their fields are listed in docs/events.md.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from dflash.errors import RunFailed

SCHEMA_VERSION = 1


class Recorder:
    """Writes events to one new file of a run."""

    def __init__(self, folder: Path, writer: str) -> None:
        """Open `folder/<writer>-<n>.jsonl`, with the first n that is free, so that each session has a file of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _open_new(folder, writer)
        self._started = self._last_moment = time.monotonic()
        self._last_time = time.time()
        self.write_seconds = 0.0
        self.observers: list[Callable[[dict[str, Any]], None]] = []
        """Told of each event once it is written, and counted into `write_seconds`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def record(self, event: str, **fields: Any) -> None:
        """Append one event.

        Raises:
            RunFailed: the disk is full or the folder is gone.
        """
        started = time.perf_counter()
        whole = {"event": event, **self._now(), **fields}
        try:
            os.write(self._file, encode(whole))
        except OSError as error:
            raise RunFailed(f"{self.path}: can't write events ({error.strerror}); make room, then `dflash resume`") from error
        for observe in self.observers:
            observe(whole)
        self.write_seconds += time.perf_counter() - started

    def _now(self) -> dict[str, float]:
        moment = time.monotonic()
        self._last_time = max(time.time(), self._last_time + moment - self._last_moment)
        self._last_moment = moment
        return {"time": self._last_time, "seconds": moment - self._started}

    def close(self) -> None:
        """Close the file; nothing was buffered."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def encode(fields: dict[str, Any]) -> bytes:
    """One event as a JSON line."""
    nonfinite = [key for key, value in fields.items() if isinstance(value, float) and not math.isfinite(value)]
    if nonfinite:
        fields = {**fields, "nonfinite": nonfinite}
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def _open_new(folder: Path, writer: str) -> tuple[Path, int]:
    for number in range(100_000):
        path = folder / f"{writer}-{number:04d}.jsonl"
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunFailed(f"{path}: can't be opened for events ({error.strerror})") from error
    raise RunFailed(f"{folder}: holds 100,000 files of {writer}; start a new run")
