from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dflash.errors import RefusedInput
from dflash.model.facts import target_facts
from dflash.model.footprint import (
    checkpoint_bytes,
    drafter_footprint,
    drafter_parameters,
    drafter_tensors,
    refuse_unfit_tables,
    target_weight_bytes,
)
from dflash.model.objectives.registry import mix_of
from dflash.model.shape import DrafterShape
from dflash.model.target import FrozenTarget
from dflash.model.trainer import DrafterTrainer
from tests.model.tiny import DFLASH2, save_target, tiny_config


@pytest.mark.parametrize(
    "drafter",
    [{}, {"layers": 3, "heads": 6, "kv_heads": 3, "head_dim": 8, "intermediate_size": 20, "target_layer_ids": [0, 1, 3]}, DFLASH2],
)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_drafters_bytes_are_those_its_tensors_take(
    drafter: dict, optimizer: str, target_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = target_folder("qwen3")
    config = tiny_config(folder, drafter)
    config = config.model_copy(update={"optim": config.optim.model_copy(update={"name": optimizer})})
    trainer = DrafterTrainer(config)
    shape = DrafterShape.resolve(config.drafter, target_facts(folder))
    held = drafter_footprint(
        shape, optimizer=optimizer, tied=False, element_bytes=4, logits_chunk=1000, positions_at_once=9, context_tokens=7
    )
    assert drafter_parameters(shape) == held.parameters == sum(each.numel() for each in trainer.drafter.parameters())
    assert drafter_tensors(shape) == {name: tuple(each.shape) for name, each in trainer.drafter.named_parameters()}
    assert held.weights == sum(each.nbytes for each in trainer.drafter.parameters())
    assert held.gradients == sum(each.grad.nbytes for each in trainer.drafter.parameters())
    assert held.moments == sum(each.nbytes for each in trainer._optimizer.moments().values())
    assert held.tables == 2 * 97 * 32 * 4
    assert held.logits == min(1000, 9 * 97) * 4
    trainer.save(tmp_path / "saved")
    written = sum((tmp_path / "saved" / name).stat().st_size for name in ("model.safetensors", "optimizer.safetensors"))
    assert checkpoint_bytes(shape, config.optim.name) == pytest.approx(written, rel=0.1)  # headers


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_5_text"])
def test_a_targets_bytes_are_those_of_the_cut_model(family: str, target_folder: Callable[[str], Path]) -> None:
    folder = target_folder(family)
    loaded = FrozenTarget.load(folder, layer_ids=[0, 2])
    held = sum(each.nbytes for each in loaded.decoder.parameters())
    assert target_weight_bytes(target_facts(folder), [0, 2], 4) == pytest.approx(held, rel=0.01)  # the final norm


def test_a_target_in_several_files_is_added_up_and_a_file_cut_short_is_named(tmp_path: Path) -> None:
    folder = save_target(tmp_path / "target", "qwen3")
    whole = target_weight_bytes(target_facts(folder), [3], 2)
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in halves.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert target_weight_bytes(target_facts(folder), [3], 2) == whole

    data = (folder / "b.safetensors").read_bytes()
    for kept in (3, 100, len(data) - 1):
        (folder / "b.safetensors").write_bytes(data[:kept])
        with pytest.raises(RefusedInput, match=r"b\.safetensors: .*cut short"):
            target_weight_bytes(target_facts(folder), [3], 2)
    (folder / "b.safetensors").unlink()
    with pytest.raises(RefusedInput, match=r"weight files are missing: b\.safetensors"):
        target_weight_bytes(target_facts(folder), [3], 2)


def test_a_target_without_a_head_or_of_another_size_is_refused(target_folder: Callable[[str], Path]) -> None:
    whole, tied = target_facts(target_folder("qwen3")), target_facts(target_folder("llama"))
    refuse_unfit_tables(whole)
    refuse_unfit_tables(tied)  # its head is the embedding table, no tensor of its own
    with pytest.raises(RefusedInput, match=r"no lm_head\.weight\. .*tie_word_embeddings"):
        refuse_unfit_tables(replace(tied, tie_word_embeddings=False))
    with pytest.raises(RefusedInput, match=r"embed_tokens\.weight is \[97, 32\], config\.json says \[97, 64\]"):
        refuse_unfit_tables(replace(whole, hidden_size=64))


@pytest.mark.parametrize(
    ("loss", "logits_chunk", "slots", "buffers"),
    [({"dpace": 1.0}, 10, 4, 1), ({"kl": 1.0}, 97 * 6, 3, 3), ({"kl": 1.0}, 10, 1, 3), ({"acceptance": 1.0}, 97 * 99, 9, 3)],
)
def test_an_objective_pays_for_the_targets_logits_and_for_whole_blocks(target_folder, loss, logits_chunk, slots, buffers):
    shape = DrafterShape.resolve(tiny_config(target_folder("qwen3")).drafter, target_facts(target_folder("qwen3")))
    held = drafter_footprint(
        shape,
        optimizer="adamw",
        tied=True,
        element_bytes=4,
        logits_chunk=logits_chunk,
        positions_at_once=9,
        context_tokens=7,
        mix=mix_of(loss),
    )
    assert held.logits == slots * 97 * 4 * buffers


def test_logits_in_bfloat16_are_counted_with_their_float32_copy(target_folder: Callable[[str], Path]) -> None:
    shape = DrafterShape.resolve(tiny_config(target_folder("qwen3")).drafter, target_facts(target_folder("qwen3")))
    held = drafter_footprint(
        shape, optimizer="adamw", tied=True, element_bytes=2, logits_chunk=10, positions_at_once=9, context_tokens=7
    )
    assert held.logits == 97 * 6  # one slot's are always computed
    assert held.tables == 97 * 32 * torch.bfloat16.itemsize
