"""What tells runs apart at a glance: where their configs differ, and a note anybody may keep with a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash.errors import DFlashError
from dflash.runs.folder import RunFolder, write_text

NOTE = "note.txt"
MOST_NOTE_CHARACTERS = 2_000
_PATHS = ("data.path", "target.path")


def config_differences(runs: Sequence[RunFolder]) -> dict[str, str]:
    """For each run, by name, the settings that not all of the runs share, as `section.key=value` with commas.

    A run without a readable config differs in nothing that can be told. Paths are left out.
    """
    settings = {run.name: _flat(run) for run in runs}
    keys = {key for values in settings.values() for key in values}
    told = [values for values in settings.values() if values]
    differing = sorted(key for key in keys if key not in _PATHS and len({repr(values.get(key)) for values in told}) > 1)
    return {name: ", ".join(f"{key}={values[key]}" for key in differing if key in values) for name, values in settings.items()}


def read_note(run: RunFolder) -> str:
    """The note kept with a run; empty if there is none."""
    try:
        return (run.path / NOTE).read_text(encoding="utf-8", errors="replace")[:MOST_NOTE_CHARACTERS].strip()
    except OSError:
        return ""


def write_note(run: RunFolder, text: str) -> None:
    """Keep a note with a run.

    Raises:
        RunFailed: the run's folder can't be written.
    """
    write_text(run.path / NOTE, text[:MOST_NOTE_CHARACTERS] + "\n")


def _flat(run: RunFolder) -> dict[str, Any]:
    try:
        tree = run.config().model_dump(mode="json")
    except DFlashError:
        return {}
    return {f"{section}.{key}": value for section, values in tree.items() for key, value in values.items()}
