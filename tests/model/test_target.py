from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dflash.errors import RefusedInput
from dflash.model.target import FrozenTarget
from tests.model.tiny import FAMILIES, VOCABULARY, random_rows, save_target

LENGTHS = [40, 13, 1, 27, 13, 64]


def reference_states(folder: Path, rows, layer_ids) -> torch.Tensor:
    """hidden_states[i + 1] of the whole model, one conversation at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    parts = []
    for row in range(len(rows)):
        ids = torch.from_numpy(rows.tokens[rows.offsets[row] : rows.offsets[row + 1]].astype(np.int64))[None]
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        parts.append(torch.cat([states[layer_id + 1][0] for layer_id in layer_ids], dim=-1))
    return torch.cat(parts)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_full_models_states_after_each_captured_layer(family, packed, target_folder):
    layers = FAMILIES[family]["num_hidden_layers"]
    rows = random_rows(LENGTHS)
    for layer_ids in ([0, 2], [layers - 2, 1], [0, layers - 1], [layers - 1]):
        target = FrozenTarget.load(target_folder(family), layer_ids=layer_ids, feature_dtype="float32")
        expected = reference_states(target_folder(family), rows, layer_ids)
        features = target.features(rows, packed=packed)
        assert features.shape == expected.shape
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_state_before_the_layer_would_be_told_apart(family, target_folder):
    rows = random_rows(LENGTHS)
    features = FrozenTarget.load(target_folder(family), layer_ids=[2], feature_dtype="float32").features(rows, packed=False)
    for neighbour in (1, 3):
        other = reference_states(target_folder(family), rows, [neighbour])
        assert (features - other).abs().max() > 0.1


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_of_another_conversation_changes_a_state(family, packed, target_folder):
    target = FrozenTarget.load(target_folder(family), layer_ids=[0, 2], feature_dtype="float32")
    rows = random_rows([20, 21, 20, 5])
    before = target.features(rows, packed=packed)
    rows.tokens[rows.offsets[1] : rows.offsets[2]] = 3
    after = target.features(rows, packed=packed)
    changed = (before != after).any(-1).numpy()
    assert changed[rows.offsets[1] : rows.offsets[2]].any()
    assert not changed[: rows.offsets[1]].any()
    assert not changed[rows.offsets[2] :].any()


def test_rows_may_come_in_any_order(target_folder):
    target = FrozenTarget.load(target_folder("qwen3_5_text"), layer_ids=[3], feature_dtype="float32")
    rows = random_rows(LENGTHS)
    order = [4, 0, 5, 2, 1, 3]
    turned = target.features(rows.take(order), packed=True)
    straight = target.features(rows, packed=False)
    spans = torch.cat([torch.arange(rows.offsets[row], rows.offsets[row + 1]) for row in order])
    torch.testing.assert_close(turned, straight[spans], rtol=1e-4, atol=2e-5)


def test_layers_above_the_last_captured_one_and_the_head_are_not_held(target_folder):
    target = FrozenTarget.load(target_folder("qwen3_5_text"), layer_ids=[1, 4])
    assert len(target.decoder.layers) == 5
    assert isinstance(target.decoder.norm, torch.nn.Identity)
    assert not [name for name, _ in target.decoder.named_parameters() if "lm_head" in name]
    assert not any(parameter.requires_grad for parameter in target.decoder.parameters())


def test_features_come_in_the_dtype_asked_for_and_serve_a_backward_pass(target_folder):
    target = FrozenTarget.load(target_folder("qwen3"), layer_ids=[0])
    features = target.features(random_rows([5]), packed=False)
    assert features.dtype == torch.bfloat16
    weight = torch.ones(32, dtype=torch.bfloat16, requires_grad=True)
    (features @ weight).sum().backward()
    assert weight.grad is not None


def test_a_multimodal_wrapper_gives_the_states_of_its_language_model(tmp_path, target_folder):
    plain = target_folder("qwen3_5_text")
    wrapped = tmp_path / "wrapped"
    wrapped.mkdir()
    text = json.loads((plain / "config.json").read_text())
    wrapper = {"model_type": "qwen3_5", "text_config": text, "architectures": ["Qwen3_5ForConditionalGeneration"]}
    (wrapped / "config.json").write_text(json.dumps(wrapper))
    tensors = load_file(plain / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    renamed["model.visual.blocks.0.norm1.weight"] = torch.ones(3)
    save_file(renamed, wrapped / "model.safetensors", {"format": "pt"})
    rows = random_rows([30, 9])
    expected = FrozenTarget.load(plain, layer_ids=[0, 5], feature_dtype="float32").features(rows, packed=False)
    features = FrozenTarget.load(wrapped, layer_ids=[0, 5], feature_dtype="float32").features(rows, packed=False)
    assert torch.equal(features, expected)


@pytest.mark.parametrize("layer_ids", [[4], [0, 7], [-1], [], [1, 1]])
def test_layers_the_target_has_not_are_refused(layer_ids, target_folder):
    with pytest.raises(RefusedInput, match="target_layer_ids"):
        FrozenTarget.load(target_folder("qwen3"), layer_ids=layer_ids)


def test_a_token_outside_the_vocabulary_is_named(target_folder):
    rows = random_rows([4, 6])
    rows.tokens[7] = VOCABULARY
    target = FrozenTarget.load(target_folder("qwen3"), layer_ids=[0])
    with pytest.raises(RefusedInput, match=rf"sample {rows.sample_ids[1]}, token 3: id {VOCABULARY} .*tokenizer"):
        target.features(rows, packed=False)


def test_a_folder_without_all_its_weights_is_refused_and_not_filled_at_random(tmp_path, target_folder):
    broken = shutil.copytree(target_folder("qwen3"), tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(RefusedInput, match=r"layers\.1\.mlp\.up_proj"):
        FrozenTarget.load(broken, layer_ids=[2])
    FrozenTarget.load(broken, layer_ids=[0])  # needs none of it


def test_a_truncated_file_is_refused(tmp_path):
    folder = save_target(tmp_path / "t", "qwen3")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RefusedInput, match="cut short"):
        FrozenTarget.load(folder, layer_ids=[0])


def test_flash_attention_without_a_gpu_is_refused_with_the_way_out(target_folder):
    with pytest.raises(RefusedInput, match="set it to auto"):
        FrozenTarget.load(target_folder("qwen3"), layer_ids=[0], attention="flash_attention_2")
