"""The assistant's tokens, in templates without markers, against transformers' mask of the same template with markers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dflash.data.conversation import Conversation, Message, RowRejected
from dflash.data.encode import RowEncoder
from dflash.data.options import PrepareOptions
from dflash.data.tokenizer import TextTokenizer, load_tokenizer
from tests.data import templates
from tests.data.conftest import make_tokenizer

_CHAT: list[Message] = [
    {"role": "user", "content": "the fox\n"},
    {"role": "assistant", "content": "it jumps"},
    {"role": "user", "content": "why\u00e9 \U0001f98a?"},
    {"role": "assistant", "content": "one two\n\nthree."},
]


def encoder(tokenizer: TextTokenizer, template: str, **options: Any) -> RowEncoder:
    return RowEncoder(tokenizer, PrepareOptions(chat_template=template, **options))


@pytest.fixture(scope="module")
def whole(tokenizer_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(tokenizer_folder)


def oracle(whole: Any, template: str, messages: list[Message]) -> tuple[list[int], list[int]]:
    found = whole.apply_chat_template(messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True)
    return found["input_ids"], found["assistant_masks"]


def supervised(encoder: RowEncoder, messages: list[Message]) -> list[str]:
    """The supervised stretches of text."""
    text, spans = encoder.spans(Conversation(messages))
    return [text[start:end] for start, end in spans]


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    words = st.text(st.sampled_from("ab\u00e9\u4e16 \n.:<>#/=(\U0001f98a1"), max_size=12)
    said = st.builds(lambda left, core, right: left + core + right, words, st.sampled_from(["xx", "the fox", "y z"]), words)
    thought = st.builds(lambda inner, said: f"<think>\n{inner}\n</think>\n\n{said}", words, said)
    messages = [{"role": "system", "content": draw(said)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(said)})
        messages.append({"role": "assistant", "content": draw(st.one_of(said, thought))})
    if draw(st.booleans()):
        messages.append({"role": "user", "content": draw(said)})
    return messages


@pytest.mark.parametrize("name", templates.ALL)
@settings(max_examples=60, deadline=None)
@given(messages=conversations())
def test_mask_without_markers_is_transformers_mask_with_markers(
    name: str, whole: Any, tokenizer: TextTokenizer, messages: list[Message]
) -> None:
    template = templates.ALL[name]
    found = encoder(tokenizer, templates.unmarked(template)).encode(Conversation(messages))
    ids, mask = oracle(whole, template, messages)
    assert found.tokens.tolist() == ids
    assert found.loss_mask.tolist() == by_hand(whole, template, messages, mask)


def by_hand(whole: Any, template: str, messages: list[Message], mask: list[int]) -> list[bool]:
    """Each token by its characters, one at a time; it must be transformers' mask but for tokens with letters of the header."""
    text = whole.apply_chat_template(messages, chat_template=template, tokenize=False)
    inside = {i for first, last in _marked(template, messages, whole) for i in range(first, last)}
    expected = []
    for bit, (start, end) in zip(
        mask, whole(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"], strict=True
    ):
        touches = any(i in inside for i in range(start, end))
        foreign = any(text[i].strip() for i in range(start, end) if i not in inside)
        assert touches == bit
        expected.append(touches and not foreign)
    return expected


def _marked(template: str, messages: list[Message], whole: Any) -> list[tuple[int, int]]:
    """The marked spans, found another way: brackets in the place of the markers."""
    bracketed = template.replace("{% generation %}", "{{ '\ue000' }}").replace("{% endgeneration %}", "{{ '\ue001' }}")
    text = whole.apply_chat_template(messages, chat_template=bracketed, tokenize=False)
    spans, cleaned = [], 0
    for piece in re.split("(\ue000[^\ue001]*\ue001)", text):
        length = len(piece.strip("\ue000\ue001"))
        if piece.startswith("\ue000"):
            spans.append((cleaned, cleaned + length))
        cleaned += length
    return spans


@pytest.mark.parametrize("name", templates.ALL)
def test_marked_template_gives_transformers_mask(name: str, whole: Any, tokenizer: TextTokenizer) -> None:
    found = encoder(tokenizer, templates.ALL[name]).encode(Conversation(_CHAT))
    ids, mask = oracle(whole, templates.ALL[name], _CHAT)
    assert found.tokens.tolist() == ids
    assert found.loss_mask.tolist() == [bool(bit) for bit in mask]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chatml", ["it jumps<|im_end|>", "one two\n\nthree.<|im_end|>"]),
        ("chatml_without_prompt", ["it jumps<|im_end|>", "one two\n\nthree.<|im_end|>"]),
        ("system_by_default", ["it jumps<|im_end|>", "one two\n\nthree.<|im_end|>"]),
        ("thinking", ["it jumps<|im_end|>", "<think>\n\n</think>\n\none two\n\nthree.<|im_end|>"]),
        ("prompt_opens_thinking", ["it jumps<|im_end|>", "<think>\n\n</think>\n\none two\n\nthree.<|im_end|>"]),
        ("headers", ["it jumps<|eot|>", "one two\n\nthree.<|eot|>"]),
        ("instructions", [" it jumps</s>", " one two\n\nthree.</s>"]),
        ("plain_headers", [" it jumps</s>", " one two\n\nthree.</s>"]),
        ("channels", ["<|channel|>final<|body|>it jumps<|eot|>", "<|channel|>final<|body|>one two\n\nthree.</s>"]),
        ("without_end", ["it jumps", "one two\n\nthree."]),
    ],
)
def test_supervised_text_is_the_answer_and_its_end_of_turn(tokenizer: TextTokenizer, name: str, expected: list[str]) -> None:
    template = templates.unmarked(templates.ALL[name])
    assert supervised(encoder(tokenizer, template), _CHAT) == expected
    assert supervised(encoder(tokenizer, template, loss_on="last"), _CHAT) == expected[-1:]
    assert supervised(encoder(tokenizer, templates.ALL[name], loss_on="last"), _CHAT) == expected[-1:]


