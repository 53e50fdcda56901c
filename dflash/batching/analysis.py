"""Analyse lengths: percentiles, histogram, shares by class, groups, outliers, and how two data sets differ.

Everything is computed from one table: each distinct length with its number of samples, per group if asked. polars makes it from Parquet in one
streaming pass, so that 100 million lengths need no more memory than a few thousand, and every figure is exact, not an estimate.

What can't be a length is counted by kind, told, and left out: missing, not a number, fractional, below 1, above the limit. If nothing
is left, that is an error: a silent analysis of nothing has cost others a day.

Definitions. The q-percentile is the least length that at least q% of the samples don't exceed. Classes hold boundaries[i] < length <=
boundaries[i + 1]. Outliers lie beyond three interquartile ranges of the log-length from its quartiles (Tukey's far-out fence, on logs
because lengths are skewed). Two data sets: KS is the largest difference of their cumulative shares; PSI is the population stability
index over 16 classes that hold equal tokens of the first, sum (p - q) ln(p / q) over shares of samples (usual reading: below 0.1 alike,
above 0.25 another population); shift is how far sorted samples must move on average (Wasserstein distance), in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.batching.boundaries import bucket_of, count_distinct, length_class_edges, quantile_boundaries
from dflash.errors import RefusedInput

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
CLASSES = 16
BINS = 64
_FENCE = 3.0
_SMALLEST_SHARE = 1e-6
_LARGEST = 2**31 - 1
_EVERYTHING = "all"


@dataclass(frozen=True)
class LengthCounts:
    """Distinct lengths and how many samples have each.

    Attributes:
        lengths: tokens, ascending, int64 [distinct].
        samples: samples of each, int64 [distinct].
    """

    lengths: NDArray[np.int64]
    samples: NDArray[np.int64]

    @property
    def total_samples(self) -> int:
        """Samples altogether."""
        return int(self.samples.sum())

    @property
    def total_tokens(self) -> int:
        """Tokens altogether."""
        return int(self.lengths @ self.samples)

    def percentile(self, percent: float) -> int:
        """The least length that at least `percent` of the samples don't exceed."""
        below = np.cumsum(self.samples)
        return int(self.lengths[np.searchsorted(below, percent / 100 * int(below[-1]), side="left")])

    def thinned(self, most: int) -> NDArray[np.int32]:
        """At most `most` lengths, ascending, that stand for all: every n-th of the sorted samples."""
        total = self.total_samples
        ranks = np.arange(min(most, total)) if total <= most else ((np.arange(most) + 0.5) * (total / most)).astype(np.int64)
        return self.lengths[np.searchsorted(np.cumsum(self.samples), ranks, side="right")].astype(np.int32)


@dataclass(frozen=True)
class LengthTable:
    """The lengths of a data set, counted.

    Attributes:
        source: where they are from.
        groups: counts by value of the column grouped by; without one, a single group `all`.
        group_by: the column, or None.
        refused: samples left out, by kind (`missing`, `not a number`, `fractional`, `below 1`, `above the limit`).
    """

    source: str
    groups: dict[str, LengthCounts]
    group_by: str | None
    refused: dict[str, int]

    @property
    def whole(self) -> LengthCounts:
        """All groups together."""
        parts = list(self.groups.values())
        if len(parts) == 1:
            return parts[0]
        return _counts(np.concatenate([part.lengths for part in parts]), np.concatenate([part.samples for part in parts]))


def count_lengths(source: str | Path, *, group_by: str | None = None, limit: int | None = None) -> LengthTable:
    """Count the lengths of a Parquet file, a prepared data set, or another file of lengths; see the module.

    Args:
        source: as `read_lengths`; Parquet is streamed.
        group_by: a column of the Parquet file (of a prepared data set: file), or None.
        limit: lengths above it are refused; None: none is.

    Raises:
        RefusedInput: the source can't be read, has no such column, or holds no length at all.
    """
    place = Path(source)
    frame = _scan(place, group_by)
    keys = ["length"] if group_by is None else [group_by, "length"]
    try:
        counted = frame.group_by(keys).agg(pl.len().alias("samples")).collect(engine="streaming")
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RefusedInput(f"{place}: can't be read ({str(error).strip().splitlines()[0]})") from error
    good, refused = _sort_out(counted, limit)
    if good.is_empty():
        said = ", ".join(f"{count} {kind}" for kind, count in refused.items()) or "it is empty"
        raise RefusedInput(f"{place}: holds no length of one token or more ({said}); check the column, or prepare the data again")
    if group_by is None:
        groups = {_EVERYTHING: _of_frame(good)}
    else:
        named = good.with_columns(pl.col(group_by).cast(pl.String).fill_null("(none)"))
        groups = {
            str(name[0]): _of_frame(part) for name, part in sorted(named.group_by(group_by), key=lambda each: str(each[0][0]))
        }
    return LengthTable(str(place), groups, group_by, refused)


