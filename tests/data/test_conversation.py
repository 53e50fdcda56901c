"""Every shape of row becomes what it means; every bad one is rejected for its own reason."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.data.conversation import Conversation, Document, Pretokenised, RowRejected, parse_row

_ASK = {"role": "user", "content": "hi"}
_SAY = {"role": "assistant", "content": "hello"}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [_ASK, _SAY]},
        {"messages": [_ASK, _SAY], "prompt": "hi", "prompt_id": "7", "text": None},
        {"messages": None, "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"conversations": [_ASK, _SAY], "system": ""},
        {"messages": [{"role": "User ", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}, _SAY]},
        {"messages": [{"role": "user", "content": ["h", "i"]}, {**_SAY, "name": None, "tool_calls": None}], "tools": []},
        {"prompt": "hi", "response": "hello"},
        {"prompt": "hi", "completion": "hello", "response": None},
        {"prompt": [_ASK], "completion": [_SAY]},
        {"instruction": "hi", "input": "", "output": "hello"},
        {"instruction": "hi", "output": "hello", "input": None},
        {"instruction": "", "input": "hi", "output": "hello"},
    ],
)
def test_shapes_of_one_conversation_are_one_conversation(row: dict[str, object]) -> None:
    assert parse_row(row) == Conversation([_ASK, _SAY])


def test_alpaca_input_stands_two_lines_below_the_instruction() -> None:
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3"}
    assert parse_row(row) == Conversation([{"role": "user", "content": "Add.\n\n1 and 2"}, {"role": "assistant", "content": "3"}])


@pytest.mark.parametrize(
    ("given", "led"),
    [
        ({"conversations": [_ASK, _SAY], "system": "be good"}, "be good"),
        ({"conversations": [{"from": "system", "value": "be bad"}, _ASK, _SAY], "system": "be good"}, "be bad"),
        ({"messages": [{"role": "developer", "content": "be good"}, _ASK, _SAY]}, "be good"),
        ({"prompt": "hi", "response": "hello", "system": "be good"}, "be good"),
    ],
)
def test_system_text_leads_the_messages_unless_they_have_their_own(given: dict[str, object], led: str) -> None:
    assert parse_row(given) == Conversation([{"role": "system", "content": led}, _ASK, _SAY])


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_kept_under_one_name(key: str) -> None:
    assert parse_row({"messages": [_ASK, {**_SAY, key: "hm"}]}) == Conversation([_ASK, {**_SAY, "reasoning_content": "hm"}])


def test_text_and_token_rows() -> None:
    assert parse_row({"text": "hi", "url": "x"}) == Document("hi")
    assert parse_row({"input_ids": [1], "loss_mask": [1], "text": "x"}) == Pretokenised([1], [1])
    assert parse_row({"input_ids": [1], "loss_mask": None}) == Pretokenised([1], None)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1, 2], "not an object: the row is a list"),
        ("text", "not an object: the row is a string"),
        (7, "not an object: the row is a number"),
        (None, "not an object: the row is null"),
        ({}, "unknown shape: keys (none)"),
        ({"tweet": "x", "id": 3}, "unknown shape: keys id, tweet"),
        ({"prompt": "x"}, "unknown shape: keys prompt"),
        ({"messages": None}, "null: messages null"),
        ({"text": None, "input_ids": None, "id": 3}, "null: input_ids, text null"),
        ({"messages": "hi"}, "not a conversation: messages is a string"),
        ({"messages": {"role": "user"}}, "not a conversation: messages is an object"),
        ({"messages": [_ASK, "hello"]}, "not a conversation: message 2 is a string"),
        ({"messages": [[_ASK, _SAY]]}, "not a conversation: message 1 is a list"),
        ({"messages": []}, "no assistant turn: 0 messages"),
        ({"messages": [_ASK]}, "no assistant turn: 1 messages"),
        ({"messages": [_ASK, {"role": "alien", "content": "x"}]}, "unknown role: message 2 has role 'alien'"),
        ({"messages": [_ASK, {"role": 3, "content": "x"}]}, "unknown role: message 2 has role '3'"),
        ({"messages": [_ASK, {"content": "x"}]}, "null: message 2 has no role"),
        ({"messages": [_ASK, {"role": "assistant", "content": None}]}, "null: message 2 (assistant) has no content"),
        ({"messages": [_ASK, {"role": "assistant", "content": 3}]}, "not text: message 2 is a number"),
        ({"messages": [_ASK, {"role": "assistant", "content": {"text": "x"}}]}, "not text: message 2 is an object"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}, _SAY]},
            "not text: message 1 has a part of type 'image'",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}, _SAY]}, "null: a part of message 1 is null"),
        ({"messages": [_ASK, {**_SAY, "tool_calls": [{"name": "f"}]}]}, "tool calls: message 2"),
        ({"messages": [_ASK, _SAY], "tools": [{"name": "f"}]}, "tool calls: rows with a list of tools"),
        ({"messages": [_SAY, _ASK]}, "roles out of order: message 1 (assistant) comes first"),
        ({"messages": [_ASK, _ASK, _SAY]}, "roles out of order: message 2 (user) follows user"),
        ({"messages": [_ASK, _SAY, _SAY]}, "roles out of order: message 3 (assistant) follows assistant"),
        (
            {"messages": [_ASK, _SAY, {"role": "system", "content": "x"}]},
            "roles out of order: message 3 (system) follows assistant",
        ),
        ({"messages": [_ASK, {"role": "tool", "content": "x"}, _SAY]}, "roles out of order: message 2 (tool) follows user"),
        ({"messages": [{"role": "user", "content": " \n"}, _SAY]}, "empty text: message 1 (user) is empty"),
        ({"messages": [_ASK, {"role": "assistant", "content": []}]}, "empty text: message 2 (assistant) is empty"),
        ({"text": " \n"}, "empty text: text is empty"),
        ({"text": ["a"]}, "not text: text is a list"),
        ({"text": "a\ud800b"}, "lone surrogate: text has half a character (\\ud800)"),
        ({"prompt": "x", "response": 3}, "not a conversation: response is a number"),
        ({"instruction": "x", "output": None}, "null: output null"),
        ({"instruction": "x", "output": ["y"]}, "not text: output is a list"),
        ({"messages": [_ASK, _SAY], "system": 3}, "not text: system is a number"),
        ({"messages": [_ASK, {**_SAY, "reasoning_content": ["hm"]}]}, "not text: reasoning of message 2 is a list"),
    ],
)
def test_bad_row_is_rejected_for_its_own_reason(row: object, reason: str) -> None:
    with pytest.raises(RowRejected) as caught:
        parse_row(row)
    assert str(caught.value).startswith(reason)
    assert caught.value.kind == reason.partition(":")[0]


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "type", "text", "tool_calls"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["messages", "conversations", "prompt", "response", "instruction", "input", "output", "text", "system", "input_ids"]
        ),
        _JUNK,
        max_size=4,
    )
    | _JUNK
)
def test_junk_of_any_kind_is_a_row_or_a_rejection_and_nothing_else(row: object) -> None:
    with suppress(RowRejected):
        assert isinstance(parse_row(row), Conversation | Document | Pretokenised)
