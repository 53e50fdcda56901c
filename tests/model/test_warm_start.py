"""Warm starts: what is planned, and that the drafter then computes what its source does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dflash.errors import RefusedInput
from dflash.model.facts import target_facts
from dflash.model.first_weights import take_first_weights
from dflash.model.shape import DrafterShape
from dflash.model.target import FrozenTarget
from dflash.model.trainer import DrafterTrainer
from dflash.model.warm_start import WarmStart, plan_from_drafter, plan_from_target
from tests.model.tiny import random_rows, tiny_config

ROWS = random_rows([40, 9, 64, 27])


@pytest.fixture(scope="module")
def target(target_folder: Callable[[str], Path]) -> Path:
    return target_folder("qwen3")


@pytest.fixture(scope="module")
def source(target: Path) -> DrafterTrainer:
    """A drafter whose weights are all random."""
    trainer = DrafterTrainer(tiny_config(target, {"layers": 2}))
    generator = torch.Generator().manual_seed(1)
    for parameter in trainer.drafter.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return trainer


@pytest.fixture
def folder(source: DrafterTrainer, tmp_path: Path) -> Path:
    source.save(tmp_path / "drafter")
    return tmp_path / "drafter"


def started(target: Path, folder: Path | None, **drafter: Any) -> tuple[DrafterTrainer, WarmStart]:
    config = tiny_config(target, drafter)
    trainer = DrafterTrainer(config)
    plan = plan_from_target(target_facts(target), trainer.shape) if folder is None else plan_from_drafter(folder, trainer.shape)
    take_first_weights(trainer.drafter, plan)
    return trainer, plan


def loss(trainer: DrafterTrainer, features: torch.Tensor) -> float:
    return trainer.evaluate(ROWS, features).loss_sum


def features(layers: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(len(ROWS.tokens), layers, 32, generator=torch.Generator().manual_seed(seed))


def test_the_same_shape_takes_everything(source: DrafterTrainer, target: Path, folder: Path) -> None:
    trainer, plan = started(target, folder)
    assert (len(plan.taken), plan.missing, plan.misshapen, plan.extra, plan.silent, plan.warnings) == (25, [], {}, [], [], [])
    for name, parameter in trainer.drafter.state_dict().items():
        assert torch.equal(parameter, source.drafter.state_dict()[name])


@pytest.mark.parametrize("layers", [3, 5])
def test_more_layers_compute_at_first_what_the_source_does_and_learn(
    layers: int, source: DrafterTrainer, target: Path, folder: Path
) -> None:
    trainer, plan = started(target, folder, layers=layers)
    states = features(2).flatten(1)
    assert loss(trainer, states) == pytest.approx(loss(source, states), rel=1e-6)
    assert plan.layers == (layers, 2)
    assert plan.silent[:2] == ["layers.2.self_attn.o_proj.weight", "layers.2.mlp.down_proj.weight"]
    assert len(plan.missing) == 11 * (layers - 2)
    trainer.accumulate(ROWS, states, epoch=0)
    added = dict(trainer.drafter.named_parameters())["layers.2.self_attn.o_proj.weight"]
    assert added.grad is not None
    assert float(added.grad.abs().max()) > 0


def test_fewer_layers_take_the_first_ones_and_say_what_is_left(target: Path, folder: Path, source: DrafterTrainer) -> None:
    trainer, plan = started(target, folder, layers=1)
    assert torch.equal(trainer.drafter.layers[0].mlp.up_proj.weight, source.drafter.layers[0].mlp.up_proj.weight)
    assert len(plan.extra) == 11
    assert "of no use here: layers.1.input_layernorm.weight" in plan.told()


def test_another_block_size_changes_no_tensor(target: Path, folder: Path) -> None:
    _, plan = started(target, folder, block_size=9)
    assert (len(plan.taken), plan.silent, plan.warnings) == (25, [], [])


def test_captured_layers_that_were_added_say_nothing_at_first(source: DrafterTrainer, target: Path, folder: Path) -> None:
    trainer, plan = started(target, folder, target_layer_ids=[1, 2, 0])
    states = features(3)
    assert plan.columns == [(1, 1), (2, 0)]
    assert loss(trainer, states.flatten(1)) == pytest.approx(loss(source, states[:, [2, 1]].flatten(1)), rel=1e-6)
    assert "target_layer_ids [0, 2], here [1, 2, 0]" in plan.warnings[0]


def test_captured_layers_that_only_the_source_has_are_left_out_with_a_warning(
    source: DrafterTrainer, target: Path, folder: Path
) -> None:
    trainer, plan = started(target, folder, target_layer_ids=[1, 2])
    assert plan.columns == [(1, 1)]
    assert torch.equal(trainer.drafter.fc.weight[:, 32:], source.drafter.fc.weight[:, 32:])
    drawn = DrafterTrainer(tiny_config(target, {"target_layer_ids": [1, 2]})).drafter
    assert torch.equal(trainer.drafter.fc.weight[:, :32], drawn.fc.weight[:, :32])
    assert len(plan.warnings) == 1


@pytest.mark.parametrize(("change", "part"), [({"intermediate_size": 20}, "mlp.down_proj"), ({"heads": 8}, "self_attn.o_proj")])
def test_a_part_that_does_not_fit_is_named_and_starts_silent(change: dict[str, int], part: str, target: Path, folder: Path) -> None:
    trainer, plan = started(target, folder, **change)
    assert plan.silent == [f"layers.{layer}.{part}.weight" for layer in range(2)]
    assert all(not dict(trainer.drafter.named_parameters())[name].any() for name in plan.silent)
    assert any(part in told and "instead of" in told for told in plan.misshapen.values())


def test_shards_of_others_are_read_and_their_extra_tensors_named(source: DrafterTrainer, target: Path, folder: Path) -> None:
    tensors = {**load_file(folder / "model.safetensors"), "lm_head.weight": torch.zeros(3, 3)}
    names = sorted(tensors)
    halves = {"model-00001.safetensors": names[::2], "model-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name].to(torch.bfloat16) for name in part}, folder / file)
    weight_map = {name: file for file, part in halves.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()
    trainer, plan = started(target, folder)
    assert plan.extra == ["lm_head.weight"]
    assert torch.equal(trainer.drafter.fc.weight, source.drafter.fc.weight.to(torch.bfloat16).float())
    (folder / "model-00002.safetensors").unlink()
    with pytest.raises(RefusedInput, match=r"missing: model-00002\.safetensors"):
        plan_from_drafter(folder, trainer.shape)


def test_tensors_that_are_not_finite_or_cut_short_are_refused_by_name(target: Path, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.1.mlp.up_proj.weight"][3, 3] = float("inf")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(RefusedInput, match=r"layers\.1\.mlp\.up_proj\.weight holds numbers that aren't finite"):
        started(target, folder)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(RefusedInput, match=r"model\.safetensors: cut short"):
        started(target, folder)


def test_a_drafter_of_another_target_is_refused_and_another_meaning_is_warned_of(source: DrafterTrainer, folder: Path) -> None:
    for change, said in (({"hidden_size": 64}, "hidden size 32, here 64"), ({"vocab_size": 98}, "vocabulary 97, here 98")):
        with pytest.raises(RefusedInput, match=said):
            plan_from_drafter(folder, replace(source.shape, **change))
    plan = plan_from_drafter(folder, replace(source.shape, target_layers=9, mask_token_id=3))
    assert "target_layers 4, here 9; mask_token_id 96, here 3" in plan.warnings[0]


def test_a_drafter_of_which_no_matrix_fits_is_refused(source: DrafterTrainer, folder: Path) -> None:
    tensors = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if tensor.ndim == 1}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(RefusedInput, match="none of its matrices fits this drafter"):
        plan_from_drafter(folder, source.shape)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_5_text"])
def test_the_targets_last_layers_are_taken_where_shapes_allow(family: str, target_folder: Callable[[str], Path]) -> None:
    trainer, plan = started(target_folder(family), None, layers=2)
    model = AutoModelForCausalLM.from_pretrained(target_folder(family), dtype=torch.float32).get_decoder()
    for mine, theirs in zip(trainer.drafter.layers, model.layers[-2:], strict=True):
        assert torch.equal(mine.mlp.down_proj.weight, theirs.mlp.down_proj.weight)
        states = torch.randn(3, 32)
        torch.testing.assert_close(mine.input_layernorm(states), theirs.input_layernorm(states))
        if family != "qwen3_5_text":
            assert torch.equal(mine.self_attn.k_proj.weight, theirs.self_attn.k_proj.weight)
    expected = {"qwen3": [], "llama": ["layers.0.self_attn.q_norm.weight"], "qwen3_5_text": ["layers.0.self_attn.q_proj.weight"]}
    assert plan.missing[:1] == expected[family]
    assert plan.silent == []


def test_started_from_the_target_its_first_layer_sees_the_keys_and_values_that_the_targets_layer_sees(target: Path) -> None:
    trainer, plan = started(
        target, None, layers=2, target_layer_ids=[0, 1]
    )  # of 4 layers the last two: the first of them reads layer 1
    assert plan.passed_on == 1
    captured = FrozenTarget.load(target, layer_ids=[0, 1], feature_dtype="float32").features(ROWS, packed=False)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).get_decoder()
    seen: list[torch.Tensor] = []
    for module in (model.layers[2].self_attn.k_norm, model.layers[2].self_attn.v_proj):
        module.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    row = slice(0, int(ROWS.offsets[1]))
    with torch.no_grad():
        model(torch.from_numpy(ROWS.tokens[row].astype("int64"))[None])
        keys, values = trainer.drafter.layers[0].self_attn.key_value(trainer.drafter.context(captured[row]))
    torch.testing.assert_close(keys, seen[0].view_as(keys), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(values, seen[1].view_as(values), rtol=1e-4, atol=1e-4)


def test_a_target_with_fewer_layers_than_the_drafter_fills_the_last_ones(target: Path) -> None:
    _, plan = started(target, None, layers=5)
    assert plan.layers == (5, 4)
    assert all(name.startswith("layers.0.") for name in plan.missing)


def test_a_folder_that_is_no_drafters_is_refused(target: Path) -> None:
    shape = DrafterShape.resolve(tiny_config(target).drafter, target_facts(target))
    with pytest.raises(RefusedInput, match=r"is missing; is this the config\.json of a DFlash drafter\?"):
        plan_from_drafter(target, shape)
