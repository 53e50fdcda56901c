"""The folder of a run. A reader needs only this folder; nothing else holds state.

runs/<name>/config.yaml     every setting
            manifest.json   versions, hardware, git, data
            events/         *.jsonl, append-only, one writer a file
            console.log     what a background run printed
            checkpoints/    step-00000100/, the newest few
            control/        mailbox, see control.py
            process.json    pid and beginning of the process that drives it, and its session's id
            exit.json       how its last session ended; absent while one is under way

A run that was imported from a log has imported.json and events/; config.yaml only if the user gave one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.config import RunConfig, build_config, dump_config, load_config
from dflash.errors import RefusedInput, RunFailed
from dflash.runs.hold import LOCK, Hold
from dflash.runs.process import beginning_of

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
        if self.exit_record():
            reason = self.exit_record().get("reason")
            return None if reason is None else str(reason)
        if self.state() == "crashed":
            return f"its process ended without a word; `dflash resume {self.path}` goes on from its last checkpoint"
        return None

    def is_driven(self) -> bool:
        """Whether a session is under way: none has recorded its end, and its process lives (same pid AND beginning, no zombie)."""
        if (self.path / "exit.json").exists():
            return False
        process = read_json(self.path / "process.json")
        pid, began = process.get("pid"), process.get("began")
        return isinstance(pid, int) and began is not None and beginning_of(pid) == began

    @contextmanager
    def driven(self) -> Iterator[Hold]:
        """Hold the run while driving it: no second process may. The lock goes with the process, however it dies.

        Gives the hold, which finds the folder again should it be moved meanwhile.

        Raises:
            RefusedInput: another process drives it.
        """
        with (self.path / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                pid = read_json(self.path / "process.json").get("pid", "?")
                raise RefusedInput(f"{self.path}: process {pid} is driving this run; stop that first") from error
            (self.path / "exit.json").unlink(missing_ok=True)
            me = os.getpid()
            write_json(self.path / "process.json", {"pid": me, "began": beginning_of(me), "session": uuid.uuid4().hex})
            yield Hold(self, lock.fileno())

    def write_exit(self, state: str, **fields: Any) -> None:
        """Record how this session ended; without this record a dead run counts as crashed."""
        write_json(self.path / "exit.json", {"state": state, "time": time.time(), **fields})


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
    if run.is_driven():
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
