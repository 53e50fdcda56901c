"""Small HTML tables for widgets; everything that is shown is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from dflash.report.page import shown


def table_html(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = "") -> str:
    """Rows under column names, numbers shortened as in reports."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(shown(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    said = f'<div class="dflash-note">{html.escape(note)}</div>' if note else ""
    return f'<table class="dflash-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{said}'
