"""Quantised weights become the numbers they stand for; a target stored that way gives the features of its plain copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from dflash.errors import RefusedInput
from dflash.model.dequantise import from_fp8, from_mxfp4
from dflash.model.facts import target_facts
from dflash.model.target import FrozenTarget
from tests.model.tiny import random_rows

BLOCK = (16, 16)


def random_fp8(rows: int, columns: int, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    return torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize(("rows", "columns"), [(32, 48), (20, 40), (1, 17)])
def test_each_number_is_multiplied_by_the_scale_of_its_block(rows: int, columns: int) -> None:
    weight, scale = random_fp8(rows, columns, torch.rand(-(-rows // 16), -(-columns // 16)) + 0.5)
    got = from_fp8(weight, scale, torch.float32, BLOCK)
    for row in range(rows):
        for column in range(columns):
            assert got[row, column] == float(weight[row, column].float()) * float(scale[row // 16, column // 16])


@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.tensor([0.5]), torch.linspace(1, 2, 20)[:, None]])
def test_a_scale_may_be_that_of_a_row_or_of_all(scale: torch.Tensor) -> None:
    weight, scale = random_fp8(20, 40, scale)
    assert torch.equal(from_fp8(weight, scale, torch.float32, BLOCK), weight.float() * scale)


def test_scales_of_another_grid_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scales \[3, 3\] for a weight \[32, 48\]"):
        from_fp8(*random_fp8(32, 48, torch.ones(3, 3)), torch.float32, BLOCK)


def test_four_bit_experts_are_those_of_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 8, 2, 16), generator=generator).to(torch.uint8)
    scales = torch.randint(118, 134, (3, 8, 2), generator=generator).to(torch.uint8)
    assert torch.equal(from_mxfp4(blocks, scales, torch.bfloat16), convert_moe_packed_tensors(blocks, scales))


def quantised(plain: Path, folder: Path, quantization_config: dict[str, Any]) -> tuple[Path, Path]:
    """A folder with its matrices in FP8, and its twin with what these stand for in plain numbers."""
    shutil.copytree(plain, folder)
    twin = Path(shutil.copytree(plain, folder.with_name("twin")))
    stored, meant = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        stored[name] = meant[name] = tensor
        if "proj" in name and tensor.ndim == 2:
            blocks = [-(-size // side) for size, side in zip(tensor.shape, BLOCK, strict=True)]
            scale = torch.rand(*blocks) + 0.5
            stored[name] = tensor.to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale
            meant[name] = from_fp8(stored[name], scale, torch.float32, BLOCK)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    save_file(meant, twin / "model.safetensors", {"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization_config}))
    return folder, twin


def test_a_dequantised_target_gives_the_features_of_its_plain_twin(tmp_path, target_folder) -> None:
    settings = {"quant_method": "fp8", "weight_block_size": list(BLOCK)}
    folder, twin = quantised(target_folder("qwen3"), tmp_path / "fp8", settings)
    rows = random_rows([20, 9])
    options: dict[str, Any] = {"layer_ids": [0, 2], "feature_dtype": "float32"}
    expected = FrozenTarget.load(twin, **options).features(rows, packed=False)
    assert torch.equal(FrozenTarget.load(folder, dequantise=True, **options).features(rows, packed=False), expected)
    with pytest.raises(
        RefusedInput, match=r"quantised \(FP8 with block scales.*takes accelerate and a GPU.*target\.dequantise=true"
    ):
        FrozenTarget.load(folder, **options)


@pytest.mark.parametrize(
    ("settings", "words", "can"),
    [
        ({"quant_method": "gptq", "bits": 4}, "GPTQ, 4 or 8 bits", False),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors, pack-quantized", False),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors, float-quantized", True),
        ({"quant_method": "mxfp4"}, "MXFP4 experts, 4 bits", True),
        ({"quant_method": "new"}, "new", False),
    ],
)
def test_a_quantisation_is_told_by_its_name_with_what_it_needs(settings, words, can, tmp_path, target_folder) -> None:
    folder = Path(shutil.copytree(target_folder("qwen3"), tmp_path / "t"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    stored = target_facts(folder).quantisation
    assert stored is not None
    assert (stored.words, stored.can_dequantise) == (words, can)
    with pytest.raises(RefusedInput, match=r"unquantised weights") as refused:
        FrozenTarget.load(folder, layer_ids=[0])
    assert ("dequantise=true" in str(refused.value)) == can
    if not can:
        with pytest.raises(RefusedInput, match=r"which target\.dequantise can't undo"):
            FrozenTarget.load(folder, layer_ids=[0], dequantise=True)
