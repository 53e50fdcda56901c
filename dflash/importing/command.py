"""`dflash import`: find out what a log is, read it, tell its runs apart, write them.

Text logs are held against every known line format; the first chunk in which any is found decides for the one with most lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from dflash.config import dump_config, load_config
from dflash.errors import RefusedInput
from dflash.importing import console_log, megatron, mllog, step_lines, tables, tensorboard
from dflash.importing.lines import LineReader, open_bytes
from dflash.importing.readings import Readings, numeric
from dflash.importing.sessions import describe, split_runs
from dflash.importing.write import write_run
from dflash.runs.folder import write_text

LISTED = 20
SHOWN_CHARACTERS = 160
MAX_JSON_BYTES = 256 * 2**20
FORMATS = (
    console_log.NAME, megatron.NAME, megatron.GOLDEN_NAME, mllog.NAME, step_lines.NAME, tensorboard.NAME, tables.CSV_NAME, tables.JSONL_NAME,
)  # fmt: skip
_TEXT_FORMATS = {
    console_log.NAME: console_log.DETECT, megatron.NAME: megatron.DETECT, mllog.NAME: mllog.DETECT, step_lines.NAME: step_lines.DETECT,
}  # fmt: skip


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
    readings = read_log(files, mapping)
    readings.frame, nonfinite = numeric(readings.frame)
    if nonfinite:
        readings.notes.append(f"{nonfinite} value(s) were nan or inf; they are empty in the run")
    runs = split_runs(readings)
    if not runs:
        raise RefusedInput(f"{files[0]}: {readings.lines_understood} lines were understood, but none holds a reading")
    names = [out] if len(runs) == 1 else [out.with_name(f"{out.name}-{number}") for number in range(1, len(runs) + 1)]
    taken = next((path for path in names if path.exists() and (not path.is_dir() or any(path.iterdir()))), None)
    if taken is not None:
        raise RefusedInput(f"{taken} is there already: give another --out")
    result = _result(readings, [{"run": str(path), **describe(run)} for path, run in zip(names, runs, strict=True)])
    for path, run in zip(names, runs, strict=True):
        manifest = {
            "schema": 1,
            "sources": [str(file) for file in files],
            "rate_unit": readings.rate_unit,
            "rate_from": readings.rate_from,
            "clock": run.clock,
            "notes": [*readings.notes, *run.notes],
            **{key: value for key, value in asdict(result).items() if key not in ("runs", "notes")},
        }
        boundaries = (settings.batching.boundaries if settings else None) or ()
        folder = write_run(path, run, manifest, readings.rate_unit, boundaries)
        if settings is not None:
            write_text(folder.path / "config.yaml", dump_config(settings))
    return result


def read_log(files: Sequence[Path], mapping: Sequence[str] = ()) -> Readings:
    """The readings of a log, whatever its format.

    Raises:
        RefusedInput: a file can't be read, or nothing in it was understood.
    """
    paths = _expanded(files)
    for read in (_read_tensorboard, _read_golden, _read_text, _read_table):
        readings = read(paths, mapping)
        if readings is not None:
            return readings
    raise RefusedInput(_nothing_understood(paths))


def _read_tensorboard(paths: list[Path], mapping: Sequence[str]) -> Readings | None:
    return tensorboard.read(paths, mapping) if all(tensorboard.is_event_file(path) for path in paths) else None


def _read_golden(paths: list[Path], mapping: Sequence[str]) -> Readings | None:
    if len(paths) != 1:
        return None
    with open_bytes(paths[0]) as stream:
        try:
            head = stream.read(64)
            if not head.lstrip().startswith(b"{"):
                return None
            data = head + stream.read(MAX_JSON_BYTES)
            frame = megatron.read_golden(orjson.loads(data))
        except (ValueError, EOFError, OSError):
            return None
    if frame is None:
        return None
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    return Readings(frame, megatron.GOLDEN_NAME, "steps/s", "1 / iteration time", lines_read=lines, lines_understood=lines)


def _read_text(paths: list[Path], mapping: Sequence[str]) -> Readings | None:
    """Read files line by line, in the format most lines of the first telling chunk have."""
    read: _TextReader | None = None
    offset = blank = 0
    odd: list[tuple[int, str]] = []
    notes: list[str] = []
    for path in paths:
        reader = LineReader(path)
        for chunk in reader.chunks():
            chunk = chunk.with_columns(pl.col("line") + offset)
            blank += int((chunk["text"] == "").sum())
            name = _format_of(chunk["text"]) if read is None else None
            if name is not None:
                read = _TextReader(name)
            understood = read.take(chunk) if read is not None else pl.Series([], dtype=pl.Int64)
            if len(odd) < LISTED:
                rest = chunk.filter((pl.col("text") != "") & ~pl.col("line").is_in(understood.implode()))
                odd.extend(rest.head(LISTED - len(odd)).iter_rows())
        offset += reader.lines_read
        notes += reader.notes
    if read is None:
        return None
    readings = read.readings()
    readings.lines_read, readings.lines_blank, readings.not_understood = offset, blank, odd
    readings.notes += notes
    return readings


class _TextReader:
    """Collects the readings of one line format, chunk by chunk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.understood = 0
        self.sequence_length: int | None = None
        self._frames: list[pl.DataFrame] = []

    def take(self, chunk: pl.DataFrame) -> pl.Series:
        """Read a chunk; returns the numbers of the lines understood."""
        if self.name == megatron.NAME:
            return self._take_megatron(chunk)
        if self.name == mllog.NAME:
            frame, lines = mllog.read(chunk)
            understood = pl.Series(lines, dtype=pl.Int64)
        else:
            frame = (console_log if self.name == console_log.NAME else step_lines).read(chunk)
            understood = frame["line"]
        self._frames.append(frame)
        self.understood += len(understood)
        return understood

    def _take_megatron(self, chunk: pl.DataFrame) -> pl.Series:
        lengths = chunk.with_columns(
            tokens=pl.col("text").str.extract(megatron.SEQUENCE_LENGTH).cast(pl.Int64, strict=False)
        ).filter(pl.col("tokens") > 0)
        if self.sequence_length is None and len(lengths):
            self.sequence_length = int(lengths["tokens"][0])
        joined, used = megatron.join_wrapped(chunk)
        self._frames.append(megatron.read(joined, self.sequence_length))
        understood = pl.Series([*used, *lengths["line"]], dtype=pl.Int64).unique()
        self.understood += len(understood)
        return understood

    def readings(self) -> Readings:
        """All readings so far."""
        frame = pl.concat(self._frames, how="diagonal_relaxed")
        if self.name == step_lines.NAME:
            training = frame.with_columns(between=_per_second(frame))
            return Readings(
                training.rename({"between": "rate"}), self.name, "steps/s", "steps / train_time", lines_understood=self.understood
            )
        if self.name == megatron.NAME:
            unit = "samples/s" if self.sequence_length is None else "Ktok/s"
            return Readings(
                frame, self.name, unit, "global batch size / elapsed time per iteration", lines_understood=self.understood
            )
        unit = "Ktok/s" if self.name == console_log.NAME else "samples/s"
        return Readings(frame, self.name, unit, lines_understood=self.understood)


