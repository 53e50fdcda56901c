"""Attention of one new token a row to the row's slot, on a CPU, in groups of slots.

A CPU spends this step on reading keys and values. The library's kernel reads every row as far as the furthest; here neighbouring slots go
together and are read as far as their own furthest. Rows of a group were admitted about the same time, so they are about as far. The
arithmetic is that of scaled dot-product attention; the tests hold it against it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "slots"  # the library takes any name with "flash" in it for a kernel of its own
GROUP_SLOTS = 32
_step = threading.local()


@contextmanager
def in_groups(places: Sequence[int]) -> Iterator[None]:
    """Within, single-token attention goes by groups; `places` are the rows' newest places."""
    _step.groups = [
        (start, min(start + GROUP_SLOTS, len(places)), max(places[start : start + GROUP_SLOTS]) + 1)
        for start in range(0, len(places), GROUP_SLOTS)
    ]
    try:
        yield
    finally:
        _step.groups = None


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """The library's interface of an attention: query [rows, heads, tokens, width], key and value [rows, key heads, places, width].

    `attention_mask` is added to the scores: [rows, 1, 1, places]. Outside `in_groups`, and for anything this does not know, the
    library's own kernel runs.
    """
    groups = getattr(_step, "groups", None)
    if groups is None or query.shape[2] != 1 or attention_mask is None or extra.get("position_bias") is not None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **extra)
        return out, None
    rows, heads, _, width = query.shape
    key_heads = key.shape[1]
    scaled = (query * (width**-0.5 if scaling is None else scaling)).view(rows * key_heads, heads // key_heads, width)
    out = query.new_empty(rows * key_heads, heads // key_heads, value.shape[3])
    for start, stop, longest in groups:
        span = slice(start * key_heads, stop * key_heads)
        keys = key[start:stop, :, :longest].flatten(0, 1)
        scores = torch.bmm(scaled[span], keys.transpose(1, 2)).view(stop - start, heads, longest)
        scores += attention_mask[start:stop, 0, :, :longest]
        shares = torch.softmax(scores, -1).view(-1, heads // key_heads, longest)
        torch.bmm(shares, value[start:stop, :, :longest].flatten(0, 1), out=out[span])
    return out.view(rows, 1, heads, value.shape[3]), None


def use_in(model: Any) -> bool:
    """Let a model attend this way, if it would use the library's kernel of the same arithmetic on a CPU. Returns whether it does now."""
    if model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return bool(model.config._attn_implementation == NAME)
