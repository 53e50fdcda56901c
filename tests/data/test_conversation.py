"""Every shape of row becomes what it means; every bad one is rejected for its own reason."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.data.conversation import Conversation, Document, Pretokenised, RowRejected, parse_row
from dflash.data.losses import IN_A_ROW, LEADING, PARTS, TRAILING

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


@pytest.mark.parametrize(
    "messages",
    [
        json.dumps([_ASK, _SAY]),
        json.dumps([_ASK, _SAY]).encode(),
        [json.dumps(_ASK), json.dumps(_SAY)],
        {"role": ["user", "assistant"], "content": ["hi", "hello"]},
        {"from": ["human", "gpt"], "value": ["hi", "hello"]},
    ],
)
@pytest.mark.parametrize("key", ["messages", "conversations"])
def test_messages_as_columns_of_tables_have_them(key: str, messages: object) -> None:
    assert parse_row({key: messages}) == Conversation([_ASK, _SAY])


def test_row_that_is_a_list_of_messages_is_a_conversation() -> None:
    assert parse_row([_ASK, _SAY]) == Conversation([_ASK, _SAY])


_CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "it", "n": 1.0}}}


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "assistant", "tool_calls": json.dumps([_CALL])},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": '{"at": "it", "n": 1.0}'}]},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": {"at": "it", "n": 1.0}}},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "it", "n": 1.0}}'},
        {"from": "tool_calls", "value": '[{"name": "look", "parameters": {"at": "it", "n": 1.0}}]'},
    ],
)
def test_tool_calls_are_one_thing_however_they_are_written(turn: dict[str, object]) -> None:
    said = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    back = {"role": "tool", "content": "7"}
    for answer in ({"role": "tool", "content": "7"}, {"from": "observation", "value": 7}, {"role": "function", "content": "7"}):
        assert parse_row({"messages": [_ASK, turn, answer, _SAY]}) == Conversation([_ASK, said, back, _SAY])


def test_call_that_is_no_json_is_kept_as_the_text_it_is() -> None:
    row = parse_row({"conversations": [_ASK, {"from": "function_call", "value": "look(it)"}]})
    assert row == Conversation([_ASK, {"role": "assistant", "content": "look(it)"}])


@pytest.mark.parametrize("given", [[{"name": "f"}], '[{"name": "f"}]', ['{"name": "f"}'], {"name": "f"}])
def test_tools_are_a_list_of_functions_however_they_are_written(given: object) -> None:
    row = parse_row({"messages": [_ASK, _SAY], "tools": given})
    assert row == Conversation([_ASK, _SAY], [{"type": "function", "function": {"name": "f"}}])


@pytest.mark.parametrize("speaker", ["gpt", "chatgpt", "bing", "bard", "claude", "Assistant", "model"])
def test_every_assistant_of_a_sharegpt_dump_is_the_assistant(speaker: str) -> None:
    row = {"conversations": [{"from": "human", "value": "hi"}, {"from": speaker, "value": "hello"}]}
    assert parse_row(row) == Conversation([_ASK, _SAY])


_MORE = {"role": "user", "content": "more"}
_AGAIN = {"role": "assistant", "content": "again"}


@pytest.mark.parametrize(
    ("messages", "kind", "joined", "dropped"),
    [
        ([_SAY, _ASK, _SAY], LEADING, [_ASK, _SAY], [_ASK, _SAY]),
        ([_ASK, _SAY, _MORE], TRAILING, [_ASK, _SAY], [_ASK, _SAY]),
        ([_ASK, _MORE, _SAY], IN_A_ROW, [{"role": "user", "content": "hi\n\nmore"}, _SAY], [_ASK, _SAY]),
        ([_ASK, _SAY, _AGAIN], IN_A_ROW, [_ASK, {"role": "assistant", "content": "hello\n\nagain"}], [_ASK, _SAY]),
    ],
)
def test_odd_turns_are_joined_or_dropped_or_the_row_is_as_asked(
    messages: list[dict[str, str]], kind: str, joined: list[dict[str, str]], dropped: list[dict[str, str]]
) -> None:
    row = {"messages": messages}
    for option, expected in (("join", joined), ("drop-turn", dropped)):
        found = parse_row(row, odd_turns=option)
        assert found == Conversation(expected)
        assert [change.kind for change in found.changes] == [kind]
        assert sum(change.turns for change in found.changes) == (
            0 if "\n" in str(expected).encode().decode("unicode_escape") else 1
        )
    with pytest.raises(RowRejected, match=kind):
        parse_row(row, odd_turns="drop-row")


def test_joined_turns_keep_their_thinking_and_their_calls() -> None:
    first, second = {**_SAY, "reasoning_content": "a"}, {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    assert parse_row({"messages": [_ASK, first, {**second, "thinking": "b"}]}) == Conversation(
        [_ASK, {"role": "assistant", "content": "hello", "reasoning_content": "a\n\nb", "tool_calls": [_CALL]}]
    )


def test_parts_that_are_not_text_are_dropped_when_asked_and_each_is_counted() -> None:
    asked = [{"type": "image", "url": "x"}, {"type": "text", "text": "hi"}, {"type": "image_url"}]
    found = parse_row({"messages": [{"role": "user", "content": asked}, _SAY]}, parts="drop-part")
    assert found == Conversation([_ASK, _SAY])
    assert [change.kind for change in found.changes] == [PARTS, PARTS]
    with pytest.raises(RowRejected, match="message 1 has 2 of type image, image_url"):
        parse_row({"messages": [{"role": "user", "content": asked}, _SAY]})


@given(
    st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=8),
    st.sampled_from(["join", "drop-turn", "drop-row"]),
)
def test_turns_brought_into_order_stay_so_and_none_is_lost_uncounted(roles: list[str], odd_turns: Any) -> None:
    messages = [{"role": role, "content": f"<{number}>"} for number, role in enumerate(roles)]
    with suppress(RowRejected):
        found = parse_row({"messages": messages}, odd_turns=odd_turns)
        again = parse_row({"messages": found.messages}, odd_turns=odd_turns)
        assert (again, again.changes) == (found, [])
        told = "".join(message["content"] for message in found.messages) + "".join(change.text for change in found.changes)
        assert all(f"<{number}>" in told for number in range(len(roles)))
        assert odd_turns != "drop-row" or not found.changes


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
            "parts that are not text: message 1 has 1 of type image",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}, _SAY]}, "null: a part of message 1 is null"),
        ({"messages": [_ASK, {**_SAY, "tool_calls": [{"arguments": {}}]}]}, "tool calls: call 1 of message 2 has no name"),
        ({"messages": [_ASK, {**_SAY, "tool_calls": ["f"]}]}, "tool calls: call 1 of message 2 is a string"),
        ({"messages": [_ASK, {**_SAY, "tool_calls": [{"name": "a\ud800"}]}]}, "lone surrogate: call 1 of message 2"),
        ({"messages": [_ASK, _SAY], "tools": "search"}, "tools: tools is a string"),
        ({"messages": [_ASK, _SAY], "tools": ["search"]}, "tools: tools is a list"),
        ({"messages": [_SAY, _ASK]}, "no assistant turn: the only answers come before the first user turn"),
        ({"messages": [_ASK, {**_SAY, "tool_calls": [{"name": "f"}]}, _SAY]}, "roles out of order: message 3 (assistant)"),
        ({"messages": [_ASK, _SAY, {"role": "system", "content": "x"}, _ASK, _SAY]}, "roles out of order: message 3 (system)"),
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
