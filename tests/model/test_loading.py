"""Folders that are no whole target are refused with the reason and the way out; a converted one is taken."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dflash.errors import RefusedInput
from dflash.model.loading import Loading, load_causal_lm


def load(folder: Path, **options: object) -> object:
    return load_causal_lm(folder, Loading(**options))


def test_a_pickle_is_refused_with_a_command_that_converts_it(tmp_path, target_folder) -> None:
    folder = Path(shutil.copytree(target_folder("qwen3"), tmp_path / "a folder"))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(RefusedInput, match=r"has pytorch_model\.bin but no safetensors.*convert it: python -c") as refused:
        load(folder)
    command = shlex.split(re.sub(r".*convert it: ", "", str(refused.value)))
    subprocess.run([sys.executable, *command[1:]], check=True, capture_output=True, timeout=120)
    converted = load_file(folder / "model.safetensors")
    assert all(torch.equal(converted[name], tensors[name]) for name in tensors)
    load(folder)


def test_missing_shards_are_named(tmp_path, target_folder) -> None:
    folder = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(target_folder("qwen3")).save_pretrained(folder, max_shard_size="20KB")
    load(folder)
    lost = sorted(folder.glob("model-*.safetensors"))[1:3]
    for file in lost:
        file.unlink()
    with pytest.raises(RefusedInput, match=rf"2 of \d+ weight files are missing: {lost[0].name}, {lost[1].name}; fetch them"):
        load(folder)


def test_weights_of_another_model_are_refused(tmp_path, target_folder) -> None:
    folder = Path(shutil.copytree(target_folder("qwen3"), tmp_path / "t"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 52}))
    with pytest.raises(RefusedInput, match=r"don't fill the model of its config\.json \(missing or misshapen: .*mlp"):
        load(folder)
    shutil.copy(target_folder("qwen3_5_text") / "config.json", folder / "config.json")
    with pytest.raises(RefusedInput, match=r"don't fill the model of its config\.json"):
        load(folder)


def test_code_in_the_folder_is_not_run_unasked(tmp_path, target_folder) -> None:
    folder = Path(shutil.copytree(target_folder("qwen3"), tmp_path / "t"))
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    (folder / "own.py").write_text(
        "from transformers import Qwen3Config, Qwen3ForCausalLM\n"
        "class OwnConfig(Qwen3Config):\n    model_type = 'own'\n"
        "class OwnModel(Qwen3ForCausalLM):\n    config_class = OwnConfig\n"
    )
    with pytest.raises(RefusedInput, match=r"'own' is not in transformers.*not run unasked.*target\.trust_remote_code=true"):
        load(folder)
    assert type(load(folder, trust_remote_code=True)).__name__ == "OwnModel"
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own"}))
    with pytest.raises(RefusedInput, match=r"'own' is not in transformers; install one that has this family"):
        load(folder, trust_remote_code=False)
