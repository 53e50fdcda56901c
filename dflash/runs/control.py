"""A run's mailbox: how anyone who may write to its folder steers it while it trains.

A command is a JSON file written beside the inbox and renamed into it, so the run sees it whole or not at all. No port is opened: the
file permissions are the access control. The run answers each command with a `change` event (accepted or refused, old, new, why) and
removes the file. A command carries the session it was meant for; one left over from an earlier session is refused as stale, by that
name and not by a clock. Whatever else lies in the inbox (too large, not JSON, a link, another user's) is refused and removed, and does
no harm.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from dflash.errors import RefusedInput, RunFailed
from dflash.runs.folder import RunFolder
from dflash.telemetry.reader import Tail

Action = Literal["set", "pause", "continue", "checkpoint", "stop"]
ACTIONS: tuple[str, ...] = get_args(Action)
LARGEST_COMMAND_BYTES = 64 * 1024
COMMANDS_A_POLL = 100
_ID = re.compile(r"(\d{20})-[0-9a-f]{8}\.json")


@dataclass(frozen=True)
class Command:
    """One command, as sent. `fault` says why it can't be obeyed, before anything else is looked at."""

    id: str
    action: str
    key: str | None = None
    value: Any = None
    who: str = "unknown"
    fault: str | None = None


def settings_changed(answers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a run's `change` events those that changed a setting: accepted, and no pause, continue, checkpoint or stop."""
    return [answer for answer in answers if answer.get("accepted") and answer.get("action") == "set"]


def send_command(run: RunFolder, action: str, *, key: str | None = None, value: Any = None, who: str | None = None) -> str:
    """Put a command into a run's inbox.

    Returns:
        The command's id; the run's answer is the `change` event with this id.

    Raises:
        RefusedInput: no such action, `set` without a key, or the run is not running.
        RunFailed: the mailbox can't be written.
    """
    if action not in ACTIONS:
        raise RefusedInput(f"{action}: no such action; use one of {', '.join(ACTIONS)}")
    if action == "set" and not key:
        raise RefusedInput("set needs a key and a value, as in: set pool.policy oldest")
    if not run.is_driven(patient=True):
        state = run.state()
        remedy = "" if state == "finished" else f"; go on with `dflash resume {run.path}`"
        raise RefusedInput(f"{run.path} is {state}: nobody would read the command{remedy}")
    inbox = run.path / "control" / "inbox"
    command = {
        "id": _next_id(inbox),
        "session": run.process().get("session"),
        "action": action,
        "key": key,
        "value": value,
        "who": who or f"{os.environ.get('USER') or os.getuid()}@{os.uname().nodename}",
    }
    part = inbox.parent / f".{command['id']}.part"
    try:
        inbox.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(command), encoding="utf-8")
        os.replace(part, inbox / f"{command['id']}.json")
    except OSError as error:
        raise RunFailed(
            f"{inbox}: can't be written ({error.strerror}); a run is steered by whoever may write to its folder"
        ) from error
    return str(command["id"])


def await_answer(run: RunFolder, command_id: str, seconds: float = 30.0) -> dict[str, Any]:
    """Wait for the run's `change` event for a command.

    Raises:
        RunFailed: the run ended, or did not answer in time (it may still obey).
    """
    tail, deadline = Tail(run.events), time.monotonic() + seconds
    while True:
        running = run.is_driven()
        answers = [event for event in tail.new_events() if event["event"] == "change" and event.get("id") == command_id]
        if answers:
            return answers[0]
        if not running:
            raise RunFailed(f"{run.path}: the run ended before it answered command {command_id}")
        if time.monotonic() > deadline:
            raise RunFailed(f"{run.path}: no answer to command {command_id} within {seconds:g} s; see its events later")
        time.sleep(0.05)


def _next_id(inbox: Path) -> str:
    """An id that sorts behind those of the commands that wait, even if the clock was set back since they were sent."""
    try:
        waiting = [int(found[1]) for name in os.listdir(inbox) if (found := _ID.fullmatch(name))]
    except OSError:  # none was ever sent
        waiting = []
    return f"{max(time.time_ns(), *waiting, 0) + 1:020d}-{secrets.token_hex(4)}"


class Mailbox:
    """The run's side: reads and removes what lies in the inbox."""

    def __init__(self, run: RunFolder) -> None:
        self._inbox = run.path / "control" / "inbox"
        self._refused = run.path / "control" / "refused"
        self._session = run.process().get("session")
        self._owners = {os.getuid(), 0, _owner_of(run.path / "process.json")}
        self._stuck: set[str] = set()

    def poll(self) -> list[Command]:
        """The commands that came, oldest first, a bounded number at a time; unreadable ones with their fault."""
        try:
            names = sorted(set(os.listdir(self._inbox)) - self._stuck)[:COMMANDS_A_POLL]
        except OSError:  # none was ever sent, or the folder is being moved: there is nothing to obey
            return []
        commands = []
        for name in names:
            commands.append(self._read(self._inbox / name))
            self._take_away(self._inbox / name, commands[-1].fault is not None)
        return commands

    def _take_away(self, path: Path, is_refused: bool) -> None:
        """Remove an obeyed command; keep a refused thing, of whatever kind, where it can be looked at."""
        try:
            if is_refused:
                self._refused.mkdir(exist_ok=True)
                os.replace(path, self._refused / f"{path.name[:100]}-{secrets.token_hex(4)}")
            else:
                path.unlink()
        except OSError:
            self._stuck.add(path.name)  # not ours to move: answered once, and passed over from now on

    def _read(self, path: Path) -> Command:
        fault, fields = _read_safely(path, self._owners)
        if fault is None and fields.get("session") != self._session:
            fault = "it was meant for an earlier session of this run"
        if fault is None and fields.get("action") not in ACTIONS:
            fault = f"no such action {fields.get('action')!r}"
        return Command(
            id=str(fields.get("id", os.fsencode(path.stem).decode(errors="replace")))[:100],
            action=str(fields.get("action", ""))[:100],
            key=None if fields.get("key") is None else str(fields["key"])[:200],
            value=fields.get("value"),
            who=str(fields.get("who", "unknown"))[:200],
            fault=fault,
        )


def _owner_of(path: Path) -> int:
    """Whom this process's own files belong to there: a network folder may write all of root's down to nobody."""
    try:
        return path.stat().st_uid
    except OSError:
        return os.getuid()


def _read_safely(path: Path, owners: Collection[int]) -> tuple[str | None, dict[str, Any]]:
    """A command's fields, or why it is not read: it may be anything anybody put there."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return f"it can't be opened ({error.strerror})", {}
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return "it is no regular file", {}
        if found.st_uid not in owners:
            return f"it belongs to user {found.st_uid}", {}
        if found.st_size > LARGEST_COMMAND_BYTES:
            return f"it has {found.st_size} bytes, {LARGEST_COMMAND_BYTES} at most are read", {}
        text = os.read(handle, LARGEST_COMMAND_BYTES)
    finally:
        os.close(handle)
    try:
        fields = orjson.loads(text)  # stricter than json: what it reads can be written into an event again
    except orjson.JSONDecodeError:
        return "it is not JSON", {}
    return (None, fields) if isinstance(fields, dict) else ("it is no JSON object", {})
