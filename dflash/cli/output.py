"""What all subcommands share: their common options, and how results are printed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a setting, as in optim.lr=3e-4 (YAML value)")]
Runs = Annotated[Path, typer.Option("--runs", help="folder that holds the runs")]


def print_result(result: Any, as_json: bool) -> None:
    """Print a dataclass or a mapping: one JSON line, or a table of names and values."""
    fields = asdict(result) if is_dataclass(result) and not isinstance(result, type) else dict(result)
    if as_json:
        print(json.dumps(plain(fields)))
        return
    table = Table(show_header=False, box=None)
    for name, value in fields.items():
        table.add_row(name, _shown(value))
    Console().print(table)


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below their heads, numbers to the right; nothing when there are none."""
    listed = list(rows)
    if not listed:
        return
    table = Table(title=title, title_justify="left", box=None)
    for head, value in zip(heads, listed[0], strict=True):
        table.add_column(head, justify="right" if isinstance(value, int) else "left", overflow="fold")
    for row in listed:
        table.add_row(*map(_shown, row))
    Console().print(table)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1_000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return "  ".join(f"{key}: {_shown(each)}" for key, each in value.items()) or "none"
    return str(value)


def plain(value: Any) -> Any:
    """The value as strict JSON: no NaN, no paths."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
