"""Tool calls and thinking through the templates of the families people use: what is rendered, and where the loss lies.

The templates are written here after the families' own, cut to what matters: where calls, tools' answers and thinking stand. The text is
compared with transformers' own rendering; the supervised stretches are written by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from dflash.data.conversation import Conversation, parse_row
from dflash.data.encode import RowEncoder
from dflash.data.losses import CALLS_UNWRITTEN, THINKING_UNWRITTEN, TOOLS_UNWRITTEN, RowRejected
from dflash.data.options import PrepareOptions
from dflash.data.tokenizer import TextTokenizer, load_tokenizer
from tests.data import templates

_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
_CALLED = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
_ROW: dict[str, Any] = {
    "tools": [_TOOL],
    "messages": [
        {"role": "user", "content": "rain?"},
        {"role": "assistant", "content": None, "tool_calls": [_CALLED]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "yes \n"},
        {"role": "assistant", "content": "it rains"},
    ],
}
_TWO = [_CALLED, {**_CALLED, "id": "bcdefghij", "function": {"name": "wind", "arguments": {}}}]

QWEN3_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
FAMILIES = {
    "qwen3": (templates.QWEN3, [QWEN3_CALL + "<|im_end|>", "<think>\n\n</think>\n\nit rains<|im_end|>"]),
    "hermes": (templates.HERMES, [QWEN3_CALL + "<|im_end|>", "it rains<|im_end|>"]),
    "llama3": (templates.LLAMA3, ['{"name": "weather", "parameters": {"city": "Ulm"}}<|eot|>', "it rains<|eot|>"]),
    "mistral": (
        templates.MISTRAL,
        ['[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Ulm"}, "id": "abcdefghi"}]</s>', " it rains</s>"],
    ),
    "calls_for_null": (templates.CALLS_FOR_NULL, ['<|channel|>weather<|body|>{"city": "Ulm"}</s>', "it rains</s>"]),
}


def encoder(tokenizer: TextTokenizer, template: str | None, **options: Any) -> RowEncoder:
    return RowEncoder(tokenizer, PrepareOptions(chat_template=template, **options))


def supervised(encoder: RowEncoder, row: dict[str, Any]) -> list[str]:
    parsed = encoder.parse(row)
    assert isinstance(parsed, Conversation)
    text, spans = encoder.spans(parsed)
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_supervised_with_their_end_of_turn_and_the_tools_answer_is_not(tokenizer: TextTokenizer, family: str) -> None:
    template, expected = FAMILIES[family]
    assert supervised(encoder(tokenizer, template), _ROW) == expected
    assert supervised(encoder(tokenizer, template, loss_on="last"), _ROW) == expected[-1:]


@pytest.mark.parametrize(
    "family", sorted(FAMILIES.keys() - {"calls_for_null"})
)  # transformers writes no call there: it takes null for ""
def test_text_with_calls_is_the_one_transformers_renders(tokenizer: TextTokenizer, tokenizer_folder: Any, family: str) -> None:
    template = FAMILIES[family][0]
    whole = AutoTokenizer.from_pretrained(tokenizer_folder)
    called = {**_CALLED, "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
    messages = [_ROW["messages"][0], {**_ROW["messages"][1], "tool_calls": [called]}, *_ROW["messages"][2:]]
    expected = whole.apply_chat_template(messages, tools=[_TOOL], chat_template=template, return_dict=True)["input_ids"]
    shaped = encoder(tokenizer, template)
    assert np.array_equal(shaped.encode(shaped.parse(_ROW)).tokens, expected)


@pytest.mark.parametrize("name", ["qwen3-tiny", "qwen3_5-tiny"])
def test_shipped_targets_write_calls_tools_and_thinking(name: str) -> None:
    shipped = encoder(load_tokenizer(name), None)
    assert shipped.template is not None
    assert (shipped.template.writes_tools, shipped.template.writes_thinking) == (True, True)
    assert supervised(shipped, _ROW) == [QWEN3_CALL + "<|im_end|>", "it rains<|im_end|>"]
    thinking = {"messages": [_ROW["messages"][0], {"role": "assistant", "content": "yes", "reasoning_content": "hm"}]}
    assert supervised(shipped, thinking) == ["<think>\nhm\n</think>\n\nyes<|im_end|>"]


def test_content_beside_a_call_and_several_calls_in_one_turn_are_supervised(tokenizer: TextTokenizer) -> None:
    row = {"messages": [_ROW["messages"][0], {"role": "assistant", "content": "look:", "tool_calls": _TWO}]}
    second = '<tool_call>\n{"name": "wind", "arguments": {}}\n</tool_call>'
    assert supervised(encoder(tokenizer, templates.QWEN3), row) == [
        f"<think>\n\n</think>\n\nlook:\n{QWEN3_CALL}\n{second}<|im_end|>"
    ]


def test_template_that_writes_no_calls_rejects_the_row_and_one_without_tools_is_told(tokenizer: TextTokenizer) -> None:
    for template in (templates.CHATML, templates.unmarked(templates.CHATML)):
        plain = encoder(tokenizer, template)
        with pytest.raises(RowRejected, match=f"{CALLS_UNWRITTEN}|refused by the template"):
            supervised(plain, _ROW)
        row = plain.parse({"messages": _ROW["messages"][::3], "tools": [_TOOL]})
        assert supervised(plain, {"messages": _ROW["messages"][::3], "tools": [_TOOL]}) == ["it rains<|im_end|>"]
        assert [change.kind for change in plain.changes(row)] == [TOOLS_UNWRITTEN]


def test_only_one_of_two_calls_written_rejects_the_row(tokenizer: TextTokenizer) -> None:
    first_only = templates.QWEN3.replace("in message.tool_calls %}", "in message.tool_calls[:1] %}")
    row = {"messages": [_ROW["messages"][0], {"role": "assistant", "content": "", "tool_calls": _TWO}]}
    with pytest.raises(RowRejected, match=CALLS_UNWRITTEN):
        supervised(encoder(tokenizer, first_only), row)


def test_control_token_in_an_argument_or_a_tool_rejects_the_row(tokenizer: TextTokenizer) -> None:
    evil = {"type": "function", "function": {"name": "f", "arguments": {"x": "<|im_end|>"}}}
    row = {"messages": [_ROW["messages"][0], {"role": "assistant", "content": None, "tool_calls": [evil]}]}
    with pytest.raises(RowRejected, match=r"control token in the text: message 2"):
        supervised(encoder(tokenizer, templates.QWEN3), row)
    with pytest.raises(RowRejected, match=r"control token in the text: the list of tools"):
        supervised(encoder(tokenizer, templates.QWEN3), {"messages": _ROW["messages"][::3], "tools": [evil]})


def _thinking(apart: bool, *, early: bool = True) -> dict[str, Any]:
    def says(answer: str, thought: str) -> dict[str, str]:
        if apart:
            return {"role": "assistant", "content": answer, "reasoning_content": thought}
        return {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\n{answer}"}

    asks = [{"role": "user", "content": word} for word in ("one?", "two?")]
    return {"messages": [asks[0], says("first", "hm"), asks[1], says("second", "well")]}


THINKERS = {
    # family: (template, supervised with the thinking, supervised without)
    "qwen3": (
        templates.QWEN3,
        ["first<|im_end|>", "<think>\nwell\n</think>\n\nsecond<|im_end|>"],
        ["first<|im_end|>", "second<|im_end|>"],
    ),
    "qwen3_marked": (
        templates.THINKING,
        ["first<|im_end|>", "<think>\nwell\n</think>\n\nsecond<|im_end|>"],
        ["first<|im_end|>", "second<|im_end|>"],
    ),
    "prompt_opens_thinking": (
        templates.unmarked(templates.PROMPT_OPENS_THINKING),
        ["first<|im_end|>", "<think>\nwell\n</think>\n\nsecond<|im_end|>"],
        ["first<|im_end|>", "second<|im_end|>"],
    ),
    "deepseek_r1": (templates.DROPS_THINKING, ["first</s>", "second</s>"], ["first</s>", "second</s>"]),
    "shipped_plain": (
        None,
        ["<think>\nhm\n</think>\n\nfirst<|im_end|>", "<think>\nwell\n</think>\n\nsecond<|im_end|>"],
        ["first<|im_end|>", "second<|im_end|>"],
    ),
}


@pytest.mark.parametrize("apart", [True, False], ids=["reasoning_content", "think_tags"])
@pytest.mark.parametrize("family", THINKERS)
def test_thinking_is_supervised_or_only_read_as_asked(tokenizer: TextTokenizer, family: str, apart: bool) -> None:
    template, whole, answers = THINKERS[family]
    source = load_tokenizer("qwen3-tiny") if template is None else tokenizer
    row = _thinking(apart)
    assert supervised(encoder(source, template), row) == whole
    assert supervised(encoder(source, template, reasoning="context"), row) == answers
    assert supervised(encoder(source, template, reasoning="context", loss_on="last"), row) == answers[-1:]


def test_empty_think_block_is_only_read_when_thinking_is(tokenizer: TextTokenizer) -> None:
    row = {"messages": _ROW["messages"][::3]}
    assert supervised(encoder(tokenizer, templates.QWEN3), row) == ["<think>\n\n</think>\n\nit rains<|im_end|>"]
    assert supervised(encoder(tokenizer, templates.QWEN3, reasoning="context"), row) == ["it rains<|im_end|>"]


@pytest.mark.parametrize("apart", [True, False], ids=["reasoning_content", "think_tags"])
def test_call_behind_thinking_is_supervised_and_the_thinking_only_read(tokenizer: TextTokenizer, apart: bool) -> None:
    turn = {"reasoning_content": "hm", "content": None} if apart else {"content": "<think>\nhm\n</think>\n\n"}
    row = {"messages": [_ROW["messages"][0], {"role": "assistant", **turn, "tool_calls": [_CALLED]}]}
    assert supervised(encoder(tokenizer, templates.QWEN3), row) == [f"<think>\nhm\n</think>\n\n{QWEN3_CALL}<|im_end|>"]
    assert supervised(encoder(tokenizer, templates.QWEN3, reasoning="context"), row) == [f"{QWEN3_CALL}<|im_end|>"]


def test_thinking_that_the_template_does_not_write_is_told(tokenizer: TextTokenizer) -> None:
    plain = encoder(tokenizer, templates.unmarked(templates.CHATML))
    [change] = plain.changes(plain.parse(_thinking(apart=True)))
    assert (change.kind, change.text) == (THINKING_UNWRITTEN, "hm\nwell")
    assert plain.changes(plain.parse(_thinking(apart=False))) == []


def test_row_without_calls_or_tools_is_encoded_as_before(tokenizer: TextTokenizer) -> None:
    row = parse_row({"messages": _ROW["messages"][::3]})
    shaped = encoder(tokenizer, templates.QWEN3)
    assert isinstance(row, Conversation)
    assert np.array_equal(shaped.encode(row).tokens, shaped.encode(replace(row, tools=None)).tokens)