def table_of(lengths: NDArray[np.integer], source: str = "lengths") -> LengthTable:
    """The table of lengths that are at hand [samples], all of them 1 or more."""
    return LengthTable(source, {_EVERYTHING: LengthCounts(*count_distinct(lengths))}, None, {})


def summary(counts: LengthCounts) -> dict[str, Any]:
    """samples, tokens, mean, shortest, longest, median, and percentiles keyed "1", "5", ... "99.9" of the samples."""
    return {
        "samples": counts.total_samples,
        "tokens": counts.total_tokens,
        "mean": counts.total_tokens / counts.total_samples,
        "shortest": int(counts.lengths[0]),
        "median": counts.percentile(50),
        "longest": int(counts.lengths[-1]),
        "percentiles": {f"{percent:g}": counts.percentile(percent) for percent in PERCENTILES},
    }


def shares_by_class(counts: LengthCounts, boundaries: Sequence[int]) -> pl.DataFrame:
    """One row a class: above, up_to (tokens), samples, tokens, sample_share, token_share.

    A length above the last boundary is counted in the last class.
    """
    classes, number = bucket_of(counts.lengths, boundaries), len(boundaries) - 1
    samples = np.bincount(classes, counts.samples, minlength=number)
    tokens = np.bincount(classes, counts.samples * counts.lengths, minlength=number)
    return pl.DataFrame(
        {
            "above": list(boundaries[:-1]),
            "up_to": list(boundaries[1:]),
            "samples": samples.astype(np.int64),
            "tokens": tokens.astype(np.int64),
            "sample_share": samples / samples.sum(),
            "token_share": tokens / tokens.sum(),
        }
    )


def histogram(counts: LengthCounts, edges: NDArray[np.integer] | None = None) -> pl.DataFrame:
    """One row a bin of equal width: above, up_to (tokens), samples, tokens. Without edges: 64 bins from 0 to the longest."""
    if edges is None:
        longest = int(counts.lengths[-1])
        edges = np.unique(np.rint(np.linspace(0, longest, min(BINS, longest) + 1)).astype(np.int64))
    return shares_by_class(counts, [int(edge) for edge in edges]).select("above", "up_to", "samples", "tokens")


def outliers(counts: LengthCounts) -> dict[str, Any]:
    """Samples beyond the far-out fences, and how many stand exactly at the longest length (cut ones pile up there).

    Returns:
        fence_low, fence_high (tokens); below, above (samples beyond them); longest (the five longest lengths);
        at_longest (samples) and at_longest_share.
    """
    low, high = np.log(counts.percentile(25)), np.log(counts.percentile(75))
    reach = _FENCE * (high - low)
    fence_low, fence_high = float(np.exp(low - reach)), float(np.exp(high + reach))
    at_longest = int(counts.samples[-1])
    return {
        "fence_low": fence_low,
        "fence_high": fence_high,
        "below": int(counts.samples[counts.lengths < fence_low].sum()),
        "above": int(counts.samples[counts.lengths > fence_high].sum()),
        "longest": counts.lengths[-5:][::-1].tolist(),
        "at_longest": at_longest,
        "at_longest_share": at_longest / counts.total_samples,
    }


def difference(first: LengthCounts, second: LengthCounts) -> dict[str, Any]:
    """How the second data set's lengths differ from the first's; definitions in the module.

    Returns:
        ks, ks_at (tokens, where the difference is largest), psi, shift (tokens), mean_ratio (second / first), percentiles
        (first, second and their ratio), verdict (`alike`, `shifted`, `another population`).
    """
    values = np.union1d(first.lengths, second.lengths)
    one, two = _cumulative(first, values), _cumulative(second, values)
    gap = np.abs(one - two)
    edges = length_class_edges(first.thinned(200_000), CLASSES)
    p, q = (_class_shares(each, edges) for each in (first, second))
    psi = float(((q - p) * np.log(q / p)).sum())
    percentiles = {f"{percent:g}": (first.percentile(percent), second.percentile(percent)) for percent in PERCENTILES}
    return {
        "ks": float(gap.max()),
        "ks_at": int(values[gap.argmax()]),
        "psi": psi,
        "shift": float((gap[:-1] * np.diff(values)).sum()),
        "mean_ratio": (second.total_tokens / second.total_samples) / (first.total_tokens / first.total_samples),
        "percentiles": {key: {"first": a, "second": b, "ratio": b / a} for key, (a, b) in percentiles.items()},
        "verdict": "alike" if psi < 0.1 else "shifted" if psi < 0.25 else "another population",
    }


