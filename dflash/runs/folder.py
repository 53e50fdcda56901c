"""The folder of a run. A reader needs only this folder; nothing else holds state.

runs/<name>/config.yaml     every setting
            manifest.json   versions, hardware, git, data
            events/         *.jsonl, append-only, one writer a file
            console.log     what a background run printed
            checkpoints/    step-00000100/, the newest few
            control/        mailbox, see control.py
            process.json    the process that drives it: pid and beginning, where these count, its host; and its session's id
            run.lock        held while it is driven, and touched as a sign of life for other machines
            exit.json       how its last session ended; absent while one is under way

A run that was imported from a log has imported.json and events/; config.yaml only if the user gave one.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.config import RunConfig, build_config, dump_config, load_config
from dflash.errors import RefusedInput, RunFailed
from dflash.runs import heartbeat
from dflash.runs.hold import LOCK, Hold
from dflash.runs.process import beginning_of, pid_space
from dflash.telemetry.console import format_duration

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run and what its files say."""

    path: Path

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def events(self) -> Path:
        """Folder of the event files."""
        return self.path / "events"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def console_log(self) -> Path:
        """Progress lines and warnings, as printed."""
        return self.path / "console.log"

    @property
    def output_log(self) -> Path:
        """Everything a background process printed, tracebacks included."""
        return self.path / "output.log"

    @property
    def is_imported(self) -> bool:
        """Whether it was made from a log by `dflash import`."""
        return (self.path / "imported.json").is_file()

    def config(self) -> RunConfig:
        """The run's settings.

        Raises:
            RefusedInput: it has no config.yaml, as most imported runs, or one that can't be read.
        """
        return load_config(self.path / "config.yaml")

    def manifest(self) -> dict[str, Any]:
        """Versions, hardware, git and data; empty if it was never written."""
        return read_json(self.path / "manifest.json")

    def exit_record(self) -> dict[str, Any]:
        """How the last session ended; empty while one is under way, or when its process ended without a word."""
        return read_json(self.path / "exit.json")

    def process(self) -> dict[str, Any]:
        """The process that drives it, or did last: pid, began, pid_space, host, session; empty if none ever did."""
        return read_json(self.path / "process.json")

    def state(self) -> str:
        """`running`, `finished`, `stopped`, `failed`, `crashed` (see `reason`), `new` (never started) or `imported`."""
        if self.is_imported:
            return "imported"
        if self.is_driven():
            return "running"
        record = self.exit_record()
        if record:
            return str(record.get("state", "failed"))
        return "crashed" if (self.path / "process.json").exists() else "new"

    def reason(self) -> str | None:
        """Why its last session ended as it did, as far as that is known.

        A run is `crashed` when what carried its workers died, which its record tells, or when its own process did, which leaves none.
        """
        record = self.exit_record()
        if record:
            return None if record.get("reason") is None else str(record["reason"])
        if self.state() != "crashed":
            return None
        remedy = f"`dflash resume {self.path}` goes on from its last checkpoint"
        if _is_elsewhere(self.process()):
            silent = heartbeat.seconds_silent(self.path / LOCK)
            since = f" for {format_duration(silent)}" if math.isfinite(silent) else ""
            return f"no sign of life of {self.driver()}{since}; {remedy}"
        return f"its process ended without a word; {remedy}"

    def driver(self) -> str:
        """The process that drives it, or did last, in words."""
        process = self.process()
        return f"process {process.get('pid', '?')} on {process.get('host', 'an unknown host')}"

    def is_driven(self, *, patient: bool = False) -> bool:
        """Whether a session is under way: none has recorded its end, and its process lives.

        A process of this machine lives if its pid and beginning do (a zombie does not), one of another machine or container if the run's
        heartbeat came within `SILENT_SECONDS`.

        Args:
            patient: of a run elsewhere that seems silent, watch a few seconds for a heartbeat before saying no: its clock may be another.
        """
        if self._has_ended():
            return False
        process = self.process()
        if not _is_elsewhere(process):
            pid, began = process.get("pid"), process.get("began")
            return isinstance(pid, int) and began is not None and beginning_of(pid) == began
        is_alive = heartbeat.seconds_silent(self.path / LOCK) < heartbeat.SILENT_SECONDS
        return is_alive or (patient and heartbeat.beats(self.path / LOCK) and not self._has_ended())

    def _has_ended(self) -> bool:
        try:  # listed, because a network folder that is asked for a name it lacked answers from memory for a while
            return "exit.json" in os.listdir(self.path)
        except OSError:
            return False

    @contextmanager
    def driven(self, show: Callable[[str], None] = print) -> Iterator[Hold]:
        """Hold the run while driving it: no second process may. The lock goes with the process, however it dies.

        Not every network folder shares locks between machines. So if the last process was one of another machine and left no exit record,
        its heartbeat is watched for a while first, which `show` is told.

        Gives the hold, which finds the folder again should it be moved meanwhile.

        Raises:
            RefusedInput: another process drives it.
            RunFailed: the folder can't be locked.
        """
        refusal = f"{self.path}: {self.driver()} is driving this run; stop that first"
        with (self.path / LOCK).open("a") as lock:  # opened to be written anew, it would seem touched
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RefusedInput(refusal) from error
            except OSError as error:
                raise RunFailed(
                    f"{self.path / LOCK}: can't be locked ({error.strerror}): another process could drive the run too"
                ) from error
            if _is_elsewhere(self.process()) and not self._has_ended():
                show(
                    f"{self.path}: watching for a sign of life of {self.driver()} for {heartbeat.WATCH_SECONDS:g} s, before it is taken over"
                )
                if heartbeat.beats(self.path / LOCK):
                    raise RefusedInput(refusal)
            (self.path / "exit.json").unlink(missing_ok=True)
            write_json(self.path / "process.json", _this_process())
            with heartbeat.beating(lock.fileno()):
                yield Hold(self, lock.fileno())

    def write_exit(self, state: str, **fields: Any) -> None:
        """Record how this session ended; without this record a dead run counts as crashed."""
        write_json(self.path / "exit.json", {"state": state, "time": time.time(), **fields})


