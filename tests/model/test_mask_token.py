from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dflash.errors import RefusedInput
from dflash.model.facts import target_facts
from dflash.model.mask_token import mask_token_id


@pytest.fixture
def facts(tmp_path, target_folder):
    return replace(target_facts(target_folder("qwen3")), folder=tmp_path)


def write_tokenizer(folder, vocabulary, added):
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {"added_tokens": [{"id": token, "content": text} for text, token in added.items()], "model": {"vocab": vocabulary}}
        )
    )


@pytest.mark.parametrize(
    ("family", "vocabulary", "expected"),
    [("qwen3", 151_936, 151_669), ("qwen3_5_text", 248_320, 248_070), ("qwen3_5_moe_text", 248_320, 248_077)],
)
def test_released_families_use_the_mask_token_they_are_served_with(facts, family, vocabulary, expected):
    assert mask_token_id(replace(facts, family=family, vocab_size=vocabulary), None) == expected


def test_the_config_wins(facts):
    assert mask_token_id(replace(facts, vocab_size=151_936), 7) == 7


def test_the_tokenizers_own_mask_token_comes_before_an_unused_row(facts):
    write_tokenizer(facts.folder, {"a": 0, "b": 1}, {"<|im_end|>": 2, "<|mask|>": 3})
    assert mask_token_id(facts, None) == 3


def test_without_one_the_first_row_no_token_uses(facts):
    write_tokenizer(facts.folder, {"a": 0, "b": 1}, {"<|im_end|>": 60})
    assert mask_token_id(facts, None) == 61


def test_a_full_table_without_a_mask_token_is_refused(facts):
    write_tokenizer(facts.folder, {str(token): token for token in range(97)}, {})
    with pytest.raises(RefusedInput, match=r"set drafter\.mask_token_id"):
        mask_token_id(facts, None)


def test_a_mask_token_outside_the_vocabulary_is_refused(facts):
    with pytest.raises(RefusedInput, match=r"0 \.\. 96"):
        mask_token_id(facts, 97)


@pytest.mark.parametrize(("token", "name"), [(5, "a"), (60, "im_end"), (61, "im_start")])
def test_a_token_that_text_the_template_or_the_tokenizer_uses_is_refused(facts, token, name):
    write_tokenizer(facts.folder, {"a": 5, "b": 6}, {"<|im_end|>": 60, "<|im_start|>": 61, "<|unused|>": 62, "<|mask|>": 63})
    (facts.folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>"}, "mask_token": "<|unused|>"})
    )
    (facts.folder / "chat_template.jinja").write_text("{{ '<|im_start|>' + messages[0].content }}")
    with pytest.raises(RefusedInput, match=rf"drafter\.mask_token_id={token} is .*{name}.*for text"):
        mask_token_id(facts, token)
    assert [mask_token_id(facts, free) for free in (62, 63, 70)] == [62, 63, 70]


def test_no_tokenizer_is_refused_with_the_remedy(facts):
    with pytest.raises(RefusedInput, match=r"set drafter\.mask_token_id"):
        mask_token_id(facts, None)
