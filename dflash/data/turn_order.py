"""The order of a conversation's turns, mended as far as that loses little, and as asked.

Templates are written for: at most one system message, first; then user, then assistant and user in turn; tool messages behind an
assistant's. Data breaks this in three ways that are well understood: an assistant that greets before it is asked, two turns of one
role in a row, and turns behind the last answer. What else breaks it was joined wrongly, and templates differ in what they make of
it, so such a row is rejected rather than guessed at.
"""

from __future__ import annotations

from typing import Any, Final

from dflash.data.losses import IN_A_ROW, LEADING, TRAILING, Change, RowRejected, as_json
from dflash.data.options import OddTurns

Message = dict[str, Any]
"""role (system, user, assistant, tool) and content, text; perhaps reasoning_content, tool_calls, name, tool_call_id."""

_MAY_FOLLOW: Final[dict[str, set[str | None]]] = {
    "system": {None},
    "user": {None, "system", "assistant", "tool"},
    "assistant": {"user", "tool"},
    "tool": {"assistant", "tool"},
}
_JOINED: Final = ("system", "user", "assistant")


def in_order(messages: list[Message], odd_turns: OddTurns) -> tuple[list[Message], list[Change]]:
    """The messages in an order that templates take, and what was done for it.

    Raises:
        RowRejected: they can't be brought into one, or may not (`drop-row`), or a turn is empty.
    """
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise RowRejected("no assistant turn", f"{len(roles)} messages, none by the assistant")
    changes: list[Change] = []
    if not _sound(roles):
        for mend in (_without_leading, _without_trailing, _without_doubles):
            messages, change = mend(messages, odd_turns)
            changes.extend(change)
        if not any(message["role"] == "assistant" for message in messages):
            raise RowRejected("no assistant turn", "the only answers come before the first user turn")
    _check(messages)
    return messages, changes


def spoken(message: Message) -> str:
    """All that a message says, for counting."""
    calls = message.get("tool_calls")
    return "\n".join(filter(None, (message.get("reasoning_content"), message["content"], as_json(calls) if calls else None)))


def _sound(roles: list[str]) -> bool:
    previous: str | None = None
    for role in roles:
        if previous not in _MAY_FOLLOW[role]:
            return False
        previous = role
    return previous == "assistant"


def _without_leading(messages: list[Message], odd_turns: OddTurns) -> tuple[list[Message], list[Change]]:
    start = next((i for i, message in enumerate(messages) if message["role"] != "system"), 0)
    end = start
    if messages[start]["role"] == "assistant":
        end = next((i for i, message in enumerate(messages) if message["role"] in ("user", "system") and i > start), len(messages))
    return _without(messages, start, end, LEADING, odd_turns)


def _without_trailing(messages: list[Message], odd_turns: OddTurns) -> tuple[list[Message], list[Change]]:
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=len(messages) - 1)
    return _without(messages, last + 1, len(messages), TRAILING, odd_turns)


def _without(messages: list[Message], start: int, end: int, kind: str, odd_turns: OddTurns) -> tuple[list[Message], list[Change]]:
    dropped = messages[start:end]
    if not dropped:
        return messages, []
    if odd_turns == "drop-row":
        raise RowRejected(kind, f"message {start + 1} ({dropped[0]['role']})")
    change = Change(kind, len(dropped), "\n".join(map(spoken, dropped)))
    return messages[:start] + messages[end:], [change]


def _without_doubles(messages: list[Message], odd_turns: OddTurns) -> tuple[list[Message], list[Change]]:
    kept: list[Message] = []
    changes: list[Change] = []
    for number, message in enumerate(messages, 1):
        if not kept or kept[-1]["role"] != message["role"] or message["role"] not in _JOINED:
            kept.append(message)
        elif odd_turns == "drop-row":
            raise RowRejected(IN_A_ROW, f"message {number} ({message['role']}) follows {kept[-1]['role']}")
        elif odd_turns == "drop-turn":
            changes.append(Change(IN_A_ROW, 1, spoken(message)))
        elif kept[-1].get("tool_calls") and message["content"].strip():
            raise RowRejected("roles out of order", f"message {number} (assistant) follows a tool call")
        else:
            kept[-1] = _joined(kept[-1], message)
            changes.append(Change(IN_A_ROW))
    return kept, changes


def _joined(first: Message, second: Message) -> Message:
    """Two messages of one role as one: their texts two newlines apart, their thinking likewise, their calls in order."""
    whole = {**first, **second}
    for key in ("content", "reasoning_content"):
        texts = [text for text in (first.get(key), second.get(key)) if text and text.strip()]
        if texts or key == "content":
            whole[key] = "\n\n".join(texts)
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return {**whole, "tool_calls": calls} if calls else whole


def _check(messages: list[Message]) -> None:
    previous: str | None = None
    for number, message in enumerate(messages, 1):
        role = message["role"]
        if previous not in _MAY_FOLLOW[role]:
            behind = f"follows {previous}" if previous else "comes first"
            raise RowRejected("roles out of order", f"message {number} ({role}) {behind}")
        if role in ("user", "assistant") and not message["content"].strip() and not message.get("tool_calls"):
            raise RowRejected("empty text", f"message {number} ({role}) is empty")
        previous = role
