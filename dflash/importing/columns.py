"""Which column (or TensorBoard tag) of a foreign log is which of our readings: given by the user, else guessed from its name, and always shown.

A mapping is written NAME=COLUMN or NAME=COLUMN:UNIT, as in rate=tokens_per_sec:tok/s or step_seconds=iter_ms:ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from dflash.errors import RefusedInput
from dflash.importing.readings import NUMBERS

_RATE_UNITS = {
    "tok/s": ("Ktok/s", 1e-3),
    "ktok/s": ("Ktok/s", 1.0),
    "mtok/s": ("Ktok/s", 1e3),
    "samples/s": ("samples/s", 1.0),
    "steps/s": ("steps/s", 1.0),
}
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3_600.0}
_TIMES = ("time", "elapsed", "step_seconds")
NAMES = ("step", *NUMBERS, "phase")

# (our name, unit, pattern of the column's name in lower case with every other sign an underscore); the first that fits wins
_GUESSES = (
    ("step", "", r"(?:global_|trainer_|optimi[sz]er_|train_|_)?(?:step|steps|global_step|iteration|iter|update)(?:_num)?"),
    ("rate", "ktok/s", r".*ktok.*_?s(?:ec)?"),
    ("rate", "tok/s", r".*(?:tokens?|toks?)_?(?:per_?|_)s(?:ec(?:ond)?)?(?:_.*)?|(?:.*_)?tps|tok_sec"),
    ("rate", "samples/s", r".*(?:samples|examples|sequences)_?(?:per_?|_)s(?:ec(?:ond)?)?(?:_.*)?"),
    ("rate", "steps/s", r".*(?:steps|it|its|iterations)_?(?:per_?|_)s(?:ec(?:ond)?)?(?:_.*)?"),
    ("step_seconds", "ms", r"(?:.*_)?(?:step|iter|iteration|batch)_?(?:time|duration|latency)?_?ms|dt_ms"),
    ("step_seconds", "s", r"(?:.*_)?(?:step|iter|iteration)_?(?:time|duration|seconds|secs?)(?:_s)?|iteration_time"),
    ("elapsed", "s", r"_?(?:elapsed|elapsed_(?:seconds|sec|s|time)|runtime|relative_time|seconds)"),
    ("time", "s", r"_?(?:time|timestamp|wall_time|walltime|unix_time|datetime|date)"),
    ("tokens", "", r"(?:step_|batch_)?(?:tokens|num_tokens|n_tokens)"),
    ("loss", "", r"(?:train(?:ing)?_)?(?:lm_|total_)?loss|(?:train_)?(?:ce|nll|cross_entropy)(?:_loss)?|.*_train_loss"),
    ("grad_norm", "", r"(?:.*_)?(?:grad(?:ient)?_?norm|gnorm)"),
    ("lr", "", r"(?:.*_)?(?:lr|learning_rate)"),
    ("accuracy", "", r"(?:train_)?(?:acc|accuracy)"),
    ("streak", "", r"(?:train_)?streak"),
    ("epoch", "", r"(?:train_)?epoch"),
    ("phase", "", r"phase|split|stage"),
)  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One reading and the column it is taken from. `unit` is empty where the reading has none."""

    name: str
    source: str
    unit: str

    @property
    def text(self) -> str:
        """The column with its unit, as it is shown."""
        return f"{self.source}:{self.unit}" if self.unit else self.source


def choose_columns(found: Iterable[str], given: Sequence[str]) -> list[Column]:
    """Columns given by the user, and guesses for what is left.

    Raises:
        RefusedInput: a mapping has another form, names an unknown reading or unit, or a column that is not there.
    """
    names = list(dict.fromkeys(found))
    chosen = {column.name: column for column in (_parse(text, names) for text in given)}
    taken = {column.source for column in chosen.values()}
    for source in names:
        guess = _guess(source) if source not in taken else None
        if guess is not None and guess.name not in chosen:
            chosen[guess.name] = guess
    return list(chosen.values())


def to_readings(columns: Sequence[Column]) -> list[pl.Expr]:
    """Expressions that turn text columns into readings in our units."""
    return [_expression(column) for column in columns]


def rate_unit(columns: Sequence[Column]) -> str:
    """The unit of `rate` once read; Ktok/s if no rate is among them."""
    return next((_RATE_UNITS[column.unit][0] for column in columns if column.name == "rate"), "Ktok/s")


def _expression(column: Column) -> pl.Expr:
    text = pl.col(column.source).cast(pl.String).str.strip_chars()
    number = text.str.replace_all(",", "").cast(pl.Float64, strict=False)
    if column.name == "phase":
        evaluation = text.str.to_lowercase().str.contains(r"val|test|eval")
        return pl.when(evaluation).then(pl.lit("evaluation")).otherwise(pl.lit("train")).alias("phase")
    if column.name == "time":
        stamp = text.str.replace("T", " ").str.replace(r"(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?$", "")
        parsed = stamp.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False).dt.epoch("ms").cast(pl.Float64) / 1_000
        number = number * _TIME_UNITS[column.unit]
        seconds = (
            pl.when(number > 1e11).then(number / 1_000).otherwise(number)
        )  # milliseconds since 1970 are beyond the year 5138 in seconds
        return pl.coalesce(seconds, parsed).alias("time")
    if column.name in _TIMES:
        number = number * _TIME_UNITS[column.unit]
    if column.name == "rate":
        number = number * _RATE_UNITS[column.unit][1]
    return number.alias(column.name)


def _parse(text: str, found: Sequence[str]) -> Column:
    name, equals, rest = text.partition("=")
    name = name.strip()
    if not equals or name not in NAMES:
        raise RefusedInput(f"--map {text}: expected NAME=COLUMN or NAME=COLUMN:UNIT with NAME one of {', '.join(NAMES)}")
    source, unit = (
        (rest, "") if rest in found else (rest.rpartition(":")[0] or rest, rest.rpartition(":")[2] if ":" in rest else "")
    )
    if source not in found:
        raise RefusedInput(f"--map {text}: no column {source}; there are {', '.join(found) or 'none'}")
    units = _units(name)
    unit = unit.lower() or next(iter(units), "")
    if units and unit not in units:
        raise RefusedInput(f"--map {text}: unknown unit {unit}; {name} takes {', '.join(units)}")
    return Column(name, source, unit)


def _units(name: str) -> list[str]:
    if name == "rate":
        return list(_RATE_UNITS)
    return ["s", "ms", "us", "min", "h"] if name in _TIMES else []


def _guess(source: str) -> Column | None:
    plain = re.sub(r"[^a-z0-9]+", "_", source.lower()).strip("_")
    return next((Column(name, source, unit) for name, unit, pattern in _GUESSES if re.fullmatch(pattern, plain[:100])), None)