def _is_elsewhere(process: dict[str, Any]) -> bool:
    """Whether a process is one of another machine or container."""
    here = pid_space()
    return bool(process.get("pid_space", here) != here)


def _this_process() -> dict[str, Any]:
    me = os.getpid()
    return {
        "pid": me,
        "began": beginning_of(me),
        "pid_space": pid_space(),
        "host": os.uname().nodename,
        "session": uuid.uuid4().hex,
    }


def create_run(runs: Path, name: str | None, config: RunConfig) -> RunFolder:
    """Make a new run's folder and write its config.

    Raises:
        RefusedInput: the name is taken or can't be a folder's.
        RunFailed: the folder can't be written.
    """
    name = name or time.strftime("run-%Y%m%d-%H%M%S")
    if not _NAME.fullmatch(name):
        raise RefusedInput(f"--name {name!r}: use letters, digits and . _ + - (at most 100, the first a letter or digit)")
    path = runs / name
    try:
        runs.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        (path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    except FileExistsError as error:
        raise RefusedInput(f"{path} is there already: give another --name, or go on with `dflash resume {path}`") from error
    except OSError as error:
        raise RunFailed(f"{path}: can't be made ({error.strerror})") from error
    return RunFolder(path)


def change_config(run: RunFolder, overrides: list[str]) -> None:
    """Change settings of a run that is to be resumed. Those its checkpoints depend on are refused when it goes on.

    Raises:
        RefusedInput: a process is driving the run, or a setting is refused; the old config stays.
    """
    if run.is_driven(patient=True):
        raise RefusedInput(f"{run.path}: it is running; settings are changed when it is resumed")
    tree = run.config().model_dump(mode="json")
    changed = build_config(tree, overrides, place=str(run.path / "config.yaml"))
    write_text(run.path / "config.yaml", dump_config(changed))


def open_run(run: str | Path, runs: Path = Path("runs")) -> RunFolder:
    """A run by its folder, or by its name in `runs`.

    Raises:
        RefusedInput: no such run.
    """
    for path in (Path(run), runs / run):
        if (path / "config.yaml").is_file() or (path / "imported.json").is_file():
            return RunFolder(path)
    known = ", ".join(each.name for each in list_runs(runs)) or "none"
    raise RefusedInput(f"{run}: no run there (a run's folder holds config.yaml or imported.json); runs in {runs}: {known}")


def list_runs(runs: Path) -> list[RunFolder]:
    """The runs of a folder, oldest first; none if the folder is not there."""
    marks = {path.parent: path.stat().st_mtime for name in ("imported.json", "config.yaml") for path in runs.glob(f"*/{name}")}
    return [RunFolder(path) for path in sorted(marks, key=lambda path: marks[path])]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty when it is missing, torn or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object as `write_text` does."""
    write_text(path, json.dumps(value, indent=1, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    Raises:
        RunFailed: it can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise RunFailed(f"{path}: can't be written ({error.strerror})") from error
