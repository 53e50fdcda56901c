"""One row of user data, in any of the shapes people publish, turned into one of three things, or rejected with a reason.

The shape is recognised by the keys a row has (a key whose value is null counts as absent), in this order:

    input_ids (+ loss_mask)                            -> Pretokenised
    messages | conversations                           -> Conversation (role/content or from/value)
    prompt + response | completion                     -> Conversation of one turn
    instruction (+ input) + output                     -> Conversation of one turn, the input two newlines below the instruction
    text                                               -> Document

A list of messages may be JSON text, as Parquet files have it, and a row may be such a list itself. `tools` go with any conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dflash.data.losses import Change, RowRejected
from dflash.data.messages import named, read_messages, read_tools, text_of
from dflash.data.options import OddTurns, Parts
from dflash.data.turn_order import Message, in_order

__all__ = ["SHAPE_KEYS", "Conversation", "Document", "Message", "Pretokenised", "Row", "RowRejected", "parse_row"]

SHAPE_KEYS: Final = (
    "input_ids",
    "loss_mask",
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
    "tools",
)


@dataclass(frozen=True)
class Conversation:
    """Messages in order (see `Message`), the tools offered in it, and what was done to the row to keep it."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    changes: list[Change] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class Document:
    """Plain text, supervised throughout."""

    text: str


@dataclass(frozen=True)
class Pretokenised:
    """Token ids and, if the row had one, their loss mask; both as the row gave them, unchecked."""

    input_ids: Any
    loss_mask: Any


Row = Conversation | Document | Pretokenised


def parse_row(raw: object, *, odd_turns: OddTurns = "join", parts: Parts = "drop-row") -> Row:
    """Recognise a row's shape, check its text, and bring its turns into an order that templates take.

    Raises:
        RowRejected: the shape is unknown, or the row can't be used.
    """
    if isinstance(raw, list) and raw and isinstance(raw[0], Mapping) and ("role" in raw[0] or "from" in raw[0]):
        raw = {"messages": raw}
    if not isinstance(raw, Mapping):
        raise RowRejected("not an object", f"the row is {named(raw)}")
    row = {key: value for key, value in raw.items() if value is not None}
    if "input_ids" in row:
        return Pretokenised(row["input_ids"], row.get("loss_mask"))
    changes: list[Change] = []
    messages = _spoken(row, parts, changes)
    if messages is not None:
        messages, mended = in_order(_led(row, messages), odd_turns)
        return Conversation(messages, read_tools(row.get("tools")), changes + mended)
    if "text" in row:
        text = text_of(row["text"], "text")
        if not text.strip():
            raise RowRejected("empty text", "text is empty")
        return Document(text)
    raise _unknown_shape(raw)


def _spoken(row: Mapping[str, Any], parts: Parts, changes: list[Change]) -> list[Message] | None:
    """The messages of a row that is a conversation."""

    def side(key: str, role: str) -> list[Message]:
        """`prompt` or its answer: one text, or a list of messages."""
        value = row[key]
        if isinstance(value, str):
            return [{"role": role, "content": text_of(value, key)}]
        return read_messages(value, key, parts, changes)

    for key in ("messages", "conversations"):
        if key in row:
            return read_messages(row[key], key, parts, changes)
    if "prompt" in row and ("response" in row or "completion" in row):
        return side("prompt", "user") + side("response" if "response" in row else "completion", "assistant")
    if "instruction" in row and "output" in row:
        asked = [text_of(row[key], key) for key in ("instruction", "input") if key in row]
        question = {"role": "user", "content": "\n\n".join(text for text in asked if text.strip())}
        return [question, {"role": "assistant", "content": text_of(row["output"], "output")}]
    return None


def _unknown_shape(raw: Mapping[Any, Any]) -> RowRejected:
    nulls = [key for key in SHAPE_KEYS if key in raw and raw[key] is None]
    if nulls:
        return RowRejected("null", f"{', '.join(nulls)} null, and no other known shape")
    keys = ", ".join(sorted(map(str, raw))[:8])
    return RowRejected(
        "unknown shape", f"keys {keys or '(none)'}; known: messages, conversations, prompt, instruction, text, input_ids"
    )


def _led(row: Mapping[str, Any], messages: list[Message]) -> list[Message]:
    """The messages led by the row's `system` text, when it has some and the messages have none of their own."""
    text = text_of(row.get("system", ""), "system")
    if not text.strip() or (messages and messages[0]["role"] == "system"):
        return messages
    return [{"role": "system", "content": text}, *messages]
