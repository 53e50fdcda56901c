"""All runs of a folder at a glance, read from the ends of their event files: a run of a million steps is listed as fast as a new one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson

from dflash.runs.folder import RunFolder, list_runs

_TAIL_BYTES = 256 * 1024
_LOG_CLOCK_SECONDS = 1e8  # an imported log without dates counts from 0


def describe_runs(runs: Path) -> list[dict[str, Any]]:
    """One row a run: run, state, step, total_steps, loss, acceptance_length, ktok_s (over the steps read), last_event."""
    return [describe_run(run) for run in list_runs(runs)]


def describe_run(run: RunFolder) -> dict[str, Any]:
    """See `describe_runs`. What no event tells is None."""
    events = last_events(run.events)
    steps = [event for event in events if event["event"] == "step"]
    newest = steps[-1] if steps else {}
    last = events[-1]["time"] if events and events[-1]["time"] > _LOG_CLOCK_SECONDS else None
    return {
        "run": run.name,
        "state": run.state(),
        "step": newest.get("step", 0),
        "total_steps": total_steps_of(run.events),
        "loss": _rounded(newest.get("loss")),
        "acceptance_length": _rounded(newest.get("acceptance_length")),
        "ktok_s": _ktok_per_second(steps),
        "last_event": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last)) if last else None,
    }


def last_events(events: Path) -> list[dict[str, Any]]:
    """The last quarter MiB of the newest session's events; torn lines left out."""
    files = _session_files(events)
    if not files:
        return []
    with files[-1].open("rb") as file:
        file.seek(max(files[-1].stat().st_size - _TAIL_BYTES, 0))
        lines = file.read().splitlines()
    return [event for line in lines if (event := _event(line)) is not None]


def total_steps_of(events: Path) -> int | None:
    """Optimiser steps of the whole run, as its newest session found them when it began; None before that."""
    for path in reversed(_session_files(events)):
        with path.open("rb") as file:
            for line in file.readlines(64 * 1024):
                event = _event(line)
                if event is not None and event["event"] == "run_started":
                    return int(event["total_steps"])
    return None


def _session_files(events: Path) -> list[Path]:
    """One file a session, oldest first; an imported run has one for all."""
    return sorted(events.glob("coordinator-*.jsonl")) or sorted(events.glob("imported-*.jsonl"))


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _ktok_per_second(steps: list[dict[str, Any]]) -> float | None:
    """Real tokens committed per second between the first and the last of these steps."""
    if len(steps) < 2 or "tokens" not in steps[-1]:
        return None
    clock = "seconds" if "seconds" in steps[0] and "seconds" in steps[-1] else "time"  # the first is never set
    seconds = float(steps[-1][clock] - steps[0][clock])
    if seconds <= 0:
        return None
    return round(sum(int(step["tokens"]) for step in steps[1:]) / seconds / 1_000, 2)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