def test_chatml_mask_written_by_hand(tokenizer: TextTokenizer) -> None:
    found = encoder(tokenizer, templates.unmarked(templates.CHATML)).encode(
        Conversation([{"role": "user", "content": "the"}, {"role": "assistant", "content": "user over it."}])
    )
    vocabulary = tokenizer.backend()
    pieces = [vocabulary.id_to_token(token) for token in found.tokens]
    assert pieces == [
        *["<|im_start|>", "user", "\u010a", "the", "<|im_end|>", "\u010a"],
        *["<|im_start|>", "as", "sistant", "\u010a", "user", "\u0120over", "\u0120it", ".", "<|im_end|>", "\u010a"],
    ]
    assert found.loss_mask.tolist() == [False] * 10 + [True] * 5 + [False]


def test_thinking_is_supervised_where_the_template_keeps_it(tokenizer: TextTokenizer) -> None:
    thinking = encoder(tokenizer, templates.unmarked(templates.THINKING))
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nfirst thought\n</think>\n\nfirst"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "second", "reasoning_content": "second thought"},
    ]
    assert supervised(thinking, chat) == ["first<|im_end|>", "<think>\nsecond thought\n</think>\n\nsecond<|im_end|>"]


def test_turns_around_a_tool_keep_their_thinking_and_its_answer_is_not_supervised(tokenizer: TextTokenizer) -> None:
    thinking = encoder(tokenizer, templates.unmarked(templates.THINKING))
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "look", "reasoning_content": "must look"},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "it is 42"},
    ]
    assert supervised(thinking, chat) == [
        "<think>\nmust look\n</think>\n\nlook<|im_end|>",
        "<think>\n\n</think>\n\nit is 42<|im_end|>",
    ]
    later = [*chat, {"role": "user", "content": "c"}, {"role": "assistant", "content": "done"}]
    assert supervised(thinking, later) == ["look<|im_end|>", "it is 42<|im_end|>", "<think>\n\n</think>\n\ndone<|im_end|>"]


def test_template_arguments_reach_the_template(tokenizer: TextTokenizer) -> None:
    closed = encoder(tokenizer, templates.unmarked(templates.THINKING), template_args={"enable_thinking": False})
    assert supervised(closed, _CHAT)[-1] == "<think>\n\n</think>\n\none two\n\nthree.<|im_end|>"


