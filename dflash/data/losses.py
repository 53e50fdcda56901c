"""What of the input is not used, why, and what to set to use it: counted row by row, told in one table.

A reason is a short text, the `kind` of a rejected row or of a change to a kept one. Rows and turns are counted as the input has them;
tokens are those of the text that could be read, without what a template would have put around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict


class RowRejected(Exception):
    """A row that can't be used. `kind` is what is counted; the detail says where in the row."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class Change(NamedTuple):
    """What was done to a row to keep it: why, how many turns of it were dropped, and the text dropped."""

    kind: str
    turns: int = 0
    text: str = ""


class Loss(BaseModel):
    """What one reason cost: rows dropped, rows changed and kept, turns and tokens dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int = 0
    changed: int = 0
    turns: int = 0
    tokens: int = 0

    def __add__(self, other: Loss) -> Loss:
        return Loss(**{name: getattr(self, name) + getattr(other, name) for name in Loss.model_fields})


LEADING: Final = "assistant turn before the first user turn"
IN_A_ROW: Final = "two turns of one role in a row"
TRAILING: Final = "turns behind the last answer"
PARTS: Final = "parts that are not text"
CUT: Final = "cut to the longest allowed"
TOOLS_UNWRITTEN: Final = "tools the template does not write"
CALLS_UNWRITTEN: Final = "tool calls the template does not write"
THINKING_UNWRITTEN: Final = "thinking the template does not write"

_BY_TEMPLATE = "--chat-template FILE, one that writes them"
_MEND_FILE = "mend those lines; each is in rejected.jsonl"
_MEND_ROW = "mend those rows; each is in rejected.jsonl"
_REMEDIES: Final = {
    LEADING: "a user turn put before it in the data",
    IN_A_ROW: "--odd-turns join, which keeps both as one",
    TRAILING: "an answer put behind them in the data",
    PARTS: "--parts drop-part, which keeps the text",
    CUT: "--max-length, higher",
    "over-long": "--over-long cut, or --max-length, higher",
    TOOLS_UNWRITTEN: _BY_TEMPLATE,
    CALLS_UNWRITTEN: _BY_TEMPLATE,
    THINKING_UNWRITTEN: "--chat-template FILE, one that writes it",
    "no chat template": "--chat-template FILE",
    "not followed through the template": "--chat-template FILE, one with {% generation %} marks",
    "refused by the template": "--chat-template FILE, one that takes such rows",
    "fewer than two supervised tokens": "--max-length, higher, where the answer was cut off",
    "token id outside the vocabulary": "--tokenizer, the one that made those ids",
    "broken JSON": _MEND_FILE,
    "cut off": "bring the whole file",
    "row too long": _MEND_FILE,
    "line too long": _MEND_FILE,
    "not UTF-8": "write the file as UTF-8",
    "empty file": "leave the file out",
    "control token in the text": "take those tokens out of the text",
}


def remedy(kind: str) -> str:
    """What to set, or to do, so that what is lost for this reason is kept."""
    return _REMEDIES.get(kind, _MEND_ROW)


def summed(losses: Iterable[Mapping[str, Loss]]) -> dict[str, Loss]:
    """Losses added up by reason, in the order of the alphabet."""
    total: dict[str, Loss] = {}
    for each in losses:
        for kind, loss in each.items():
            total[kind] = total[kind] + loss if kind in total else loss
    return dict(sorted(total.items()))


def table(counts: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int, int, str]]:
    """The rows of the table, the costliest reason first: reason, rows dropped, rows changed, turns and tokens dropped, what to set.

    Args:
        counts: `losses` as a `PrepareReport` has them: by reason, the fields of `Loss`.
    """
    for kind, loss in sorted(counts.items(), key=lambda item: (-item[1]["tokens"], -item[1]["rows"], item[0])):
        yield kind, loss["rows"], loss["changed"], loss["turns"], loss["tokens"], remedy(kind)


_TEXTS: Final = (
    "messages",
    "conversations",
    "prompt",
    "response",
    "completion",
    "instruction",
    "input",
    "output",
    "text",
    "system",
)


def of_rejected(raw: object) -> tuple[int, Iterator[str], int]:
    """What a rejected row held, as far as it can be told: its turns, its texts, and token ids it brought along."""
    if not isinstance(raw, Mapping):
        return 0, iter(()), 0
    ids = raw.get("input_ids")
    if ids is not None:
        return 0, iter(()), len(ids) if isinstance(ids, list) else 0
    lists = [raw[key] for key in ("messages", "conversations") if isinstance(raw.get(key), list)]
    return len(lists[0]) if lists else 0, _strings([raw.get(key) for key in _TEXTS]), 0


def _strings(value: object, depth: int = 8) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, list):
        for each in value:
            yield from _strings(each, depth - 1)
    elif depth and isinstance(value, Mapping):
        for key, each in value.items():
            if key not in ("role", "from", "type", "id"):
                yield from _strings(each, depth - 1)


def as_json(value: object) -> str:
    """A value as text of one line, letters as they are."""
    return json.dumps(value, ensure_ascii=False, default=str)
