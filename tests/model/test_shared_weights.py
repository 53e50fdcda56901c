from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dflash.errors import RefusedInput
from dflash.model.shared_weights import load_shared_weights
from tests.model.tiny import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_embedding_and_head_are_the_models_own(family, target_folder):
    model = AutoModelForCausalLM.from_pretrained(target_folder(family))
    shared = load_shared_weights(target_folder(family))
    assert torch.equal(shared.embedding, model.get_input_embeddings().weight)
    assert torch.equal(shared.head, model.get_output_embeddings().weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_final_norm_is_the_factor_the_model_applies(family, target_folder):
    norm = AutoModelForCausalLM.from_pretrained(target_folder(family), dtype=torch.float32).get_decoder().norm
    states = torch.randn(5, 32)
    plain = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(plain * load_shared_weights(target_folder(family)).final_norm, norm(states).detach())


def test_a_tied_head_is_the_embedding_itself_and_takes_no_room(target_folder):
    shared = load_shared_weights(target_folder("llama"))
    assert shared.head is shared.embedding


def test_shards_with_an_index_are_read(tmp_path, target_folder):
    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(target_folder("qwen3")).save_pretrained(sharded, max_shard_size="20KB")
    assert (sharded / "model.safetensors.index.json").is_file()
    assert torch.equal(load_shared_weights(sharded).head, load_shared_weights(target_folder("qwen3")).head)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_wrappers_names_are_known(prefix, tmp_path, target_folder):
    folder = shutil.copytree(target_folder("qwen3"), tmp_path / "wrapped")
    tensors = {name.replace("model.", prefix, 1): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(load_shared_weights(folder).embedding, load_shared_weights(target_folder("qwen3")).embedding)


def changed(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_missing_head_is_refused_with_both_ways_out(tmp_path, target_folder):
    folder = changed(shutil.copytree(target_folder("qwen3"), tmp_path / "t"), lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(RefusedInput, match=r"no lm_head\.weight.*tie_word_embeddings to true.*fetch the missing file"):
        load_shared_weights(folder)


def test_a_table_of_another_vocabulary_is_refused(tmp_path, target_folder):
    folder = shutil.copytree(target_folder("qwen3"), tmp_path / "t")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 98}))
    with pytest.raises(RefusedInput, match=r"\(97, 32\), config\.json says \(98, 32\)"):
        load_shared_weights(folder)


def test_other_weight_formats_and_torn_files_are_refused(tmp_path, target_folder):
    folder = shutil.copytree(target_folder("qwen3"), tmp_path / "t")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(RefusedInput, match="fetch or copy it again"):
        load_shared_weights(folder)
    file.rename(folder / "pytorch_model.bin")
    with pytest.raises(RefusedInput, match="save_pretrained"):
        load_shared_weights(folder)
