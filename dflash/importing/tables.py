"""CSV (comma, semicolon or tab) and JSON lines, with the columns' meaning given or guessed.

Everything is read as text and then turned into numbers, so that a stray word costs one value and not the file. Nested JSON objects are
flattened with dots. A CSV row with too few cells is filled up, cells too many are dropped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from dflash.importing.columns import Column, choose_columns, rate_unit, to_readings
from dflash.importing.lines import LineReader
from dflash.importing.readings import Readings

CSV_NAME, JSONL_NAME = "CSV", "JSON lines"
MAX_COLUMNS = 2_000


def read_csv(path: Path, given: Sequence[str]) -> Readings | None:
    """Readings of a CSV file; None if its first line holds no column that is known or given."""
    reader = LineReader(path)
    rows: list[list[str]] = []
    numbers: list[int] = []
    header: list[str] = []
    columns: list[Column] = []
    blank = 0
    lines = _numbered(reader)
    for number, text in lines:
        if not text.strip():
            blank += 1
        elif not header:
            separator = max(",;\t", key=text.count)
            header = [name.strip() for name in _cells(text, separator)][:MAX_COLUMNS]
            columns = choose_columns(header, given) if len(header) > 1 else []
            if not any(column.name not in ("step", "time") for column in columns):
                return None
            wanted = [header.index(column.source) for column in columns]
        else:
            cells = _cells(text, separator)
            rows.append([cells[at] if at < len(cells) else "" for at in wanted])
            numbers.append(number)
    if not header:
        return None
    frame = _frame(rows, numbers, columns)
    return _readings(frame, CSV_NAME, columns, reader, blank, understood=1)


def read_jsonl(path: Path, given: Sequence[str]) -> Readings | None:
    """Readings of JSON lines; None if no line is an object with a column that is known or given."""
    reader = LineReader(path)
    records: list[dict[str, Any]] = []
    numbers: list[int] = []
    blank = 0
    odd: list[tuple[int, str]] = []
    for number, text in _numbered(reader):
        if not text.strip():
            blank += 1
        elif (record := _record(text)) is not None:
            records.append(record)
            numbers.append(number)
        elif len(odd) < 20:
            odd.append((number, text))
    columns = choose_columns((name for record in records for name in record), given) if records else []
    if not any(column.name not in ("step", "time") for column in columns):
        return None
    rows = [[record.get(column.source) for column in columns] for record in records]
    readings = _readings(_frame(rows, numbers, columns), JSONL_NAME, columns, reader, blank, understood=0)
    readings.not_understood = odd + readings.not_understood
    return readings


def _numbered(reader: LineReader) -> Iterator[tuple[int, str]]:
    for chunk in reader.chunks():
        yield from zip(chunk["line"].to_list(), chunk["text"].to_list(), strict=True)


def _cells(text: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=separator), [])
    except csv.Error:
        return text.split(separator)


def _record(text: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return dict(_flat(value, "")) if isinstance(value, dict) else None


def _flat(tree: dict[str, Any], prefix: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and depth < 5:
            yield from _flat(value, f"{prefix}{key}.", depth + 1)
        elif not isinstance(value, dict | list):
            yield f"{prefix}{key}", value


def _frame(rows: Iterable[Sequence[Any]], numbers: list[int], columns: Sequence[Column]) -> pl.DataFrame:
    """The chosen columns as text, then as readings."""
    texts = [[None if cell is None else str(cell) for cell in row] for row in rows]
    schema = {f"c{at}": pl.String for at in range(len(columns))}
    frame = pl.DataFrame(texts, schema=schema, orient="row") if texts else pl.DataFrame(schema=schema)
    named = [Column(column.name, f"c{at}", column.unit) for at, column in enumerate(columns)]
    return frame.select(to_readings(named)).with_columns(pl.Series("line", numbers, dtype=pl.Int64))


def _readings(
    frame: pl.DataFrame, name: str, columns: Sequence[Column], reader: LineReader, blank: int, understood: int
) -> Readings:
    """Rows that hold a number count as understood; `understood` are further lines, such as a header."""
    values = [column.name for column in columns if column.name not in ("phase", "step")] or ["step"]
    useful = frame.filter(pl.any_horizontal(pl.col(value).is_not_null() for value in values))
    return Readings(
        frame=useful,
        format=name,
        rate_unit=rate_unit(columns),
        lines_read=reader.lines_read,
        lines_blank=blank,
        lines_understood=len(useful) + understood,
        not_understood=[
            (line, "no number in a known column") for line in frame.join(useful, on="line", how="anti")["line"].head(20)
        ],
        mapping={column.name: column.text for column in columns},
        notes=reader.notes,
    )
