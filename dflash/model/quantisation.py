"""How a target's weights are quantised, read from its config.json: what that is called, what running it takes, what can undo it. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.errors import RefusedInput

_METHODS: dict[str, tuple[str, str]] = {
    "awq": ("AWQ, 4 bits", "autoawq and a GPU"),
    "gptq": ("GPTQ, 4 or 8 bits", "gptqmodel and a GPU"),
    "bitsandbytes": ("bitsandbytes, 4 or 8 bits", "bitsandbytes"),
    "compressed-tensors": ("compressed-tensors", "compressed-tensors"),
    "fp8": ("FP8 with block scales", "accelerate and a GPU of compute capability 8.9 or above"),
    "mxfp4": ("MXFP4 experts, 4 bits", "accelerate, kernels, triton and a GPU of compute capability 7.5 or above"),
}


@dataclass(frozen=True)
class Quantisation:
    """How a target's weights are stored.

    Attributes:
        method: quant_method of config.json.
        words: the same in words.
        needs: what running it as it is takes.
        can_dequantise: whether `target.dequantise` can undo it while loading.
        block: rows and columns that share a scale (FP8).
    """

    method: str
    words: str
    needs: str
    can_dequantise: bool
    block: tuple[int, int] = (128, 128)


def quantisation(config: dict[str, Any]) -> Quantisation | None:
    """How the weights of a config.json are quantised; None for plain ones."""
    text = config.get("text_config")
    stated = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if not isinstance(stated, dict):
        return None
    method = str(stated.get("quant_method", "unknown"))
    words, needs = _METHODS.get(method, (method, f"whatever transformers asks for with {method}"))
    plain = method in ("fp8", "mxfp4")
    if method == "compressed-tensors":
        kind = str(stated.get("format", ""))
        words, plain = f"{words}, {kind or 'format not stated'}", kind == "float-quantized"
    block = stated.get("weight_block_size") or (128, 128)
    return Quantisation(method, words, needs, plain, (int(block[0]), int(block[1])))


def refuse_quantised(folder: Path, stored: Quantisation | None, *, dequantise: bool, on_gpu: bool) -> None:
    """See that the weights can be run here: plain, dequantised while loading, or as they are on a GPU.

    Raises:
        RefusedInput: they can't; says what they are, what running them takes, and what else can be done.
    """
    if stored is None or (dequantise and stored.can_dequantise) or (on_gpu and not dequantise):
        return
    what = f"{folder}: its weights are quantised ({stored.words}, quant_method {stored.method})"
    if dequantise:
        raise RefusedInput(f"{what}, which target.dequantise can't undo; use the target's unquantised weights")
    offer = "set target.dequantise=true to load them as plain numbers, or " if stored.can_dequantise else ""
    raise RefusedInput(f"{what}. To run them as they are takes {stored.needs}; {offer}use the target's unquantised weights")
