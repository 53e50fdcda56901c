"""All runs of a folder at a glance, read from the ends of their event files: a run of a million steps is listed as fast as a new one."""

from __future__ import annotations

import math
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
    sessions = _session_files(run.events)
    events = _last_events(sessions[-1]) if sessions else []
    steps = [event for event in events if event["event"] == "step"]
    newest = steps[-1] if steps else _step_resumed_from(sessions)
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


def total_steps_of(events: Path) -> int | None:
    """Optimiser steps of the whole run, as its newest session found them when it began; None before that."""
    started = (_run_started(path) for path in reversed(_session_files(events)))
    return next((int(event["total_steps"]) for event in started if event is not None), None)


def _step_resumed_from(sessions: list[Path]) -> dict[str, Any]:
    """The step that a session without steps so far goes on from, as an earlier one recorded it; without more than its number if none did."""
    start = (_run_started(sessions[-1]) if sessions else None) or {}
    for path in reversed(sessions[:-1]):
        steps = [event for event in _last_events(path) if event["event"] == "step" and event["step"] <= start.get("step", math.inf)]
        if steps:
            return steps[-1]
    return {"step": start.get("step", 0)}


def _run_started(path: Path) -> dict[str, Any] | None:
    """How the session began; None before it tells."""
    with path.open("rb") as file:
        events = (_event(line) for line in file.readlines(64 * 1024))
        return next((event for event in events if event is not None and event["event"] == "run_started"), None)


def _last_events(path: Path) -> list[dict[str, Any]]:
    """Those of a session's last quarter MiB; torn lines left out."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
        lines = file.read().splitlines()
    return [event for line in lines if (event := _event(line)) is not None]


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
