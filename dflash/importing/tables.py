"""CSV (comma, semicolon or tab) and JSON lines, with the columns' meaning given or guessed.

Everything is read as text and then turned into numbers, so that a stray word costs one value and not the file. Nested JSON objects are
flattened with dots. A CSV row with too few cells is filled up, cells too many are dropped. A column of JSON lines is known from the line on
in which it first comes.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from dflash.errors import RefusedInput
from dflash.importing.columns import Column, choose_columns, rate_unit, to_readings
from dflash.importing.in_order import in_order
from dflash.importing.lines import LineReader, numbered_lines
from dflash.importing.readings import LISTED, Readings, numeric
from dflash.importing.spool import Spool

CSV_NAME, JSONL_NAME = "CSV", "JSON lines"
MAX_COLUMNS = 2_000
NO_NUMBER = "no number in a known column"
_Chunk = tuple[int, str]


@dataclass(frozen=True)
class _Header:
    """A CSV's first line that is not blank, and which of its columns are read from where."""

    line: int
    separator: str
    columns: list[Column]
    places: list[int]


@dataclass(frozen=True)
class _Part:
    """A chunk's readings and the accounts of its lines."""

    frame: pl.DataFrame
    nonfinite: int
    blank: int
    odd: list[tuple[int, str]]


def read_table(path: Path, given: Sequence[str], spool: Spool) -> Readings | None:
    """Readings of JSON lines or a CSV file; None if it has no column that is known or given.

    Raises:
        RefusedInput: the file can't be read, or a mapping is given that can't be.
        OSError: there is no room for temporary files.
    """
    for first, text in LineReader(path).texts():
        if _first_line(numbered_lines(first, text)).lstrip().startswith("{"):
            readings = _read_jsonl(path, given, spool)
            if readings is not None:
                return readings
            spool.clear()
        break
    return _read_csv(path, given, spool)


def begins_as_table(text: str) -> bool:
    """Whether a file's first chunk shows by itself that it is a table, so that the rest need not be searched for lines of a log."""
    first = _first_line(numbered_lines(1, text))
    record = _record(first) if first.lstrip().startswith("{") else None
    return _holds_readings(choose_columns(record, ()) if record is not None else _header(1, first, ()).columns)


def _first_line(lines: pl.DataFrame) -> str:
    return next(iter(lines.filter(pl.col("text").str.strip_chars() != "")["text"].head(1)), "")


def _holds_readings(columns: Sequence[Column]) -> bool:
    return any(column.name not in ("step", "time") for column in columns)


def _read_csv(path: Path, given: Sequence[str], spool: Spool) -> Readings | None:
    reader = LineReader(path)
    chunks = reader.texts()
    blank = 0
    for first, text in chunks:
        lines = numbered_lines(first, text)
        filled = lines.filter(pl.col("text").str.strip_chars() != "").head(1)
        if len(filled):
            break
        blank += len(lines)
    else:
        return None
    line, names = filled.row(0)
    header = _header(line, names, given)
    if not _holds_readings(header.columns):
        return None
    readings = Readings(spool, CSV_NAME, rate_unit(header.columns), lines_understood=1, lines_blank=blank)
    for part in in_order(chain([(first, text)], chunks), partial(_csv_part, header)):
        _add(readings, part)
    return _finished(readings, header.columns, reader)


def _header(line: int, text: str, given: Sequence[str]) -> _Header:
    separator = max(",;\t", key=text.count)
    names = [name.strip() for name in _cells(text, separator)][:MAX_COLUMNS]
    columns = choose_columns(names, given) if len(names) > 1 else []
    return _Header(line, separator, columns, [names.index(column.source) for column in columns])


def _csv_part(header: _Header, chunk: _Chunk) -> _Part:
    lines = numbered_lines(*chunk)
    filled = lines.filter(pl.col("text").str.strip_chars() != "")
    rows = filled.filter(pl.col("line") != header.line)
    names = [f"c{at}" for at in range(len(header.columns))]
    quoted = pl.col("text").str.contains('"', literal=True)
    cells = pl.col("text").str.split(header.separator)
    texts = rows.filter(~quoted).select(
        "line", **{name: cells.list.get(place, null_on_oob=True) for name, place in zip(names, header.places, strict=True)}
    )
    if len(texts) < len(rows):
        taken = [
            [line, *(row[place] if place < len(row) else None for place in header.places)]
            for line, text in rows.filter(quoted).iter_rows()
            for row in [_cells(text, header.separator)]
        ]
        texts = pl.concat([texts, pl.DataFrame(taken, schema=texts.schema, orient="row")]).sort("line")
    return _part(texts, header.columns, len(lines) - len(filled), [])