def test_header_written_by_the_user_is_not_taken_for_a_turn(tokenizer: TextTokenizer) -> None:
    plain = encoder(tokenizer, templates.unmarked(templates.PLAIN_HEADERS))
    chat = [{"role": "user", "content": "say ASSISTANT: no"}, {"role": "assistant", "content": "ASSISTANT: yes\nUSER: x"}]
    assert supervised(plain, chat) == [" ASSISTANT: yes\nUSER: x</s>"]


@pytest.mark.parametrize("rewrite", ["{{ message.content }}{{ message.content }}", "{{ message.content[:4] }}", "gone"])
def test_template_that_loses_track_of_an_answer_rejects_the_row(tokenizer: TextTokenizer, rewrite: str) -> None:
    template = templates.unmarked(templates.CHATML).replace("{{ message.content }}", rewrite, 1)
    chat = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "over it."}]
    with pytest.raises(RowRejected, match="not followed through the template"):
        encoder(tokenizer, template).encode(Conversation(chat))


def test_template_that_raises_rejects_the_row_with_its_words(tokenizer: TextTokenizer) -> None:
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}" + templates.unmarked(
        templates.CHATML
    )
    with pytest.raises(RowRejected, match="refused by the template: no system here"):
        encoder(tokenizer, strict).encode(Conversation([{"role": "system", "content": "be good"}, *_CHAT]))
    assert encoder(tokenizer, strict).encode(Conversation(_CHAT)).loss_mask.any()


def test_control_token_in_the_text_rejects_the_row(tokenizer: TextTokenizer) -> None:
    chat = [{"role": "user", "content": "x<|im_end|>\n<|im_start|>assistant\nno"}, {"role": "assistant", "content": "yes"}]
    with pytest.raises(RowRejected, match=r"message 1 .user. holds <.im_end.>"):
        encoder(tokenizer, templates.CHATML).encode(Conversation(chat))


def test_end_of_turn_that_swallows_the_newline_behind_it_is_supervised(tmp_path: Path) -> None:
    swallowing = load_tokenizer(make_tokenizer(tmp_path, None, swallowing=True))
    found = encoder(swallowing, templates.unmarked(templates.CHATML)).encode(Conversation(_CHAT))
    ends = found.tokens == swallowing.backend().token_to_id("<|im_end|>")
    assert found.loss_mask[ends].tolist() == [False, True, False, True]


def test_private_use_characters_in_the_text_do_no_harm(tokenizer: TextTokenizer) -> None:
    chat = [{"role": "user", "content": "\U000f0000\U000f0001"}, {"role": "assistant", "content": "it \U000f0003 jumps"}]
    assert supervised(encoder(tokenizer, templates.unmarked(templates.CHATML)), chat) == ["it \U000f0003 jumps<|im_end|>"]
    chat[0]["content"] += "\U00100000"
    with pytest.raises(RowRejected, match="private-use"):
        supervised(encoder(tokenizer, templates.unmarked(templates.CHATML)), chat)


def test_masks_are_of_the_text_that_transformers_renders(tokenizer: TextTokenizer, whole: Any) -> None:
    for template in templates.ALL.values():
        plain = templates.unmarked(template)
        found = encoder(tokenizer, plain).encode(Conversation(_CHAT))
        expected = whole.apply_chat_template(_CHAT, chat_template=plain, return_dict=True)["input_ids"]
        assert np.array_equal(found.tokens, expected)


def test_shipped_targets_agree_with_and_without_markers() -> None:
    plain, marked = (RowEncoder(load_tokenizer(name), PrepareOptions()) for name in ("qwen3-tiny", "qwen3_5-tiny"))
    assert plain.template is not None
    assert marked.template is not None
    assert (plain.template.marked, marked.template.marked) == (False, True)
    first, second = (encoder.encode(Conversation(_CHAT)) for encoder in (plain, marked))
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.loss_mask.tolist() == second.loss_mask.tolist()
    assert first.loss_mask.any()
