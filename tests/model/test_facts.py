from __future__ import annotations

import json

import pytest

from dflash.errors import RefusedInput
from dflash.model.facts import target_facts
from dflash.model.rope import Rope

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "rope_theta": 5e5,
}


def folder_with(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_sizes_of_a_saved_target(target_folder):
    facts = target_facts(target_folder("qwen3"))
    assert (facts.family, facts.hidden_size, facts.layers, facts.heads, facts.kv_heads, facts.head_dim) == (
        "qwen3",
        32,
        4,
        4,
        2,
        16,
    )
    assert (facts.intermediate_size, facts.vocab_size, facts.max_positions) == (48, 97, 512)
    assert not facts.tie_word_embeddings


def test_rotary_base_of_transformers_5_and_of_older_files(tmp_path, target_folder):
    assert target_facts(target_folder("qwen3_5_text")).rope == Rope(1e7)
    assert target_facts(folder_with(tmp_path, LLAMA)).rope == Rope(5e5)


def test_what_of_a_rope_the_drafter_does_not_follow_is_said(target_folder):
    assert target_facts(target_folder("qwen3_5_text")).rope_note == "the target rotates 0.5 of a head, the drafter all of it"
    assert target_facts(target_folder("qwen3")).rope_note == ""


@pytest.mark.parametrize(
    ("config", "cap"),
    [
        ({}, None),
        ({"final_logit_softcapping": None}, None),
        ({"final_logit_softcapping": 20.0}, 20.0),
        ({"model_type": "gemma2"}, 30.0),  # the family's own when the file is silent
        ({"model_type": "gemma2", "final_logit_softcapping": None}, None),
    ],
)
def test_the_cap_of_the_logits(config, cap, tmp_path):
    assert target_facts(folder_with(tmp_path, {**LLAMA, **config})).final_logit_softcap == cap


def test_gemmas_scale_their_embeddings_by_the_root_of_the_width(tmp_path):
    assert target_facts(folder_with(tmp_path, {**LLAMA, "model_type": "gemma3_text"})).embedding_scale == 8.0
    assert target_facts(folder_with(tmp_path, LLAMA)).embedding_scale == 1.0


def test_the_short_config_of_a_published_gemma3_wrapper_is_filled_in(tmp_path):
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    text["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}
    facts = target_facts(folder_with(tmp_path, {"model_type": "gemma3", "text_config": text}))
    assert (facts.heads, facts.kv_heads, facts.head_dim, facts.vocab_size) == (8, 4, 256, 262_208)
    assert facts.rope == Rope(1e6, "linear", 8.0)
    assert facts.tie_word_embeddings


def test_fields_an_old_config_leaves_out_follow_from_the_others(tmp_path):
    facts = target_facts(folder_with(tmp_path, LLAMA))
    assert (facts.kv_heads, facts.head_dim, facts.tie_word_embeddings) == (8, 8, False)


def test_a_wrappers_language_model_is_the_one_meant(tmp_path):
    wrapper = {
        "model_type": "qwen3_5",
        "text_config": {**LLAMA, "model_type": "qwen3_5_text"},
        "hidden_size": 1,
        "tie_word_embeddings": True,
    }
    facts = target_facts(folder_with(tmp_path, wrapper))
    assert (facts.family, facts.hidden_size, facts.tie_word_embeddings) == ("qwen3_5_text", 64, True)


@pytest.mark.parametrize("value", [0, -3, "64", 1.5, True])
def test_a_size_that_is_no_count_is_refused_by_name(tmp_path, value):
    with pytest.raises(RefusedInput, match=r"config\.json: hidden_size is"):
        target_facts(folder_with(tmp_path, {**LLAMA, "hidden_size": value}))


def test_a_missing_size_is_refused_by_name(tmp_path):
    with pytest.raises(RefusedInput, match=r"vocab_size is missing"):
        target_facts(folder_with(tmp_path, {key: value for key, value in LLAMA.items() if key != "vocab_size"}))


def test_a_config_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RefusedInput, match="not JSON"):
        target_facts(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RefusedInput, match="no such folder"):
        target_facts(tmp_path / "nowhere")
