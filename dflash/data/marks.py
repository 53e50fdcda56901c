"""Marks: private-use characters put into a conversation's texts to see where a template writes them.

Rendered once without and once with marks, the two texts must be the same but for the marks; then each mark's place in the second is a
place in the first. A mark that is lost, moved or doubled says that the template rewrites what it is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dflash.data.conversation import Conversation
from dflash.data.losses import RowRejected
from dflash.data.turn_order import Message

ASIDE = "not followed through the template"
_PLANES = (0xF0000, 0x100000)  # private use: no text means anything by them
_PLANE_SIZE = 0xFFFE
FIRST_MARK = chr(_PLANES[0])


def free_marks(text: str, count: int) -> list[str]:
    """`count` private-use characters of a plane the text does not use.

    Raises:
        RowRejected: it uses both planes.
    """
    for plane in _PLANES:
        if count <= _PLANE_SIZE and not re.search(f"[{chr(plane)}-{chr(plane + _PLANE_SIZE - 1)}]", text):
            return [chr(plane + number) for number in range(count)]
    raise RowRejected(ASIDE, "the text uses private-use characters of both planes")


def found_marks(text: str, marked: str, marks: Sequence[str]) -> dict[int, int] | None:
    """Where each mark (by its number) stands in `text`, or None when `marked` is not `text` with some of the marks, each once, in order."""
    pieces = re.split(f"([{marks[0]}-{marks[-1]}])", marked)
    found = [ord(mark) - ord(marks[0]) for mark in pieces[1::2]]
    if found != sorted(set(found)) or "".join(pieces[::2]) != text:
        return None
    places, position = {}, 0
    for piece, number in zip(pieces[::2], found, strict=False):
        position += len(piece)
        places[number] = position
    return places


def with_mark(text: str, mark: str) -> str:
    """The text with a mark behind its last letter."""
    letters = text.rstrip()
    return letters + mark + text[len(letters) :]


def with_marked_calls(message: Message, marks: Sequence[str]) -> Message:
    """A message with a mark behind the name of each function it calls."""
    calls: list[dict[str, Any]] = message["tool_calls"]
    marked = [
        {**call, "function": {**call["function"], "name": call["function"]["name"] + mark}}
        for call, mark in zip(calls, marks, strict=True)
    ]
    return {**message, "tool_calls": marked}


def with_messages(row: Conversation, messages: list[Message]) -> Conversation:
    """The same row, other messages."""
    return replace(row, messages=messages)
