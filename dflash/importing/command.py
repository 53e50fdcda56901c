"""`dflash import`: find out what a log is, read it, tell its runs apart, write them.

The log is read once. Its readings wait in a spool until its runs are told apart and are then written part by part, so memory does not grow
with the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from dflash.config import RunConfig, dump_config, load_config
from dflash.errors import RefusedInput, RunFailed
from dflash.importing import console_log, megatron, mllog, step_lines, tables, tensorboard
from dflash.importing.in_order import in_order
from dflash.importing.lines import BROKEN, LineReader, numbered_lines, open_bytes
from dflash.importing.readings import LISTED, Readings, numeric
from dflash.importing.sessions import ImportedRun, placed_readings, survey_runs
from dflash.importing.spool import Spool
from dflash.importing.text_log import format_of, read_text
from dflash.importing.write import EVENTS_FILE, Batch, RunWriter, event_batches
from dflash.runs.folder import RunFolder, write_json, write_text

SHOWN_CHARACTERS = 160
MAX_JSON_BYTES = 256 * 2**20
FORMATS = (
    console_log.NAME, megatron.NAME, megatron.GOLDEN_NAME, mllog.NAME, step_lines.NAME, tensorboard.NAME, tables.CSV_NAME, tables.JSONL_NAME,
)  # fmt: skip


@dataclass(frozen=True)
class ImportResult:
    """What was read and made.

    Attributes:
        format: of the log.
        lines_read, lines_blank, lines_understood, lines_not_understood: counts that add up (of records, in TensorBoard files).
        runs: one entry a run: folder, readings, first_step, last_step, restarts, seconds, clock, label.
        not_understood: the first lines that were not, with their numbers.
        mapping: what was taken for what, where columns or tags had to be told apart.
        notes: what was odd.
    """

    format: str
    lines_read: int
    lines_understood: int
    lines_blank: int
    lines_not_understood: int
    runs: list[dict[str, Any]]
    not_understood: list[dict[str, Any]]
    mapping: dict[str, str]
    notes: list[str]


def import_logs(files: Sequence[Path], out: Path, *, mapping: Sequence[str] = (), config: Path | None = None) -> ImportResult:
    """Turn one log (in one file, or rotated into several, oldest first) into run folders.

    Args:
        files: the log; a folder stands for the TensorBoard files in it.
        out: the run's folder; with several runs in the log, OUT-1, OUT-2, ...
        mapping: NAME=COLUMN[:UNIT] for CSV, JSON lines and TensorBoard; the rest is guessed.
        config: the config the run had, to be kept with it, so that comparisons can tell what was changed.

    Raises:
        RefusedInput: a file can't be read, nothing in it was understood, or `out` is there already.
        RunFailed: the folder can't be written.
    """
    settings = load_config(config) if config is not None else None
    with Spool(near=out.absolute().parent) as spool:
        try:
            readings = read_log(files, spool, mapping)
            runs = survey_runs(readings)
            if not runs:
                raise RefusedInput(f"{files[0]}: {readings.lines_understood} lines were understood, but none holds a reading")
            folders = _new_folders(out, len(runs))
            try:
                boundaries = (settings.batching.boundaries if settings else None) or ()
                writers = {
                    id(run): (folder.events / EVENTS_FILE, RunWriter(folder.name, run, readings.rate_unit, boundaries))
                    for folder, run in zip(folders, runs.values(), strict=True)
                }
                for path, lines in in_order(event_batches(placed_readings(readings, runs), writers), _rendered):
                    with path.open("ab") as file:
                        file.write(lines)
            except BaseException:  # a part of a run would be taken for a whole one, and stand in the way of the next try
                for folder in folders:
                    shutil.rmtree(folder.path, ignore_errors=True)
                raise
        except OSError as error:
            raise RunFailed(f"{out}: can't be written ({error.strerror or error})") from error
    return _described(files, folders, list(runs.values()), readings, settings)


def read_log(files: Sequence[Path], spool: Spool, mapping: Sequence[str] = ()) -> Readings:
    """The readings of a log, whatever its format.

    Raises:
        RefusedInput: a file can't be read, or nothing in it was understood.
        OSError: there is no room for temporary files.
    """
    paths = _expanded(files)
    readings: Readings | None = None
    if all(tensorboard.is_event_file(path) for path in paths):
        readings = tensorboard.read(paths, mapping, spool)
    if readings is None and len(paths) == 1:
        readings = _read_golden(paths[0], spool)
    if readings is None and not (len(paths) == 1 and _is_table(paths[0])):
        readings = read_text(paths, spool)
    if readings is None:
        if len(paths) != 1:
            raise RefusedInput(f"{len(paths)} files in no log format we know: import tables one by one")
        readings = tables.read_table(paths[0], mapping, spool)
    if readings is None:
        raise RefusedInput(_nothing_understood(paths))
    if readings.nonfinite:
        readings.notes.append(f"{readings.nonfinite} value(s) were nan or inf; they are empty in the run")
    return readings


def _is_table(path: Path) -> bool:
    """Whether the first chunk tells so: lines of a known format come before any table."""
    for first, text in LineReader(path).texts():
        return format_of(numbered_lines(first, text)["text"]) is None and tables.begins_as_table(text)
    return False


def _read_golden(path: Path, spool: Spool) -> Readings | None:
    with open_bytes(path) as stream:
        try:
            head = stream.read(64)
            if not head.lstrip().startswith(b"{"):
                return None
            head += stream.readline()
            if _is_object(head) and stream.read(1024).strip():  # a second value after the first line: JSON lines
                return None
        except (*BROKEN, OSError, ValueError):
            return None
    with open_bytes(path) as stream:
        try:
            data = stream.read(MAX_JSON_BYTES)
            frame = megatron.read_golden(orjson.loads(data))
        except (*BROKEN, OSError, ValueError):
            return None
    if frame is None:
        return None
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    readings = Readings(spool, megatron.GOLDEN_NAME, "steps/s", "1 / iteration time", lines_read=lines, lines_understood=lines)
    readings.add(*numeric(frame))
    return readings


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _new_folders(out: Path, runs: int) -> list[RunFolder]:
    """Folders for so many runs, empty."""
    names = [out] if runs == 1 else [out.with_name(f"{out.name}-{number}") for number in range(1, runs + 1)]
    taken = next((path for path in names if path.exists() and (not path.is_dir() or any(path.iterdir()))), None)
    if taken is not None:
        raise RefusedInput(f"{taken} is there already: give another --out")
    folders = [RunFolder(path) for path in names]
    for folder in folders:
        folder.events.mkdir(parents=True)
    return folders


def _rendered(job: tuple[Path, Batch]) -> tuple[Path, bytes]:
    return job[0], job[1].as_lines()


def _described(
    files: Sequence[Path], folders: list[RunFolder], runs: list[ImportedRun], readings: Readings, settings: RunConfig | None
) -> ImportResult:
    """What was done, kept with each run."""
    pairs = list(zip(folders, runs, strict=True))
    result = _result(readings, [{"run": str(folder.path), **run.describe()} for folder, run in pairs])
    for folder, run in pairs:
        manifest = {
            "schema": 1,
            "sources": [str(file) for file in files],
            "rate_unit": readings.rate_unit,
            "rate_from": readings.rate_from,
            "clock": run.clock,
            "notes": [*readings.notes, *run.notes],
            **{key: value for key, value in asdict(result).items() if key not in ("runs", "notes")},
        }
        write_json(folder.path / "imported.json", manifest)
        if settings is not None:
            write_text(folder.path / "config.yaml", dump_config(settings))
    return result


def _expanded(files: Sequence[Path]) -> list[Path]:
    paths: list[Path] = []
    for file in files:
        found = sorted(file.rglob("*tfevents*")) if file.is_dir() else [file]
        if not found:
            raise RefusedInput(f"{file}: a folder without TensorBoard event files; name the log itself")
        paths.extend(found)
    return paths


def _result(readings: Readings, runs: list[dict[str, Any]]) -> ImportResult:
    counted = readings.lines_blank + readings.lines_understood
    return ImportResult(
        format=readings.format,
        lines_read=readings.lines_read,
        lines_understood=readings.lines_understood,
        lines_blank=readings.lines_blank,
        lines_not_understood=readings.lines_read - counted,
        runs=runs,
        not_understood=[{"line": line, "text": text[:SHOWN_CHARACTERS]} for line, text in readings.not_understood[:LISTED]],
        mapping=readings.mapping,
        notes=readings.notes,
    )


def _nothing_understood(paths: list[Path]) -> str:
    reader = LineReader(paths[0])
    first: list[str] = []
    for chunk in reader.chunks():
        if len(first) < 3:
            first += chunk.filter(pl.col("text") != "")["text"].head(3).to_list()
    if not first:
        return "; ".join([f"{paths[0]}: it is empty", *reader.notes])
    sample = "\n  ".join(text[:SHOWN_CHARACTERS] for text in first[:3])
    return (
        f"{paths[0]}: none of its {reader.lines_read:,} lines was understood; it begins with\n  {sample}\n"
        f"Formats read: {', '.join(FORMATS)}. For a table, say which columns are which: --map step=... --map rate=...:tok/s"
    )
