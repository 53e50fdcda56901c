"""Read a run's events as polars frames, whole or as they grow.

Only whole lines count: a torn last line is left for the next read. `Tail` remembers a byte offset per file, so following a run costs
what is new, never its history. Lines that are no JSON object are counted in `bad_lines` and skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import polars as pl


class Tail:
    """Follows the event files of a run's folder, those of later sessions included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bad_lines = 0
        self._offsets: dict[Path, int] = {}

    def new_events(self) -> list[dict[str, Any]]:
        """Events that came since the last call: file by file in order of name, each file in order of writing."""
        events: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("*.jsonl")):
            events.extend(self._read(path))
        return events

    def _read(self, path: Path) -> list[dict[str, Any]]:
        offset = self._offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            chunk = file.read()
        whole = chunk.rfind(b"\n") + 1
        self._offsets[path] = offset + whole
        return [event for line in chunk[:whole].splitlines() if (event := self._parse(line)) is not None]

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            event = None
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            return event
        self.bad_lines += 1
        return None


def read_events(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """All events of a run so far, of these kinds (all kinds if none is named)."""
    return [event for event in Tail(folder).new_events() if not kinds or event["event"] in kinds]


def event_frame(events: list[dict[str, Any]], kind: str) -> pl.DataFrame:
    """The events of one kind as a frame; a column that a row lacks is null there. No such event: an empty frame."""
    rows = [event for event in events if event["event"] == kind]
    return pl.from_dicts(rows, infer_schema_length=None) if rows else pl.DataFrame()


def committed_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """One row a step: after a resume the steps done again replace the ones they repeat."""
    if steps.is_empty():
        return steps
    return steps.sort("time").unique(subset="step", keep="last").sort("step")
