"""The table of families says what the classes of transformers do."""

from __future__ import annotations

import pytest
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from dflash.errors import RefusedInput
from dflash.model.families import attention_note, choose_attention, family_of, listed_families

WRAPPED = ("gemma3", "gemma4", "qwen3_5", "qwen3_5_moe")


@pytest.mark.parametrize("name", listed_families())
def test_attention_and_defaults_are_those_of_transformers(name):
    config = AutoConfig.for_model(name + "_text" * (name in WRAPPED))
    family = family_of(name)
    assert ("sdpa" not in family.lacks) == MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_sdpa
    defaults = dict(family.defaults)
    theta = defaults.pop("rope_theta", None)
    assert {key: getattr(config, key) for key in defaults} == defaults
    if theta is not None:
        assert config.rope_parameters["full_attention"]["rope_theta"] == theta


def test_auto_takes_what_the_family_has_and_says_why():
    assert choose_attention("auto", "qwen3", on_gpu=False) == "sdpa"
    assert choose_attention("auto", "gpt_oss", on_gpu=False) == "eager"
    assert choose_attention("auto", "gemma2", on_gpu=False) == "eager"
    assert attention_note("gpt_oss") == "gpt_oss has no sdpa: its attention has sinks"
    assert attention_note("qwen3") == ""


def test_an_attention_the_family_lacks_is_refused_with_the_way_out():
    with pytest.raises(
        RefusedInput, match=r"sdpa: gemma2 doesn't have it \(it caps the attention scores\); set it to auto or eager"
    ):
        choose_attention("sdpa", "gemma2", on_gpu=False)
