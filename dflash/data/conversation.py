"""One row of user data, in any of the shapes people publish, turned into one of three things, or rejected with a reason.

The shape is recognised by the keys a row has (a key whose value is null counts as absent), in this order:

    input_ids (+ loss_mask)                            -> Pretokenised
    messages | conversations                           -> Conversation (role/content or from/value)
    prompt + response | completion                     -> Conversation of one turn
    instruction (+ input) + output                     -> Conversation of one turn, the input two newlines below the instruction
    text                                               -> Document

Order of roles: at most one system message, first; then user, then assistant and user in turn; tool messages follow an assistant and
are followed by one. A dataset that breaks this was joined wrongly, and templates differ in what they make of it, so the row is
rejected rather than guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Message = dict[str, str]

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

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
_MAY_FOLLOW: Final[dict[str, set[str | None]]] = {
    "system": {None},
    "user": {None, "system", "assistant"},
    "assistant": {"user", "tool"},
    "tool": {"assistant", "tool"},
}
_REASONING_KEYS: Final = ("reasoning_content", "thinking", "reasoning")


class RowRejected(Exception):
    """A row that can't be used. `kind` is what is counted; the detail says where in the row."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


@dataclass(frozen=True)
class Conversation:
    """Messages in order; each has role (system, user, assistant, tool), content, and perhaps reasoning_content."""

    messages: list[Message]


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


def parse_row(raw: object) -> Row:
    """Recognise a row's shape and check its text and roles.

    Raises:
        RowRejected: the shape is unknown, or the row can't be used.
    """
    if not isinstance(raw, Mapping):
        raise RowRejected("not an object", f"the row is {_named(raw)}")
    row = {key: value for key, value in raw.items() if value is not None}
    if "input_ids" in row:
        return Pretokenised(row["input_ids"], row.get("loss_mask"))
    if row.get("tools"):
        raise RowRejected("tool calls", "rows with a list of tools are not supported")
    for key in ("messages", "conversations"):
        if key in row:
            return Conversation(_checked(_led(row, _messages(row[key], key))))
    if "prompt" in row and ("response" in row or "completion" in row):
        answer = "response" if "response" in row else "completion"
        return Conversation(_checked(_led(row, _side(row, "prompt", "user") + _side(row, answer, "assistant"))))
    if "instruction" in row and "output" in row:
        asked = [_text(row[key], key) for key in ("instruction", "input") if key in row]
        question = {"role": "user", "content": "\n\n".join(text for text in asked if text.strip())}
        return Conversation(_checked(_led(row, [question, {"role": "assistant", "content": _text(row["output"], "output")}])))
    if "text" in row:
        text = _text(row["text"], "text")
        if not text.strip():
            raise RowRejected("empty text", "text is empty")
        return Document(text)
    raise _unknown_shape(raw)


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
    text = _text(row.get("system", ""), "system")
    if not text.strip() or (messages and messages[0]["role"] == "system"):
        return messages
    return [{"role": "system", "content": text}, *messages]


def _side(row: Mapping[str, Any], key: str, role: str) -> list[Message]:
    """`prompt` or its answer: one text, or a list of messages."""
    value = row[key]
    if isinstance(value, str):
        return [{"role": role, "content": _text(value, key)}]
    return _messages(value, key)


def _messages(value: object, key: str) -> list[Message]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise RowRejected("not a conversation", f"{key} is {_named(value)}, expected a list of messages")
    return [_message(item, number) for number, item in enumerate(value, 1)]


def _message(item: object, number: int) -> Message:
    if not isinstance(item, Mapping):
        raise RowRejected("not a conversation", f"message {number} is {_named(item)}, expected role and content")
    given = item.get("role", item.get("from"))
    if given is None:
        raise RowRejected("null", f"message {number} has no role")
    role = _ROLES.get(given.strip().lower()) if isinstance(given, str) else None
    if role is None:
        raise RowRejected("unknown role", f"message {number} has role {str(given)[:40]!r}")
    if item.get("tool_calls") or item.get("function_call"):
        raise RowRejected("tool calls", f"message {number} calls a tool; only text is supported")
    content = item.get("content", item.get("value"))
    if content is None:
        raise RowRejected("null", f"message {number} ({role}) has no content")
    message = {"role": role, "content": _content(content, f"message {number}")}
    reasoning = next((item[name] for name in _REASONING_KEYS if item.get(name)), None)
    if reasoning is not None:
        message["reasoning_content"] = _text(reasoning, f"reasoning of message {number}")
    return message


def _content(content: object, where: str) -> str:
    """A string, or a list of text parts, joined as they stand."""
    if not isinstance(content, list):
        return _text(content, where)
    texts = []
    for part in content:
        if isinstance(part, Mapping):
            kind = part.get("type", "text")
            if kind != "text":
                raise RowRejected("not text", f"{where} has a part of type {str(kind)[:40]!r}")
            part = part.get("text")
        texts.append(_text(part, f"a part of {where}"))
    return "".join(texts)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RowRejected("null" if value is None else "not text", f"{where} is {_named(value)}, expected text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RowRejected("lone surrogate", f"{where} has half a character (\\u{ord(value[error.start]):04x})") from error
    return value


def _checked(messages: list[Message]) -> list[Message]:
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise RowRejected("no assistant turn", f"{len(roles)} messages, none by the assistant")
    previous: str | None = None
    for number, message in enumerate(messages, 1):
        role = message["role"]
        if previous not in _MAY_FOLLOW[role]:
            raise RowRejected(
                "roles out of order", f"message {number} ({role}) " + (f"follows {previous}" if previous else "comes first")
            )
        if role in ("user", "assistant") and not message["content"].strip():
            raise RowRejected("empty text", f"message {number} ({role}) is empty")
        previous = role
    return messages


def _named(value: object) -> str:
    """What a value is, in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, Sequence) and not isinstance(value, bytes) else f"of type {type(value).__name__}"
