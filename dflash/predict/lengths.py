"""What `dflash lengths` tells: one report of a data set's lengths, ready for JSON and for a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash.batching.analysis import (
    LengthCounts,
    LengthTable,
    count_lengths,
    default_classes,
    difference,
    histogram,
    outliers,
    shares_by_class,
    summary,
)
from dflash.config import build_config
from dflash.errors import RefusedInput


def length_report(
    source: str | Path,
    *,
    group_by: str | None = None,
    boundaries: list[int] | None = None,
    limit: int | None = None,
    against: str | Path | None = None,
) -> tuple[LengthTable, dict[str, Any]]:
    """Analyse lengths.

    Args:
        source: a prepared data set or a file of lengths.
        group_by: a column to group by.
        boundaries: of the classes, ascending from 0 to the longest length or more; None: six that hold equally many samples.
        limit: longer ones are left out and counted.
        against: another data set or file to compare with.

    Returns:
        the counted table, and the report: source, refused, the fields of `analysis.summary`, classes, histogram, outliers, and where
        asked for groups (a summary and classes each), difference and against.

    Raises:
        RefusedInput: as `analysis.count_lengths`; boundaries that don't ascend from 0 or don't cover the longest length.
    """
    table = count_lengths(source, group_by=group_by, limit=limit)
    whole = table.whole
    classes = default_classes(whole) if boundaries is None else _covering(boundaries, whole)
    report: dict[str, Any] = {
        "source": table.source,
        "refused": table.refused,
        **summary(whole),
        "classes": shares_by_class(whole, classes).to_dicts(),
        "histogram": histogram(whole).to_dicts(),
        "outliers": outliers(whole),
    }
    if group_by is not None:
        report["groups"] = {
            name: {**summary(each), "classes": shares_by_class(each, classes).to_dicts()} for name, each in table.groups.items()
        }
    if against is not None:
        report["against"] = str(against)
        report["difference"] = difference(whole, count_lengths(against, limit=limit).whole)
    return table, report


def _covering(boundaries: list[int], counts: LengthCounts) -> list[int]:
    tree = {"data": {"path": "-"}, "target": {"path": "-"}, "batching": {"boundaries": boundaries}}
    build_config(tree, place="--boundaries")
    over = int(counts.samples[counts.lengths > boundaries[-1]].sum())
    if over:
        longest = int(counts.lengths[-1])
        raise RefusedInput(
            f"--boundaries {boundaries}: they end below {over} of {counts.total_samples} lengths, the longest {longest} tokens; make the "
            f"last one {longest} or more, or leave longer ones out with --limit {boundaries[-1]}"
        )
    return boundaries
