"""A page of a report as widgets: the blocks of `dflash.report.page`, so that a report reads in a notebook as it does on its own."""

from __future__ import annotations

import html
from collections.abc import Sequence

import ipywidgets as widgets

from dflash.report.page import Block, Callout, Code, Facts, Items, Page, Table, Text
from dflash.report.page import Chart as ReportChart
from workbench.chart import Chart
from workbench.tables import table_html


def page_widgets(page: Page) -> list[widgets.Widget]:
    """The page from its title to its last section, one widget a run of text and one a chart; charts are named chart-1, chart-2, ..."""
    texts = [f"<h2>{html.escape(page.title)}</h2>", f'<div class="dflash-note">{html.escape(page.kicker)}</div>']
    made: list[widgets.Widget] = []
    charts = 0

    def flush() -> None:
        if texts:
            made.append(widgets.HTML(f'<div class="dflash-page">{"".join(texts)}</div>'))
            texts.clear()

    def add(blocks: Sequence[Block]) -> None:
        nonlocal charts
        for block in blocks:
            if isinstance(block, ReportChart):
                flush()
                charts += 1
                made.append(Chart(block.figure, name=f"chart-{charts}"))
                texts.append(f'<div class="dflash-note">{html.escape(block.caption)}</div>')
            else:
                texts.append(block_html(block))

    add(page.lead)
    for section in page.sections:
        texts.append(f"<h3>{html.escape(section.title)}</h3>")
        add(section.blocks)
    flush()
    return made


def block_html(block: Text | Callout | Facts | Items | Code | Table) -> str:
    """One block as HTML; whatever it says is escaped."""
    match block:
        case Text():
            return "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in block.paragraphs)
        case Callout():
            lines = "".join(f"<p>{html.escape(line)}</p>" for line in block.lines)
            return f'<div class="dflash-callout {block.tone}"><p><b>{html.escape(block.lead)}</b></p>{lines}</div>'
        case Facts():
            facts = (
                f"<div><span>{html.escape(fact.name)}</span><b>{html.escape(fact.value)}</b><small>{html.escape(fact.note)}</small></div>"
                for fact in block.facts
            )
            return f'<div class="dflash-facts">{"".join(facts)}</div>'
        case Items():
            return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in block.lines)}</ul>"
        case Code():
            return _folded(block.caption, f"<pre>{html.escape(block.text)}</pre>", block.folded)
        case Table():
            return _folded(block.caption, table_html(block.columns, block.rows), block.folded)


def _folded(caption: str, body: str, folded: bool) -> str:
    said = html.escape(caption)
    if folded:
        return f"<details><summary>{said}</summary>{body}</details>"
    return body + (f'<div class="dflash-note">{said}</div>' if said else "")
