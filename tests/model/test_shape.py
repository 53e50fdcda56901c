from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.config import DrafterConfig
from dflash.errors import RefusedInput
from dflash.model.facts import target_facts
from dflash.model.rope import Rope
from dflash.model.shape import DrafterShape, spread_layer_ids

QWEN36 = {
    "family": "qwen3_5_text",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "layers": 64,
    "heads": 24,
    "kv_heads": 4,
    "head_dim": 256,
    "vocab_size": 248_320,
    "rope": Rope(1e7),
    "max_positions": 262_144,
}


@pytest.fixture
def facts(target_folder):
    return target_facts(target_folder("qwen3"))


def resolve(facts, **settings):
    return DrafterShape.resolve(DrafterConfig(**{"layers": 2, "mask_token_id": 96, "target_layer_ids": [0, 2], **settings}), facts)


def test_published_layer_ids():
    assert spread_layer_ids(36, 5) == [1, 9, 17, 25, 33]
    assert spread_layer_ids(64, 5) == [1, 16, 31, 46, 61]
    assert spread_layer_ids(36, 1) == [18]


@settings(deadline=None)  # a busy machine is no fault
@given(layers=st.integers(2, 130), count=st.integers(1, 12))
def test_layer_ids_ascend_and_exist_or_are_refused(layers, count):
    if count > 1 and count >= layers:
        with pytest.raises(RefusedInput, match="feature_layers"):
            spread_layer_ids(layers, count)
    else:
        ids = spread_layer_ids(layers, count)
        assert len(ids) == count
        assert ids == sorted(set(ids))
        assert 0 <= ids[0] <= ids[-1] < layers


def test_the_drafter_in_use_for_qwen36(facts):
    settings = DrafterConfig(
        heads=32, kv_heads=8, head_dim=128, sliding_window=2048, layer_types=["sliding_attention"] * 4 + ["full_attention"]
    )
    shape = DrafterShape.resolve(settings, replace(facts, **QWEN36))
    assert (shape.hidden_size, shape.intermediate_size, shape.heads, shape.kv_heads, shape.head_dim) == (5120, 17408, 32, 8, 128)
    assert (shape.mask_token_id, shape.block_size, shape.gamma) == (248_070, 16, 7.0)
    assert shape.target_layer_ids == (1, 16, 31, 46, 61)
    assert [shape.window(layer) for layer in range(5)] == [2048] * 4 + [None]
    assert shape.feature_size == 25_600


def test_sizes_left_empty_are_the_targets(facts):
    shape = resolve(facts)
    assert (shape.hidden_size, shape.intermediate_size, shape.heads, shape.kv_heads, shape.head_dim) == (32, 48, 4, 2, 16)


@pytest.mark.parametrize(("block_size", "gamma"), [(16, 7), (10, 5), (8, 4), (5, 2), (12, 5.5)])
def test_decay_by_block_size(facts, block_size, gamma):
    assert resolve(facts, block_size=block_size).gamma == gamma
    assert resolve(facts, block_size=block_size, gamma=3.5).gamma == 3.5


def test_config_json_carries_what_old_and_new_loaders_look_for(facts):
    shape = resolve(facts, layer_types=["sliding_attention", "full_attention"], sliding_window=64, is_causal=True)
    config = json.loads(json.dumps(shape.to_config()))
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["model_type"] == "qwen3"
    assert config["auto_map"] == {"AutoModel": "dflash.DFlashDraftModel"}
    assert config["block_size"] == config["dflash_config"]["block_size"] == 16
    assert config["dflash_config"]["mask_token_id"] == 96
    assert config["dflash_config"]["target_layer_ids"] == [0, 2]
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["is_causal"] is True
    assert config["use_sliding_window"] is True
    assert (config["num_target_layers"], config["dtype"], config["tie_word_embeddings"]) == (4, "bfloat16", False)


@pytest.mark.parametrize("sliding", [False, True])
def test_config_json_round_trip(facts, tmp_path, sliding):
    wishes = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20} if sliding else {}
    shape = resolve(facts, **wishes)
    shape.write(tmp_path / "config.json")
    assert DrafterShape.from_config(tmp_path / "config.json") == shape


def test_an_old_checkpoints_config_is_read(facts, tmp_path):
    config = resolve(facts, block_size=8).to_config()
    for key in ("block_size", "gamma", "is_causal"):
        del config["dflash_config"][key]
    for key in ("is_causal", "rope_parameters", "layer_types"):
        del config[key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert DrafterShape.from_config(tmp_path / "config.json") == resolve(facts, block_size=8)


def test_another_models_config_is_refused(target_folder):
    with pytest.raises(RefusedInput, match=r"is missing; is this the config\.json of a DFlash drafter"):
        DrafterShape.from_config(target_folder("qwen3") / "config.json")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_layer_ids": [0, 4]}, r"layers 0 \.\. 3, \[4\] are not among them"),
        ({"target_layer_ids": [1, 1]}, "each captured layer once"),
        ({"heads": 4, "kv_heads": 3}, "heads=4 is no multiple of drafter.kv_heads=3"),
        ({"head_dim": 15}, "head_dim=15"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, "shorter than a block of 16"),
        ({"target_layer_ids": None, "feature_layers": 4}, "feature_layers to 3 or less"),
    ],
)
def test_wishes_that_do_not_fit_are_refused(facts, settings, message):
    with pytest.raises(RefusedInput, match=message):
        resolve(facts, **settings)
