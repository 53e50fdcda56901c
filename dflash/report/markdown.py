"""The same page as Markdown, for a pull request: charts become their captions, folded parts `<details>`, text is escaped."""

from __future__ import annotations

import re

from dflash.report.page import Block, Callout, Chart, Code, Facts, Items, Page, Table, Text

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def render_markdown(page: Page) -> str:
    """The page as GitHub-flavoured Markdown."""
    parts = [f"# {escape_markdown(page.title)}"]
    if page.subtitle:
        parts.append(f"_{escape_markdown(page.subtitle)}_")
    parts += [_block(block) for block in page.lead]
    for section in page.sections:
        parts += [f"## {escape_markdown(section.title)}", *(_block(block) for block in section.blocks)]
    if page.footer:
        parts.append(f"---\n{escape_markdown(page.footer)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def escape_markdown(text: str) -> str:
    """Text in which nothing is markup, a link, or a mention; on one line."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split())).replace("@", "@\u200b").replace("://", ":\u200b//")


def _block(block: Block) -> str:
    match block:
        case Text():
            return "\n\n".join(escape_markdown(part) for part in block.paragraphs)
        case Callout():
            return "\n>\n".join([f"> **{escape_markdown(block.lead)}**", *(f"> {escape_markdown(line)}" for line in block.lines)])
        case Facts():
            rows = [[fact.name, fact.value, fact.note] for fact in block.facts]
            return _table(["", "", ""], rows)
        case Items():
            return "\n".join(f"- {escape_markdown(line)}" for line in block.lines)
        case Code():
            fence = _fence(block.text)
            code = f"{fence}\n{block.text}\n{fence}"
            return (
                _folded(block.caption, code)
                if block.folded
                else "\n\n".join(part for part in (escape_markdown(block.caption), code) if part)
            )
        case Table():
            table = _table(list(block.columns), block.cells)
            return (
                _folded(block.caption, table)
                if block.folded
                else "\n\n".join(part for part in (escape_markdown(block.caption), table) if part)
            )
        case Chart():
            return f"_Chart (in the HTML report): {escape_markdown(block.caption)}_"


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns)]
    head = ["| " + " | ".join(cells) + " |" for cells in ([escape_markdown(column) for column in lines[0]], lines[1])]
    return "\n".join([*head, *("| " + " | ".join(escape_markdown(cell) for cell in row) + " |" for row in rows)])


def _folded(caption: str, body: str) -> str:
    return f"<details><summary>{escape_markdown(caption)}</summary>\n\n{body}\n\n</details>"


def _fence(text: str) -> str:
    """A fence longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)
