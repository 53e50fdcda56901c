"""Block attention: one rule, three ways to compute it, all of one signature.

Each slot of a block attends to the visible context rows (see `BlockLayout`) and to the slots of its own block, nothing else.

- `sdpa`: dense matrix products over small groups of neighbouring blocks (attention_dense). Runs everywhere; the way on CPUs.
- `flex_attention`: PyTorch's compiled kernel with a block mask (attention_flex). GPUs; forward only on a CPU.
- `flash_attention_2`: the variable-length kernel of flash-attn over gathered keys (attention_flash). GPUs with flash-attn.
"""

from __future__ import annotations

import importlib.util
from typing import Protocol

import torch
from torch import Tensor

from dflash.errors import RefusedInput
from dflash.model.blocks import BlockLayout


class Attend(Protocol):
    """Attention of all blocks of a pass, in one layer."""

    def __call__(
        self,
        query: Tensor,
        block_key: Tensor,
        block_value: Tensor,
        context_key: Tensor,
        context_value: Tensor,
        layout: BlockLayout,
        window: int | None,
    ) -> Tensor:
        """Attend.

        Args:
            query: [blocks, block_size, heads, head_dim], rotated.
            block_key, block_value: [blocks, block_size, kv_heads, head_dim]; keys rotated.
            context_key, context_value: [context rows, kv_heads, head_dim]; keys rotated.
            layout: who sees what.
            window: tokens the layer looks back, itself included; None for all.

        Returns:
            [blocks, block_size, heads, head_dim] in the dtype of `query`; scores are scaled by head_dim ** -0.5.
        """


def attention_backend(name: str, device: torch.device) -> Attend:
    """The attention of that name, or the best this device has for `auto`.

    Raises:
        RefusedInput: the device or the installed packages can't run it.
    """
    on_gpu = device.type == "cuda"
    has_flash = on_gpu and importlib.util.find_spec("flash_attn") is not None
    if name == "auto":
        name = "flash_attention_2" if has_flash else "flex_attention" if on_gpu else "sdpa"
    if name == "sdpa":
        from dflash.model.attention_dense import attend_dense

        return attend_dense
    if name == "flex_attention":
        if not on_gpu:
            raise RefusedInput("drafter.attention=flex_attention can't train on a CPU (it has no backward there); use sdpa or auto")
        from dflash.model.attention_flex import attend_flex

        return attend_flex
    if not has_flash:
        raise RefusedInput("drafter.attention=flash_attention_2 needs a GPU and the package flash-attn; use auto, or install it")
    from dflash.model.attention_flash import attend_flash

    return attend_flash
