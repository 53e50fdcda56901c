"""Checkpoints of a run: whole or not there, checked when read, the newest few kept, and the best one.

A checkpoint is a folder `step-00000100` with model.safetensors, optimizer.safetensors and state.json (the coordinator's state, what the
weights belong to, and a checksum of each other file). It is written under a name that readers ignore, flushed to disk, then
renamed. A checkpoint that is cut short or altered is passed over, and the one before it is used, and said.

The best checkpoint (see `runs.best`) is written the same way, with what serving needs and without the optimiser; a run never resumes from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.errors import RefusedInput, RunFailed
from dflash.pipeline.jobs import Save
from dflash.runs.best import Best, Measure, best_folders, best_state, next_best_name, read_best
from dflash.runs.folder import read_json

FORMAT = 1
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint."""

    folder: Path
    step: int
    state: dict[str, Any]


@dataclass
class CheckpointStore:
    """The checkpoints folder of one run. `belongs_to` is what weights and ledger depend on; resuming with another is refused."""

    folder: Path
    keep: int
    belongs_to: dict[str, Any]
    warn: Callable[[str], None]
    look: Callable[[], None] = lambda: None
    """Called before anything is written: the last moment to see that the folder was moved."""
    on_saved: Callable[[int, Path, int, Best | None], None] = lambda step, folder, size_bytes, best: None

    def begin(self, step: int, *, weights_only: bool = False) -> Save:
        """The job that writes weights and optimiser, into a folder readers don't see yet.

        Raises:
            RunFailed: the folder can't be made.
        """
        self.look()
        part = self._part(step)
        for left_over in self.folder.glob(".part-*"):  # of a session that was killed while it wrote
            shutil.rmtree(left_over, ignore_errors=True)
        try:
            self.folder.mkdir(exist_ok=True)  # never the run's folder: if that was moved, it is not to be made anew
            part.mkdir()
        except OSError as error:
            raise RunFailed(f"{part}: can't be made ({error.strerror}); make room, then `dflash resume`") from error
        return Save(part, weights_only)

    def commit(self, step: int, state: dict[str, Any]) -> None:
        """Add the state, flush, rename, and remove checkpoints beyond `keep`.

        Raises:
            RunFailed: it can't be written; the checkpoints before it are whole.
        """
        self.look()
        self.on_saved(step, *self._publish(step, f"{_PREFIX}{step:08d}", state), None)
        for old in self._folders()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def commit_best(self, step: int, acceptance_length: float, measure: Measure) -> Best:
        """Make what `begin` has written (weights only) the best checkpoint, in the place of the one before.

        Raises:
            RunFailed: it can't be written; the checkpoints before it, the best included, are whole.
        """
        self.look()
        name = next_best_name(self.folder, step)
        folder, size_bytes = self._publish(step, name, best_state(acceptance_length, measure))
        best = Best(folder, step, acceptance_length, measure)
        self.on_saved(step, folder, size_bytes, best)
        for old in best_folders(self.folder)[1:]:
            shutil.rmtree(old, ignore_errors=True)
        return best

    def best(self) -> Best | None:
        """The best checkpoint; None if there is none, or none that is whole."""
        for folder in best_folders(self.folder):
            fault = find_fault(folder)
            best = read_best(folder) if fault is None else None
            if best is not None:
                return best
            self.warn(f"{folder}: {fault or 'state.json is none of a best checkpoint'}; passed over")
        return None

    def _publish(self, step: int, name: str, state: dict[str, Any]) -> tuple[Path, int]:
        """Let readers see what was written; returns the folder and its bytes."""
        part, final = self._part(step), self.folder / name
        try:
            files = {path.name: checksum(path) for path in sorted(part.iterdir())}
            whole = {"format": FORMAT, "step": step, "belongs_to": self.belongs_to, "files": files, **state}
            (part / "state.json").write_text(json.dumps(whole), encoding="utf-8")
            for path in [*part.iterdir(), part]:
                _flush(path)
            if final.exists():
                shutil.rmtree(final)
            os.replace(part, final)
            _flush(self.folder)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise RunFailed(
                f"{final}: can't be written ({error.strerror}); earlier checkpoints are whole. Make room, then `dflash resume`"
            ) from error
        return final, sum(path.stat().st_size for path in final.iterdir())

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint, or None if there never was one.

        Raises:
            RefusedInput: it belongs to another config or data set, or there are checkpoints but none is whole.
        """
        folders = self._folders()
        for folder in reversed(folders):
            fault = find_fault(folder)
            if fault is None:
                state = read_json(folder / "state.json")
                self._refuse_foreign(folder, state["belongs_to"])
                return Checkpoint(folder, int(state["step"]), state)
            self.warn(f"{folder}: {fault}; passed over, the checkpoint before it is used")
        if folders:
            raise RefusedInput(f"{self.folder}: none of {len(folders)} checkpoints is whole; start a new run")
        return None

    def _refuse_foreign(self, folder: Path, theirs: dict[str, Any]) -> None:
        differing = [told for key, ours in self.belongs_to.items() for told in _differences(key, theirs.get(key), ours)]
        if differing:
            raise RefusedInput(f"{folder} belongs to another setting ({'; '.join(differing)}); set them back, or start a new run")

    def _part(self, step: int) -> Path:
        return self.folder / f".part-{step:08d}"

    def _folders(self) -> list[Path]:
        return sorted(path for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir())


def newest_step(folder: Path) -> int:
    """The step of the newest whole checkpoint of a run, 0 without any."""
    for path in sorted(folder.glob(f"{_PREFIX}*"), reverse=True):
        if find_fault(path) is None:
            return int(path.name.removeprefix(_PREFIX))
    return 0


def find_fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    state = read_json(folder / "state.json")
    if not state:
        return "state.json is missing or cut short"
    if state.get("format") != FORMAT:
        return f"format {state.get('format')!r}, this version reads {FORMAT}"
    for name, expected in state["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if checksum(path) != expected:
            return f"{name} is cut short or altered"
    return None


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _differences(key: str, theirs: Any, ours: Any) -> list[str]:
    """Where two JSON values differ, by key."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        inside = (_differences(f"{key}.{name}", theirs.get(name), ours.get(name)) for name in {**theirs, **ours})
        return [told for each in inside for told in each]
    return [] if theirs == ours else [f"{key}: checkpoint {theirs!r}, now {ours!r}"]


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