def default_classes(counts: LengthCounts, classes: int = 6) -> list[int]:
    """Boundaries of classes that hold equally many samples."""
    return quantile_boundaries(counts.thinned(1_000_000), classes)


def _scan(place: Path, group_by: str | None) -> pl.LazyFrame:
    """A frame with the column `length` and the one grouped by."""
    from dflash.data.lengths import read_lengths

    if place.is_dir():
        from dflash.data.manifest import SHARDS_NAME

        if group_by is None:
            return pl.LazyFrame({"length": read_lengths(place)})
        shards = pl.scan_parquet(place / SHARDS_NAME / "*.parquet")
        _require(group_by, [name for name in shards.collect_schema().names() if name not in ("input_ids", "loss_mask")], place)
        return shards.select(group_by, pl.col("input_ids").list.len().alias("length"))
    if place.suffix.lower() != ".parquet":
        if group_by is not None:
            raise RefusedInput(f"{place}: only Parquet files and prepared data sets have columns to group by, as {group_by}")
        return pl.LazyFrame({"length": read_lengths(place)})
    try:
        frame = pl.scan_parquet(place)
        schema = frame.collect_schema()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RefusedInput(f"{place}: can't be read ({str(error).strip().splitlines()[0]})") from error
    column = _length_column(schema, group_by, place)
    keep = [pl.col(column).alias("length")]
    if group_by is not None:
        _require(group_by, [name for name in schema.names() if name != column], place)
        keep.append(pl.col(group_by))
    return frame.select(keep)


def _length_column(schema: pl.Schema, group_by: str | None, place: Path) -> str:
    names = [name for name in schema.names() if name != group_by]
    if "length" in names:
        return "length"
    numeric = [name for name in names if schema[name].is_numeric()]
    whole = [name for name in numeric if schema[name].is_integer()]
    for candidates in (numeric, whole):
        if len(candidates) == 1:
            return candidates[0]
    raise RefusedInput(f"{place}: which column holds the lengths? None is called length, and of {names} {whole} hold whole numbers")


def _require(column: str, there: list[str], place: Path) -> None:
    if column not in there:
        raise RefusedInput(f"{place}: no column {column} to group by; there is {', '.join(there) or 'none'}")


def _sort_out(counted: pl.DataFrame, limit: int | None) -> tuple[pl.DataFrame, dict[str, int]]:
    """What are lengths, and how many samples were none, by kind."""
    if counted.schema["length"] == pl.String:
        counted = counted.with_columns(pl.col("length").cast(pl.Float64, strict=False).fill_null(float("nan")))
    elif not counted.schema["length"].is_numeric():
        raise RefusedInput(f"length: of type {counted.schema['length']}; lengths are whole numbers of tokens")
    length = pl.col("length")
    kinds = {
        "missing": length.is_null(),
        "not a number": length.cast(pl.Float64).is_nan() | length.cast(pl.Float64).is_infinite(),
        "fractional": length.cast(pl.Float64).floor() != length.cast(pl.Float64),
        "below 1": length < 1,
        "above the limit": length > (limit or _LARGEST),
    }
    left, refused = counted, {}
    for kind, test in kinds.items():
        bad = left.filter(test.fill_null(False))
        if not bad.is_empty():
            refused[kind] = int(bad["samples"].sum())
            left = left.filter(~test.fill_null(False))
    return left.with_columns(length.cast(pl.Int64)), refused


def _of_frame(frame: pl.DataFrame) -> LengthCounts:
    return _counts(frame["length"].to_numpy(), frame["samples"].to_numpy().astype(np.int64))


def _counts(lengths: NDArray[np.int64], samples: NDArray[np.int64]) -> LengthCounts:
    values, place = np.unique(lengths, return_inverse=True)
    return LengthCounts(values.astype(np.int64), np.bincount(place, samples).astype(np.int64))


def _cumulative(counts: LengthCounts, at: NDArray[np.int64]) -> NDArray[np.float64]:
    below = np.concatenate([[0], np.cumsum(counts.samples)])
    return np.asarray(below[np.searchsorted(counts.lengths, at, side="right")] / below[-1], dtype=np.float64)


def _class_shares(counts: LengthCounts, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    held = np.bincount(bucket_of(counts.lengths, edges), counts.samples, minlength=edges.size - 1)
    return np.asarray(np.maximum(held / held.sum(), _SMALLEST_SHARE), dtype=np.float64)
