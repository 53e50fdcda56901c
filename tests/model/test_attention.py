from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import torch

from dflash.errors import RefusedInput
from dflash.model import attention_dense, attention_flash
from dflash.model.anchors import Anchors
from dflash.model.attention import attention_backend
from dflash.model.attention_dense import attend_dense
from dflash.model.attention_flash import attend_flash
from dflash.model.attention_flex import TILE, attend_flex, block_mask
from dflash.model.blocks import BlockLayout, lay_out
from tests.model.tiny import random_rows

CPU = torch.device("cpu")
LAYOUTS = ["one", "several", "crowded", "at the start"]
RULES = [(None, False), (None, True), (9, False), (9, True), (200, False)]


def make_layout(name: str, block_size: int, is_causal: bool) -> BlockLayout:
    rng = np.random.default_rng(5)
    lengths, count = {"one": ([70], 1), "several": ([31, 64, 12, 90], 6), "crowded": ([140], 60), "at the start": ([8, 9, 40], 1)}[
        name
    ]
    rows = random_rows(lengths, supervised=1.0)
    drawn = [np.sort(rng.choice(length - 1, min(count, length - 1), replace=False)) for length in lengths]
    if name == "at the start":
        drawn = [np.array([0]), np.array([0, 3]), np.array([0])]
    row = np.repeat(np.arange(len(lengths)), [len(part) for part in drawn])
    return lay_out(rows, Anchors(row, np.concatenate(drawn)), block_size=block_size, gamma=1.0, is_causal=is_causal).layout


def random_tensors(layout: BlockLayout, dtype=torch.float64, heads=6, kv_heads=2, width=8):
    generator = torch.Generator().manual_seed(1)
    shapes = [
        (layout.blocks, layout.block_size, heads, width),
        (layout.blocks, layout.block_size, kv_heads, width),
        (layout.blocks, layout.block_size, kv_heads, width),
        (layout.context_rows, kv_heads, width),
        (layout.context_rows, kv_heads, width),
    ]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).mul(1.5).to(dtype).requires_grad_() for shape in shapes]


def attend_slot_by_slot(query, block_key, block_value, context_key, context_value, layout, window):
    """The rule, written out for each slot and head."""
    out = []
    shared = query.shape[2] // block_key.shape[2]
    for block in range(layout.blocks):
        first, end = int(layout.first_context[block]), int(layout.end_context[block])
        anchor = end - first
        for slot in range(layout.block_size):
            seen = [row for row in range(first, end) if window is None or anchor + slot - (row - first) < window]
            own = [k for k in range(layout.block_size) if not layout.is_causal or k <= slot]
            keys = torch.cat([context_key[seen], block_key[block, own]]).repeat_interleave(shared, 1)
            values = torch.cat([context_value[seen], block_value[block, own]]).repeat_interleave(shared, 1)
            scores = torch.einsum("hd,khd->hk", query[block, slot], keys) / query.shape[-1] ** 0.5
            out.append(torch.einsum("hk,khd->hd", scores.softmax(-1), values))
    return torch.stack(out).view(query.shape)


