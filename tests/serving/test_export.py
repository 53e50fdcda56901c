from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.cache_utils import DFlashCache

from dflash.errors import RefusedInput
from dflash.serving.cached_drafter import DraftSequence
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.checkpoint import FoundDrafter, find_drafter, load_drafter, refuse_misfit
from dflash.serving.export import export_drafter
from tests.serving.conftest import run_with_checkpoints


@pytest.fixture
def exported(tmp_path: Path, target_folder: Callable[[str], Path]) -> Path:
    run = run_with_checkpoints(tmp_path / "runs", target_folder("qwen3"), [10, 20])
    return export_drafter(find_drafter(run.path, tmp_path, print), tmp_path / "out").out


def found(folder: Path) -> FoundDrafter:
    return find_drafter(folder, folder, print)


SHAPES: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
    "all sliding, as long as a block": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5},
    "causal": {"is_causal": True},
    "sliding and causal": {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 7, "is_causal": True},
}


@pytest.mark.parametrize("context", [3, 11, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_another_implementation_reads_the_folder_and_drafts_the_same(
    shape: str, context: int, tmp_path: Path, target_folder: Callable[[str], Path]
) -> None:
    run = run_with_checkpoints(tmp_path / "runs", target_folder("qwen3"), [10], drafter=SHAPES[shape])
    exported = export_drafter(find_drafter(run.path, tmp_path, print), tmp_path / "out").out
    config = json.loads((exported / "config.json").read_text())
    # Their window counts distance, and both ways: a slot sees |distance| <= window. Ours counts tokens, the slot itself included.
    windows = {} if config["sliding_window"] is None else {"sliding_window": config["sliding_window"] - 1}
    theirs = MuseGlimmerAssistantModel(
        MuseGlimmerAssistantConfig(
            **{
                key: config[key]
                for key in (
                    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                    "head_dim", "rms_norm_eps", "rope_parameters", "layer_types", "max_position_embeddings", "block_size",
                )
            },
            **windows,
            mask_token_id=config["dflash_config"]["mask_token_id"],
            target_layer_ids=config["dflash_config"]["target_layer_ids"],
        )
    ).eval()  # fmt: skip
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    tensors = {names.get(name, name): tensor.float() for name, tensor in load_file(exported / "model.safetensors").items()}
    theirs.load_state_dict(tensors, strict=True)

    target = DecodingTarget.load(target_folder("qwen3"), layer_ids=config["dflash_config"]["target_layer_ids"])
    features = torch.randn(context, theirs.encoder.fc.in_features, generator=torch.Generator().manual_seed(0))
    anchor = 17
    block = torch.tensor([anchor, *[config["dflash_config"]["mask_token_id"]] * (config["block_size"] - 1)])
    with torch.no_grad():
        hidden = theirs(
            noise_embeds=target.embedding[block][None],
            context_hidden_states=features[None],
            attention_mask=causal_masks(config, context) if config["is_causal"] else None,
            cache=None if config["is_causal"] else cache_before(context, theirs.config),
        ).last_hidden_state
    drafts = DraftSequence(load_drafter(exported), target, capacity=context)
    drafts.extend(features)
    torch.testing.assert_close(drafts.logits(anchor), (hidden[0, 1:] @ target.head.T), atol=1e-4, rtol=1e-4)


def cache_before(context: int, config: MuseGlimmerAssistantConfig) -> DFlashCache:
    """An empty cache that is told how much context comes: with it their model makes its own masks."""
    cache = DFlashCache(config=config)
    cache.set_previous_accepted_tokens(context)
    return cache


def causal_masks(config: dict[str, Any], context: int) -> dict[str, torch.Tensor]:
    """Their model knows no causal block; it takes masks [1, 1, slots, context + slots] (True: seen), written from the rule slot by slot."""
    slots = config["block_size"]
    masks = {kind: torch.zeros(1, 1, slots, context + slots, dtype=torch.bool) for kind in ("full_attention", "sliding_attention")}
    for slot in range(slots):
        for seen in range(context + slot + 1):
            masks["full_attention"][0, 0, slot, seen] = True
            masks["sliding_attention"][0, 0, slot, seen] = context + slot - seen < (config["sliding_window"] or 0)
    return masks


def test_the_layout_is_the_released_one(exported: Path) -> None:
    tensors = load_file(exported / "model.safetensors")
    assert len(tensors) == 11 * 2 + 3
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["auto_map"] == {"AutoModel": "dflash.DFlashDraftModel"}
    assert config["block_size"] == config["dflash_config"]["block_size"] == 5
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["dtype"] == "bfloat16"
    assert sorted(path.name for path in exported.iterdir()) == ["config.json", "model.safetensors", "provenance.json"]


def test_weights_are_the_newest_checkpoints_rounded_once(exported: Path) -> None:
    masters = load_file(exported.parent / "runs/tiny/checkpoints/step-00000020/model.safetensors")
    for name, tensor in load_file(exported / "model.safetensors").items():
        assert torch.equal(tensor, masters[name].to(torch.bfloat16))
    assert json.loads((exported / "provenance.json").read_text())["step"] == 20


def test_a_named_checkpoint_is_exported(exported: Path) -> None:
    earlier = exported.parent / "runs/tiny/checkpoints/step-00000010"
    assert export_drafter(found(earlier), exported.parent / "earlier").step == 10


def test_a_run_falls_back_to_the_checkpoint_before_a_damaged_one_and_says_so(exported: Path) -> None:
    run = exported.parent / "runs/tiny"
    cut_short(run / "checkpoints/step-00000020/model.safetensors")
    said: list[str] = []
    assert find_drafter("tiny", run.parent, said.append).origin["step"] == 10
    assert "step-00000020: model.safetensors is cut short" in said[0]
    with pytest.raises(RefusedInput, match=r"step-00000020: model\.safetensors is cut short.*name the run"):
        found(run / "checkpoints/step-00000020")


def test_a_run_without_a_whole_checkpoint_is_refused(tmp_path: Path, target_folder: Callable[[str], Path]) -> None:
    run = run_with_checkpoints(tmp_path, target_folder("qwen3"), [])
    with pytest.raises(RefusedInput, match="no checkpoint yet"):
        find_drafter(run.path, tmp_path, print)
    with pytest.raises(RefusedInput, match="no run there"):
        find_drafter("nowhere", tmp_path, print)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RefusedInput, match="neither a run"):
        find_drafter(tmp_path / "empty", tmp_path, print)


def cut_short(place: Path) -> None:
    whole = place.read_bytes()
    place.write_bytes(whole[: len(whole) // 2])


def altered(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_missing_extra_and_misshapen_tensors_are_named(exported: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["fc.weight"]
        tensors["lm_head.weight"] = torch.zeros(3)
        tensors["norm.weight"] = torch.zeros(5)

    with pytest.raises(RefusedInput, match=r"missing: fc\.weight; unknown: lm_head\.weight; misshapen: norm\.weight \(5,\)"):
        load_drafter(altered(exported, change))


def test_an_exported_file_cut_short_is_named(exported: Path) -> None:
    cut_short(exported / "model.safetensors")
    with pytest.raises(RefusedInput, match=r"out/model\.safetensors: cut short"):
        load_drafter(exported)


def test_weights_that_are_not_finite_are_not_exported(exported: Path) -> None:
    altered(exported, lambda tensors: tensors["fc.weight"].fill_(float("nan")))
    with pytest.raises(RefusedInput, match=r"fc\.weight holds numbers that aren't finite"):
        export_drafter(found(exported), exported.parent / "other")
    assert not (exported.parent / "other").exists()


def test_what_is_there_is_replaced_only_on_demand_and_only_an_export(exported: Path) -> None:
    run = exported.parent / "runs/tiny"
    with pytest.raises(RefusedInput, match="--overwrite"):
        export_drafter(found(run), exported)
    assert export_drafter(found(run), exported, overwrite=True).tensors == 25
    for taken in (run, run / "checkpoints/step-00000010"):
        with pytest.raises(RefusedInput, match="no exported drafter"):
            export_drafter(found(exported), taken, overwrite=True)


@pytest.mark.parametrize(("change", "said"), [({"hidden_size": 64}, "hidden size 64"), ({"num_hidden_layers": 5}, "layers 5")])
def test_a_target_of_another_size_is_refused(exported: Path, tmp_path: Path, change: dict[str, int], said: str) -> None:
    from dflash.model.facts import target_facts
    from tests.model.tiny import save_target

    other = save_target(tmp_path / "other", "qwen3", **change)
    with pytest.raises(RefusedInput, match=said):
        refuse_misfit(found(exported).shape(), target_facts(other), exported)


def test_an_export_without_provenance_needs_a_target(exported: Path) -> None:
    (exported / "provenance.json").unlink()
    with pytest.raises(RefusedInput, match="--target"):
        found(exported).target(None)
    assert found(exported).target("qwen3-tiny") == "qwen3-tiny"
