"""Read a run's events as polars frames, whole or as they grow.

Only whole lines count: a torn last line is left for the next read. `Tail` remembers a byte offset per file, so following a run costs
what is new, never its history. Lines that are no JSON object are counted in `bad_lines` and skipped.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
import polars as pl

_BEGINNING = b'{"event":"'


class Tail:
    """Follows the event files of a run's folder, those of later sessions included.

    Args:
        folder: the run's events.
        kinds: events wanted; lines of other kinds are skipped, most of them unparsed. None: all.
        most_bytes: read at most so much of a file in one call, at least one line; `more` then says that there is more. None: all.
    """

    def __init__(self, folder: Path, *, kinds: Collection[str] | None = None, most_bytes: int | None = None) -> None:
        self.folder = folder
        self.kinds = kinds
        self.most_bytes = most_bytes
        self.bad_lines = 0
        self.more = False
        self._offsets: dict[Path, int] = {}

    def new_events(self) -> list[dict[str, Any]]:
        """Events that came since the last call: file by file in order of name, each file in order of writing."""
        events: list[dict[str, Any]] = []
        self.more = False
        for path in sorted(self.folder.glob("*.jsonl")):
            events.extend(self._read(path))
            if self.more:  # a later session's file only when this one is read to its end
                break
        return events

    def _read(self, path: Path) -> list[dict[str, Any]]:
        offset = self._offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            chunk = file.read(-1 if self.most_bytes is None else self.most_bytes)
            self.more = self.more or len(chunk) == self.most_bytes
            if len(chunk) == self.most_bytes and b"\n" not in chunk:
                chunk += file.readline()
        whole = chunk.rfind(b"\n") + 1
        self._offsets[path] = offset + whole
        wanted = [line for line in chunk[:whole].splitlines() if self._may_be_wanted(line)]
        return [event for line in wanted if (event := self._parse(line)) is not None]

    def _may_be_wanted(self, line: bytes) -> bool:
        """By the recorder's own writing of a line, which begins with the kind; lines written in another way are parsed to see."""
        if self.kinds is None or not line.startswith(_BEGINNING):
            return True
        return line[len(_BEGINNING) : line.find(b'"', len(_BEGINNING))].decode(errors="replace") in self.kinds

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            event = None
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            return event if self.kinds is None or event["event"] in self.kinds else None
        self.bad_lines += 1
        return None


def read_events(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """All events of a run so far, of these kinds (all kinds if none is named)."""
    tail = Tail(folder, kinds=kinds or None, most_bytes=64 * 2**20)
    events = tail.new_events()
    while tail.more:
        events += tail.new_events()
    return events


def event_frame(events: list[dict[str, Any]], kind: str) -> pl.DataFrame:
    """The events of one kind as a frame; a column that a row lacks is null there. No such event: an empty frame."""
    rows = [event for event in events if event["event"] == kind]
    return pl.from_dicts(rows, infer_schema_length=None) if rows else pl.DataFrame()


def committed_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """One row a step: after a resume the steps done again replace the ones they repeat, and all that came after those.

    The rows are taken in the order they have, which is that of writing in a frame of `event_frame`; no clock is asked.
    """
    if steps.is_empty():
        return steps
    lowest_after = pl.col("step").reverse().cum_min().reverse().shift(-1)
    return steps.filter(lowest_after.is_null() | (pl.col("step") < lowest_after))
