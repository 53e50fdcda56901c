"""`python -m tests.corpus`: every bad input through its door, counted; `--write` puts the table into docs/reliability.md."""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.corpus.campaign import DOORS, Result, make_sound, results

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_SECTION = re.compile(r"(?ms)^## Bad input\n.*?(?=^## |\Z)")
_INTRODUCTION = """## Bad input

`python -m tests.corpus` makes each of these inputs, one kind of fault each, and takes it through the command line; `--write` rewrites this
section. Accepted: read whole, or but for the rows listed with line and reason. Refused: exit code 2 or 1 with place and reason.
Failed: a traceback, a hang (over 60 s), a place not named, or accepted where it had to be refused.

"""


def main() -> None:
    """Run all, print the table, end with 1 when a case failed."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "sound").mkdir()
        sound = make_sound(folder / "sound")
        found = {door: list(results(door, folder / door, sound)) for door in DOORS}
    for each in (result for listed in found.values() for result in listed if result.wrong):
        print(f"{each.case.door}: {each.case.name}: {each.wrong[:400]}", file=sys.stderr)
    table = table_of(found)
    print(table)
    if "--write" in sys.argv[1:]:
        text = PAGE.read_text() if PAGE.exists() else "# Reliability\n\n"
        text = _SECTION.sub("", text).rstrip() + "\n\n" + _INTRODUCTION + table + "\n"
        PAGE.write_text(text)
    sys.exit(any(result.wrong for listed in found.values() for result in listed))


def table_of(found: dict[str, list[Result]]) -> str:
    """The counts by door, as Markdown."""
    lines = ["| command | tried | accepted | refused | failed |", "|---|---|---|---|---|"]
    total: Counter[str] = Counter()
    for door, listed in found.items():
        counts = Counter("failed" if result.wrong else result.outcome.verdict for result in listed)
        total += counts
        lines.append(_line(f"`dflash {door}`", counts))
    return "\n".join([*lines, _line("all", total)])


def _line(name: str, counts: Counter[str]) -> str:
    return f"| {name} | {counts.total()} | {counts['accepted']} | {counts['refused']} | {counts['failed']} |"


if __name__ == "__main__":
    main()
