"""Small HTML tables for widgets; everything that is shown is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from dflash.report.page import Table, shown

NEVER_BROKEN = 26
"""Characters of a cell that is kept on one line."""


def table_html(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = "", details: Sequence[str] | None = None
) -> str:
    """Rows under column names, numbers shortened as in reports; under each row its detail, over the whole width."""
    numeric = Table(columns, rows).numeric
    kinds = ["" if at in numeric else ' class="text"' for at in range(len(columns))]
    head = "".join(f"<th{kind}>{html.escape(column)}</th>" for kind, column in zip(kinds, columns, strict=True))
    under = [
        f'<tr class="detail"><td class="text" colspan="{len(columns)}">{html.escape(text)}</td></tr>' for text in details or ()
    ]
    lines = ["<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows]
    body = "".join(line + (under[at] if under else "") for at, line in enumerate(lines))
    said = f'<div class="dflash-note">{html.escape(note)}</div>' if note else ""
    return f'<div class="dflash-wide"><table class="dflash-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{said}'


def _cell(value: Any) -> str:
    text = shown(value)
    kind = ' class="text"' if isinstance(value, str) else ""
    style = ' style="white-space: nowrap"' if len(text) <= NEVER_BROKEN else ""
    return f"<td{kind}{style}>{html.escape(text)}</td>"
