"""One message, in any of the ways people write it, as role and content, and perhaps thinking, tool calls and the like.

Tool calls become what Hugging Face's templates expect: {"type": "function", "function": {"name": ..., "arguments": {...}}}, the arguments
an object even when they came as text, because templates that write JSON would write such a text as a quoted string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from dflash.data.losses import PARTS, Change, RowRejected, as_json
from dflash.data.options import Parts
from dflash.data.turn_order import Message

_CALL: Final = "tool call"
_ROLES: Final = (
    dict.fromkeys("system developer".split(), "system")
    | dict.fromkeys("user human prompter".split(), "user")
    | dict.fromkeys("assistant gpt chatgpt gpt4 bing bard claude ai bot chatbot model".split(), "assistant")
    | dict.fromkeys("tool function observation ipython tool_response function_response tool_result".split(), "tool")
    | dict.fromkeys("function_call tool_call tool_calls function-call tool-call".split(), _CALL)
)
_REASONING_KEYS: Final = ("reasoning_content", "thinking", "reasoning")


def read_messages(value: object, key: str, parts: Parts, changes: list[Change]) -> list[Message]:
    """A list of messages: as such, as JSON text, or as one object of lists (as data sets store lists of objects)."""
    value = from_json(value)
    if isinstance(value, Mapping):
        value = _across(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise RowRejected("not a conversation", f"{key} is {named(value)}, expected a list of messages")
    return [_message(from_json(item), number, parts, changes) for number, item in enumerate(value, 1)]


def from_json(value: object) -> object:
    """The value that a text of JSON stands for; anything else as it is."""
    if isinstance(value, str | bytes) and value.lstrip()[:1] in ("[", "{", b"[", b"{"):
        try:
            return orjson.loads(value)
        except ValueError:
            return value
    return value


def _across(columns: Mapping[Any, Any]) -> object:
    lists = {key: value for key, value in columns.items() if isinstance(value, list)}
    lengths = {len(value) for value in lists.values()}
    if len(lengths) == 1 and ("role" in lists or "from" in lists):
        return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    return columns


def _message(item: object, number: int, parts: Parts, changes: list[Change]) -> Message:
    if not isinstance(item, Mapping):
        raise RowRejected("not a conversation", f"message {number} is {named(item)}, expected role and content")
    role = _role(item, number)
    content = next((item[key] for key in ("content", "value") if item.get(key) is not None), None)
    calls = _calls(item, number)
    if role == _CALL:
        role, calls = "assistant", calls or _spoken_calls(content)
        content = None if calls else content
    if content is None and not (calls or role == "tool"):
        raise RowRejected("null", f"message {number} ({role}) has no content")
    message: Message = {"role": role, "content": _content(content, number, role, parts, changes)}
    reasoning = next((item[name] for name in _REASONING_KEYS if item.get(name)), None)
    if reasoning is not None:
        message["reasoning_content"] = text_of(reasoning, f"reasoning of message {number}")
    if calls:
        message["tool_calls"] = calls
    for key in ("name", "tool_call_id"):
        if role == "tool" and isinstance(item.get(key), str):
            message[key] = text_of(item[key], f"{key} of message {number}")
    return message


def _role(item: Mapping[Any, Any], number: int) -> str:
    given = item.get("role") if item.get("role") is not None else item.get("from")
    if given is None:
        raise RowRejected("null", f"message {number} has no role")
    role = _ROLES.get(given.strip().lower()) if isinstance(given, str) else None
    if role is None:
        raise RowRejected("unknown role", f"message {number} has role {str(given)[:40]!r}")
    return role


def _content(content: object, number: int, role: str, parts: Parts, changes: list[Change]) -> str:
    """A string, or a list of text parts, joined as they stand. What a tool gave back may be any value: it is written as JSON."""
    where = f"message {number}"
    if content is None:
        return ""
    if isinstance(content, list) and (role != "tool" or _has_parts(content)):
        return _text_of_parts(content, where, parts, changes)
    if role == "tool" and not isinstance(content, str):
        content = as_json(content)
    return text_of(content, where)


def _has_parts(content: list[Any]) -> bool:
    return bool(content) and all(isinstance(part, Mapping) and "type" in part for part in content)


def _text_of_parts(content: list[Any], where: str, parts: Parts, changes: list[Change]) -> str:
    texts, others = [], list[str]()
    for part in content:
        if isinstance(part, Mapping):
            kind = part.get("type", "text")
            if kind != "text":
                others.append(str(kind)[:40])
                continue
            part = part.get("text")
        texts.append(text_of(part, f"a part of {where}"))
    if others and parts == "drop-row":
        raise RowRejected(PARTS, f"{where} has {len(others)} of type {', '.join(sorted(set(others)))}")
    changes.extend(Change(PARTS) for _ in others)
    return "".join(texts)


def _calls(item: Mapping[Any, Any], number: int) -> list[dict[str, Any]]:
    given = from_json(item.get("tool_calls") or item.get("function_call") or [])
    listed = given if isinstance(given, list) else [given]
    return [_call(from_json(call), f"call {place} of message {number}") for place, call in enumerate(listed, 1)]


def _spoken_calls(content: object) -> list[dict[str, Any]]:
    """The calls that a turn by `function_call` consists of, if it is JSON; else its text is taken as it stands."""
    given = from_json(content)
    listed = given if isinstance(given, list) else [given]
    try:
        return [_call(call, "a call") for call in listed]
    except RowRejected:
        return []


def _call(given: object, where: str) -> dict[str, Any]:
    function = given.get("function", given) if isinstance(given, Mapping) else None
    function = from_json(function)
    if not isinstance(given, Mapping) or not isinstance(function, Mapping):
        raise RowRejected("tool calls", f"{where} is {named(given)}, expected name and arguments")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowRejected("tool calls", f"{where} has no name")
    arguments = function.get("arguments", function.get("parameters"))
    arguments = from_json({} if arguments in (None, "") else arguments)
    text_of(as_json([name, arguments]), where)
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": given["id"], **call} if isinstance(given.get("id"), str) else call


def read_tools(given: object) -> list[dict[str, Any]] | None:
    """The tools that a row offers, each as a template expects it: {"type": "function", "function": {...}}.

    Raises:
        RowRejected: they are not a list of objects, or of texts that are objects in JSON.
    """
    given = from_json(given)
    if not given:
        return None
    tools = [from_json(tool) for tool in given] if isinstance(given, list) else [given]
    if not all(isinstance(tool, dict) for tool in tools):
        raise RowRejected("tools", f"tools is {named(given)}, expected a list of objects")
    text_of(as_json(tools), "tools")
    return [tool if "function" in tool or "type" in tool else {"type": "function", "function": tool} for tool in tools]  # type: ignore[operator,misc]


def text_of(value: object, where: str) -> str:
    """A value that must be text.

    Raises:
        RowRejected: it is not, or holds half a character.
    """
    if not isinstance(value, str):
        raise RowRejected("null" if value is None else "not text", f"{where} is {named(value)}, expected text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RowRejected("lone surrogate", f"{where} has half a character (\\u{ord(value[error.start]):04x})") from error
    return value


def named(value: object) -> str:
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