def _read_jsonl(path: Path, given: Sequence[str], spool: Spool) -> Readings | None:
    reader = LineReader(path)
    readings = Readings(spool, JSONL_NAME)
    names: dict[str, None] = {}
    columns: list[Column] = []
    for first, text in reader.texts():
        lines = numbered_lines(first, text)
        filled = lines.filter(pl.col("text").str.strip_chars() != "")
        parsed = [_record(each) for each in filled["text"]]
        records = [record for record in parsed if record is not None]
        known = len(names)
        for record in records:
            if not record.keys() <= names.keys():
                names.update(dict.fromkeys(record))
        if len(names) > known:
            columns = _columns_so_far(names, given)
        is_record = pl.Series([record is not None for record in parsed], dtype=pl.Boolean)
        cells = [_texts([record.get(column.source) for record in records]).alias(f"c{at}") for at, column in enumerate(columns)]
        texts = pl.DataFrame([filled["line"].filter(is_record), *cells])
        odd = list(filled.filter(~is_record).head(LISTED).iter_rows())
        _add(readings, _part(texts, columns, len(lines) - len(filled), odd))
    columns = choose_columns(names, given) if names else []
    if not _holds_readings(columns):
        return None
    readings.rate_unit = rate_unit(columns)
    return _finished(readings, columns, reader)


def _columns_so_far(names: Sequence[str] | dict[str, None], given: Sequence[str]) -> list[Column]:
    """Columns of the names seen so far; one that is given is waited for, and nothing else taken in its place."""
    promised = {text.partition("=")[0].strip() for text in given}
    there = [text for text in given if _is_there(text, names)]
    kept = {text.partition("=")[0].strip() for text in there}
    return [column for column in choose_columns(names, there) if column.name not in promised - kept]


def _is_there(mapping: str, names: Sequence[str] | dict[str, None]) -> bool:
    try:
        choose_columns(names, [mapping])
    except RefusedInput:
        return False
    return True


def _part(texts: pl.DataFrame, columns: Sequence[Column], blank: int, odd: list[tuple[int, str]]) -> _Part:
    """Readings from cells; rows without a number in a known column are not understood."""
    named = [Column(column.name, f"c{at}", column.unit) for at, column in enumerate(columns)]
    values = [column.name for column in columns if column.name not in ("phase", "step")]
    frame = texts.select("line", *to_readings(named))
    useful = pl.any_horizontal(pl.col(value).is_not_null() for value in values) if values else pl.lit(False)
    useless = frame.filter(~useful)["line"].head(LISTED).to_list()
    return _Part(*numeric(frame.filter(useful)), blank, [*odd, *((line, NO_NUMBER) for line in useless)])


def _add(readings: Readings, part: _Part) -> None:
    readings.lines_blank += part.blank
    readings.lines_understood += len(part.frame)
    readings.list_odd(part.odd)
    readings.add(part.frame, part.nonfinite)


def _finished(readings: Readings, columns: Sequence[Column], reader: LineReader) -> Readings:
    readings.lines_read, readings.notes = reader.lines_read, readings.notes + reader.notes
    readings.mapping = {column.name: column.text for column in columns}
    return readings


def _cells(text: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=separator), [])
    except csv.Error:
        return text.split(separator)


def _texts(cells: list[Any]) -> pl.Series:
    """Values of JSON as text; by polars if all are of one type."""
    try:
        return pl.Series(cells).cast(pl.String)
    except (TypeError, pl.exceptions.PolarsError, OverflowError):
        return pl.Series([None if cell is None else str(cell) for cell in cells], dtype=pl.String)


def _record(text: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    flat: dict[str, Any] = {}
    _flatten(value, "", flat, 0)
    return flat


def _flatten(tree: dict[str, Any], prefix: str, flat: dict[str, Any], depth: int) -> None:
    """Add the plain values of nested objects, their names joined by dots; lists and what lies deeper than six levels are left out."""
    for key, value in tree.items():
        kind = type(value)
        if kind is dict:
            if depth < 5:
                _flatten(value, f"{prefix}{key}.", flat, depth + 1)
        elif kind is not list:
            flat[prefix + key] = value
