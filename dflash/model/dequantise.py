"""Quantised weights as plain numbers, while they are read: FP8 with scales, and the 4-bit experts of GPT-OSS (MXFP4).

- FP8: weight = float8 x scale. A scale stands for a block (DeepSeek's and Qwen's `weight_scale_inv`, [rows / 128, columns / 128]), for a
  row, or for the whole tensor (compressed-tensors' `weight_scale`).
- MXFP4 (OCP Microscaling 1.0): 32 numbers of 4 bits (sign, two of exponent, one of mantissa) share an exponent stored as a byte, bias 127.
  `*_blocks` is [experts, rows, groups, 16 bytes], low half of a byte first; `*_scales` is [experts, rows, groups].

No package and no GPU are needed. The result is the number that was stored; what quantising lost stays lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dflash.errors import RefusedInput
from dflash.model.weight_files import read_tensor
from dflash.model.weight_headers import stored_tensors

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SCALES = ("_scale_inv", "_scale")
_LEFT_OUT = (*_SCALES, ".input_scale", ".weight_zero_point", ".k_scale", ".v_scale")
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def read_dequantised(
    folder: Path, dtype: torch.dtype, block: tuple[int, int], keep: Callable[[str], bool] = lambda name: True
) -> dict[str, Tensor]:
    """Every tensor of a target's folder that `keep` wants by its name, as plain numbers; `block` is FP8's weight_block_size.

    Raises:
        RefusedInput: a file is missing or can't be read, or a quantised tensor has no scale that fits it.
    """
    stored = {name: read_tensor(each.file, name) for name, each in stored_tensors(folder).items() if keep(name)}
    plain: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if name.endswith("_blocks") and f"{name.removesuffix('_blocks')}_scales" in stored:
            base = name.removesuffix("_blocks")
            plain[base] = from_mxfp4(tensor, stored[f"{base}_scales"], dtype)
        elif tensor.dtype in _FLOAT8:
            try:
                plain[name] = from_fp8(tensor, _scale_of(name, stored, folder), dtype, block)
            except ValueError as error:
                raise RefusedInput(f"{folder}: {name}: {error}; its config.json belongs to another model") from error
        elif not name.endswith((*_LEFT_OUT, "_scales")):
            plain[name] = tensor
    return plain


def from_fp8(weight: Tensor, scale: Tensor, dtype: torch.dtype, block: tuple[int, int] = (128, 128)) -> Tensor:
    """weight [rows, columns] x scale: [] or [1] for all, [rows, 1] a row, [row blocks, column blocks] a block of that size.

    Raises:
        ValueError: the scale fits no such grid.
    """
    exact, scale = weight.float(), scale.float()
    if scale.numel() == 1:
        return (exact * scale.reshape(())).to(dtype)
    grid = [-(-size // side) for size, side in zip(exact.shape, block, strict=True)]
    if list(scale.shape) == grid:
        for axis, size in enumerate(exact.shape):
            scale = scale.repeat_interleave(block[axis], dim=axis).narrow(axis, 0, size)
    elif list(scale.shape) != [len(exact), 1]:
        raise ValueError(f"scales {list(scale.shape)} for a weight {list(exact.shape)} in blocks of {list(block)}")
    return (exact * scale).to(dtype)


def from_mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Experts' matrices, transposed as GPT-OSS multiplies them: [experts, groups x 32, rows]."""
    table = torch.tensor([*_FP4, *(-number for number in _FP4)], dtype=torch.float32)
    halves = torch.stack([blocks & 0x0F, blocks >> 4], dim=-1).flatten(-2)
    numbers = torch.ldexp(table[halves.long()], (scales.int() - 127)[..., None])
    return numbers.flatten(-2).transpose(-1, -2).contiguous().to(dtype)


def _scale_of(name: str, stored: dict[str, Tensor], folder: Path) -> Tensor:
    scale = next((stored[name + ending] for ending in _SCALES if name + ending in stored), None)
    if scale is None:
        raise RefusedInput(f"{folder}: {name} is stored in 8 bits and has no {name}{_SCALES[0]}; fetch the folder again")
    return scale
