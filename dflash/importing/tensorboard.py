"""TensorBoard event files: records of (wall time, step, tag, scalar).

A file is a row of records `length u64 | crc32 of it | bytes | crc32 of them` (TFRecord); the bytes are an `Event` protocol buffer, for which
tensorboardX has the definition. Check sums are not verified: a torn file ends in a short record, and that is where reading stops.
Scalars come as `simple_value` or, from newer writers, as a tensor of one number. Tags are told apart like columns of a CSV.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from dflash.importing.columns import choose_columns, rate_unit, to_readings
from dflash.importing.lines import BROKEN, open_bytes
from dflash.importing.readings import LISTED, Readings, numeric
from dflash.importing.spool import Spool

NAME = "TensorBoard"
MAX_RECORD_BYTES = 64 * 2**20
_HEADER = struct.Struct("<Q4x")
_TENSOR_FORMS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}  # DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64


def is_event_file(path: Path) -> bool:
    """Whether the name says so, or the first record is the version record every such file begins with."""
    return "tfevents" in path.name or _starts_with_version(path)


def read(paths: Sequence[Path], given: Sequence[str], spool: Spool) -> Readings | None:
    """Readings of one run's event files, in the order given; None if they hold no scalar that is known."""
    rows: list[tuple[int, float, int, str, float]] = []
    sessions: list[tuple[Path, int]] = []
    records = understood = 0
    odd: list[tuple[int, str]] = []
    for path in paths:
        for data in _records(path):
            records += 1
            scalars = _scalars(data)
            if scalars is None:
                if len(odd) < LISTED:
                    odd.append((records, f"{path.name}: a record that is no event"))
                continue
            understood += 1
            if scalars and (not sessions or sessions[-1][0] != path):
                sessions.append((path, records))
            rows.extend((records, *scalar) for scalar in scalars)
    schema = {"line": pl.Int64, "time": pl.Float64, "step": pl.Int64, "tag": pl.String, "value": pl.Float64}
    points = pl.DataFrame(rows, schema=schema, orient="row")
    if points.is_empty():
        return None
    columns = [
        column for column in choose_columns(points["tag"].unique(maintain_order=True), given) if column.name not in ("step", "time")
    ]
    if not columns:
        return None
    begins = {record for _, record in sessions[1:]}
    wide = points.filter(pl.col("tag").is_in([column.source for column in columns])).with_columns(
        session=pl.col("line").is_in(list(begins)).cum_sum()
    )
    frame = wide.pivot(on="tag", index=["session", "step"], values="value", aggregate_function="last")
    places = wide.group_by("session", "step").agg(pl.col("line").min(), pl.col("time").max())
    frame = frame.join(places, on=["session", "step"]).sort("session", "line")
    mark = pl.when(pl.col("session").diff().fill_null(0) != 0).then(pl.lit("begins"))
    readings = Readings(
        spool, NAME, rate_unit(columns), lines_read=records, lines_understood=understood, not_understood=odd,
        mapping={column.name: column.text for column in columns}, notes=[f"{records} records of {len(paths)} file(s); a line is a record"],
    )  # fmt: skip
    readings.add(*numeric(frame.select("line", "step", "time", *to_readings(columns), mark=mark)))
    return readings


def _records(path: Path) -> Iterator[bytes]:
    with open_bytes(path) as stream:
        while len(header := _exactly(stream, _HEADER.size)) == _HEADER.size:
            (length,) = _HEADER.unpack(header)
            if length > MAX_RECORD_BYTES:
                return
            data = _exactly(stream, length)
            if len(data) < length or len(_exactly(stream, 4)) < 4:
                return
            yield data


def _exactly(stream: Any, count: int) -> bytes:
    try:
        return bytes(stream.read(count))
    except (*BROKEN, OSError, ValueError):
        return b""


def _event(data: bytes) -> Any:
    """The protocol buffer of a record; None if it is none."""
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    try:
        return Event.FromString(data)
    except DecodeError:
        return None


def _starts_with_version(path: Path) -> bool:
    first = next(_records(path), None)
    event = None if first is None else _event(first)
    return event is not None and str(event.file_version).startswith("brain.Event")


def _scalars(data: bytes) -> list[tuple[float, int, str, float]] | None:
    event = _event(data)
    if event is None:
        return None
    found = []
    for value in event.summary.value:
        number = value.simple_value if value.HasField("simple_value") else _tensor(value)
        if number is not None:
            found.append((float(event.wall_time), int(event.step), str(value.tag), float(number)))
    return found


def _tensor(value: Any) -> float | None:
    """The number of a tensor that holds just one."""
    if not value.HasField("tensor") or any(dim.size != 1 for dim in value.tensor.tensor_shape.dim):
        return None
    tensor = value.tensor
    form = _TENSOR_FORMS.get(tensor.dtype)
    if form is not None and len(tensor.tensor_content) == struct.calcsize(form):
        return float(struct.unpack(form, tensor.tensor_content)[0])
    listed = [*tensor.float_val, *tensor.double_val, *tensor.int_val, *tensor.int64_val]
    return float(listed[0]) if len(listed) == 1 else None