def _per_second(frame: pl.DataFrame) -> pl.Series:
    """Steps a second since the line before."""
    steps, seconds = frame["step"].diff(), frame["elapsed"].diff()
    return pl.select(pl.when((steps > 0) & (seconds > 0)).then(steps / seconds)).to_series()


def _read_table(paths: list[Path], mapping: Sequence[str]) -> Readings | None:
    if len(paths) != 1:
        raise RefusedInput(f"{len(paths)} files in no log format we know: import tables one by one")
    readers: list[Callable[[Path, Sequence[str]], Readings | None]] = [tables.read_jsonl, tables.read_csv]
    if _first_character(paths[0]) != "{":
        readers = [tables.read_csv]
    return next((readings for read in readers if (readings := read(paths[0], mapping)) is not None), None)


def _format_of(texts: pl.Series) -> str | None:
    counts = {name: int(texts.str.contains(pattern).sum()) for name, pattern in _TEXT_FORMATS.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def _first_character(path: Path) -> str:
    chunk = next(iter(LineReader(path).chunks()), None)
    texts = [] if chunk is None else chunk.filter(pl.col("text").str.strip_chars() != "")["text"].head(1).to_list()
    return texts[0].lstrip()[:1] if texts else ""


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
        return f"{paths[0]}: it is empty"
    sample = "\n  ".join(text[:SHOWN_CHARACTERS] for text in first[:3])
    return (
        f"{paths[0]}: none of its {reader.lines_read:,} lines was understood; it begins with\n  {sample}\n"
        f"Formats read: {', '.join(FORMATS)}. For a table, say which columns are which: --map step=... --map rate=...:tok/s"
    )