def outcome(attend, tensors, layout, window):
    """Result and the gradients of a fixed random projection of it."""
    fresh = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    result = attend(*fresh, layout, window)
    result.backward(torch.randn(result.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(result.dtype))
    return [result.detach(), *[tensor.grad for tensor in fresh]]


@pytest.mark.parametrize(("window", "is_causal"), RULES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_dense_attention_follows_the_rule_slot_by_slot_with_gradients(name, window, is_causal):
    layout = make_layout(name, 5, is_causal)
    tensors = random_tensors(layout)
    for found, expected in zip(
        outcome(attend_dense, tensors, layout, window), outcome(attend_slot_by_slot, tensors, layout, window), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scores_at_a_time", [1, 700, 10**9])
def test_how_blocks_are_grouped_does_not_matter(scores_at_a_time, monkeypatch):
    whole = outcome(attend_dense, random_tensors(make_layout("several", 4, False)), make_layout("several", 4, False), 9)
    monkeypatch.setitem(attention_dense._SCORES_AT_A_TIME, "cpu", scores_at_a_time)
    monkeypatch.setitem(attention_dense._BLOCKS_AT_A_TIME, "cpu", 1000)
    layout = make_layout("several", 4, False)
    for found, expected in zip(outcome(attend_dense, random_tensors(layout), layout, 9), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_dense_attention_in_bfloat16_keeps_its_dtype_and_stays_near():
    layout = make_layout("several", 5, False)
    exact = outcome(attend_dense, random_tensors(layout), layout, None)
    for found, expected in zip(outcome(attend_dense, random_tensors(layout, torch.bfloat16), layout, None), exact, strict=True):
        assert found.dtype == torch.bfloat16
        assert (found.double() - expected).norm() < 0.02 * expected.norm()


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("window", "is_causal"), RULES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_flex_attention_agrees_forward(name, window, is_causal):
    layout = make_layout(name, 5, is_causal)
    tensors = [tensor.detach() for tensor in random_tensors(layout, torch.float32)]
    torch.testing.assert_close(attend_flex(*tensors, layout, window), attend_dense(*tensors, layout, window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("window", "is_causal"), RULES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_flex_tiles_are_those_with_a_visible_pair_and_full_ones_have_no_other(name, window, is_causal):
    layout = make_layout(name, 5, is_causal)
    mask = block_mask(layout, window, CPU)
    queries, keys = mask.seq_lengths
    pairs = mask.mask_mod(0, 0, torch.arange(queries)[:, None], torch.arange(keys)[None, :])
    assert not pairs[:, layout.context_rows + layout.blocks * layout.block_size :].any()
    by_tile = pairs.view(queries // TILE, TILE, keys // TILE, TILE)
    listed = mask.to_dense()[0, 0].bool()
    assert torch.equal(listed, by_tile.any(3).any(1))
    for tile in range(queries // TILE):
        full = mask.full_kv_indices[0, 0, tile, : mask.full_kv_num_blocks[0, 0, tile]]
        assert by_tile[tile][:, full].all()


def test_flex_finds_the_full_tiles_of_a_long_context():
    layout = BlockLayout(np.array([0, 0]), np.array([700, 900]), 900, 5, False)
    mask = block_mask(layout, None, CPU)
    assert mask.full_kv_indices[0, 0, 0, : mask.full_kv_num_blocks[0, 0, 0]].tolist() == [0, 1, 2, 3, 4]


def reference_varlen(q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size):
    """flash_attn_varlen_func from its documentation: window and causality count from the lower right corner."""
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16
    out = []
    for (q0, q1), (k0, k1) in zip(pairwise(cu_seqlens_q), pairwise(cu_seqlens_k), strict=True):
        queries, keys = q[q0:q1].double(), k[k0:k1].double()
        assert len(queries) <= max_seqlen_q
        assert len(keys) <= max_seqlen_k
        shared = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", queries, keys.repeat_interleave(shared, 1)) / q.shape[-1] ** 0.5
        distance = (torch.arange(len(queries))[:, None] + len(keys) - len(queries)) - torch.arange(len(keys))
        left, right = window_size
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if left >= 0:
            hidden |= distance > left
        if causal or right >= 0:
            hidden |= -distance > max(right, 0)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, v[k0:k1].double().repeat_interleave(shared, 1)))
    return torch.cat(out).to(q.dtype)


@pytest.mark.parametrize("key_rows", [1, 200, 2**20])
@pytest.mark.parametrize(("window", "is_causal"), RULES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_flash_attention_agrees_with_gradients_when_a_reference_stands_in_for_the_kernel(
    name, window, is_causal, key_rows, monkeypatch
):
    stand_in = ModuleType("flash_attn")
    stand_in.flash_attn_varlen_func = reference_varlen
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in)
    monkeypatch.setattr(attention_flash, "_KEY_ROWS_AT_A_TIME", key_rows)
    layout = make_layout(name, 5, is_causal)
    tensors = random_tensors(layout, torch.bfloat16)
    for found, expected in zip(
        outcome(attend_flash, tensors, layout, window), outcome(attend_dense, tensors, layout, window), strict=True
    ):
        assert (found.double() - expected.double()).norm() <= 0.02 * expected.double().norm() + 1e-9


@pytest.mark.parametrize("attend", [attend_dense, attend_flex])
def test_nothing_leaks_from_another_block_or_conversation_or_from_the_anchor_on(attend):
    layout = make_layout("several", 5, False)
    query, block_key, block_value, context_key, context_value = (
        tensor.detach() for tensor in random_tensors(layout, torch.float32)
    )
    before = attend(query, block_key, block_value, context_key, context_value, layout, None)
    watched = layout.blocks // 2
    seen = np.zeros(layout.context_rows, bool)
    seen[layout.first_context[watched] : layout.end_context[watched]] = True
    others = np.arange(layout.blocks) != watched
    for tensor, rows in ((block_key, others), (block_value, others), (context_key, ~seen), (context_value, ~seen)):
        tensor[torch.from_numpy(rows)] = 1e3
    after = attend(query, block_key, block_value, context_key, context_value, layout, None)
    assert torch.equal(after[watched], before[watched])
    assert not torch.equal(after[watched - 1], before[watched - 1])


def test_choice_of_back_end():
    assert attention_backend("auto", CPU) is attend_dense
    assert attention_backend("sdpa", CPU) is attend_dense
    for name in ("flex_attention", "flash_attention_2"):
        with pytest.raises(RefusedInput, match="use"):
            attention_backend(name, CPU)
