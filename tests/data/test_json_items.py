"""Rows out of one big JSON value, against the standard library's parser; broken ones are told with their line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.data.json_items import JsonItem, json_items

_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text('a"\\\n{}[],:\u00e9', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", 'b"', "data", "{"]), inner, max_size=3),
    max_leaves=8,
)
_ROWS = st.lists(st.fixed_dictionaries({"row": _VALUES}), max_size=5)
_INDENT = st.sampled_from([None, 0, 2])
_BLOCK = st.sampled_from([1, 3, 20, 10_000])


def items(text: str | bytes, block: int = 7, longest: int = 10**6) -> list[JsonItem]:
    data = text.encode() if isinstance(text, str) else text
    return list(json_items(iter([data[i : i + block] for i in range(0, len(data), block)]), longest_bytes=longest))


def told(text: str, **how: int) -> list[tuple[int, Any]]:
    """Each item's line with its value, or with the reason why it has none."""
    return [(item.line, item.reason if item.text is None else json.loads(item.text)) for item in items(text, **how)]


@given(_ROWS, _INDENT, _BLOCK, st.booleans())
def test_items_of_an_array_are_those_of_the_standard_parser(rows: list[Any], indent: int | None, block: int, windows: bool) -> None:
    text = json.dumps(rows, indent=indent)
    text = text.replace("\n", "\r\n") if windows else text
    found = items("\ufeff" + text, block)
    assert [json.loads(item.text or b"") for item in found] == rows
    for item in found:
        assert item.text is not None
        assert item.text.decode().split("\n")[0].strip() in text.split("\n")[item.line - 1]


@given(_ROWS, _INDENT, _BLOCK, st.sampled_from(["", " ", "\n", "\r\n\n"]))
def test_objects_one_after_the_other_are_rows(rows: list[Any], indent: int | None, block: int, between: str) -> None:
    assert [
        json.loads(item.text or b"") for item in items(between.join(json.dumps(row, indent=indent) for row in rows), block)
    ] == rows


@given(_ROWS.filter(bool), _INDENT, _BLOCK)
def test_lists_of_rows_inside_an_object_are_read(rows: list[Any], indent: int | None, block: int) -> None:
    whole = {"version": {"data": [1]}, "data": rows, "tags": ["x"], "train": rows, "n": 3}
    assert [json.loads(item.text or b"") for item in items(json.dumps(whole, indent=indent), block)] == rows * 2


@pytest.mark.parametrize(
    "row",
    [
        {"conversations": [{"from": "human", "value": "a"}]},
        {"id": 1, "messages": [{"role": "user"}], "data": [{"x": 1}]},
        {"text": "a", "items": [{"x": 1}]},
        {"data": [1, 2]},
        {},
    ],
)
def test_object_that_is_itself_a_row_is_one(row: dict[str, Any]) -> None:
    assert told(json.dumps(row, indent=1)) == [(1, row)]
    assert told(json.dumps([row, row])) == [(1, row)] * 2


def test_array_of_messages_is_one_row() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert told(json.dumps(chat)) == [(1, chat)]
    assert told(json.dumps([chat, chat])) == [(1, chat)] * 2


_PRETTY = '[\n  {\n    "a": 1\n  },\n  {\n    "a": %s\n  },\n  {\n    "a": 3\n  }\n]\n'


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('"x', "broken JSON: a string has no end in line 6"),
        ("[", "broken JSON: a bracket is missing before the '}' in line 7"),
        ('{"b": 2', "broken JSON: a bracket is missing before the ']' in line 11"),
    ],
)
def test_broken_item_is_told_with_its_line_and_those_around_it_stay(broken: str, reason: str) -> None:
    for block in (1, 8, 1000):
        assert told(_PRETTY % broken, block=block)[:3] == [(2, {"a": 1}), (5, reason), (8, {"a": 3})]


def test_balanced_item_that_is_no_json_is_left_to_the_workers() -> None:
    assert items('[{"a": tru},\n{"b": 1}]') == [JsonItem(1, b'{"a": tru}'), JsonItem(2, b'{"b": 1}')]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"a": 1},\n {"a": 2}', [(1, {"a": 1}), (2, {"a": 2}), (2, "cut off: the list that begins in line 1 has no end")]),
        ('[{"a": 1}, {"a', [(1, {"a": 1}), (1, "cut off: the file ends inside this row; what follows it is not read")]),
        ('{"data": [{"a": 1}', [(1, {"a": 1}), (1, "cut off: the list that begins in line 1 has no end")]),
        ('[{"a": 1}}, {"a": 2}]', [(1, {"a": 1}), (1, "broken JSON: '}' where a value is due; what follows it is not read")]),
        ('[{"a": 1}]\n]', [(1, {"a": 1}), (2, "broken JSON: ']' stands outside of any row; what follows it is not read")]),
        ("\nhello", [(2, "broken JSON: 'h' stands outside of any row; what follows it is not read")]),
        ('{"data": [{"a": 1}], "x" 3}', [(1, {"a": 1}), (1, "broken JSON: a key without a value; what follows it is not read")]),
        ("[]", []),
        (" \n", []),
        ('[1, "a,]", null, [2]]', [(1, 1), (1, "a,]"), (1, None), (1, [2])]),
    ],
)
def test_array_that_ends_wrongly_keeps_the_rows_before(text: str, expected: list[Any]) -> None:
    for block in (1, 8, 1000):
        assert told(text, block=block) == expected


def test_item_too_long_is_told_and_never_held_whole() -> None:
    text = '[\n{"a": 1},\n{"a": "' + "x" * 500 + '"},\n{"a": 3}\n]'
    assert told(text, longest=100) == [(2, {"a": 1}), (3, "row too long: more than 100 bytes"), (4, {"a": 3})]


@given(_ROWS, _INDENT, st.data())
def test_damage_of_any_kind_ends_and_does_not_depend_on_the_blocks(
    rows: list[Any], indent: int | None, data: st.DataObject
) -> None:
    text = bytearray(json.dumps(data.draw(st.sampled_from([rows, {"data": rows}])), indent=indent).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(list(b'"{}[],:x\n\\ \0\xff')))
    assert items(bytes(text), 1) == items(bytes(text), 10**4)
