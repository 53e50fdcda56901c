"""The two caches of decoding give what a pass without a cache gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.data.rows import TokenRows
from dflash.errors import RefusedInput
from dflash.model.anchors import Anchors
from dflash.model.blocks import lay_out
from dflash.model.drafter import block_input
from dflash.model.target import FrozenTarget
from dflash.serving.cached_drafter import DraftSequence
from dflash.serving.cached_target import DecodingTarget
from tests.model.tiny import random_rows
from tests.serving.conftest import FAMILIES, random_drafter

CAPTURED = (0, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_features_after_refusals_equal_those_of_one_pass(family: str, target_folder: Callable[[str], Path]) -> None:
    target = DecodingTarget.load(target_folder(family), layer_ids=CAPTURED)
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, 96, 60))
    sequence = target.sequence()
    kept = 7
    first = sequence.begin(tokens[:kept])
    logits, features = [first.logits[-1:]], [first.features]
    while kept < 50:
        block = tokens[kept : kept + 5].clone()
        good = int(rng.integers(1, 6))
        block[good:] = (block[good:] + 1) % 96
        reading = sequence.read(block)
        sequence.keep(good)
        logits.append(reading.logits[:good])
        features.append(reading.features[:good])
        kept += good
    whole = target.model(input_ids=tokens[None, :kept]).logits[0]
    torch.testing.assert_close(torch.cat(logits), whole[6:kept], atol=2e-4, rtol=1e-4)
    rows = TokenRows(np.zeros(1, np.int64), tokens[:kept].numpy().astype(np.int32), np.ones(kept, bool), np.array([0, kept]))
    captured = FrozenTarget.load(target_folder(family), layer_ids=CAPTURED, feature_dtype="float32").features(rows, packed=False)
    torch.testing.assert_close(torch.cat(features), captured, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_causal": True},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
    ],
)
def test_drafts_from_the_cache_equal_the_training_pass(changes: dict, target_folder: Callable[[str], Path]) -> None:
    folder = target_folder("qwen3")
    target = DecodingTarget.load(folder, layer_ids=CAPTURED)
    drafter = random_drafter(folder, changes)
    shape = drafter.shape
    rows = random_rows([40], supervised=1.0)
    features = torch.randn(40, shape.feature_size, generator=torch.Generator().manual_seed(1))
    drafts = DraftSequence(drafter, target, capacity=40)
    for anchor in (1, 4, 5, 17, 30):
        drafts.extend(features[drafts.length : anchor])
        got = drafts.logits(int(rows.tokens[anchor]))
        blocks = lay_out(
            rows, Anchors(np.zeros(1, np.int64), np.array([anchor])), block_size=5, gamma=4.0, is_causal=shape.is_causal
        )
        hidden = drafter(block_input(blocks, features[blocks.context_tokens], target.embedding, shape.mask_token_id))
        torch.testing.assert_close(got, hidden @ target.head.T, atol=1e-4, rtol=1e-4)


def test_a_target_without_its_head_is_refused_and_not_filled_with_noise(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from tests.model.tiny import save_target

    folder = save_target(tmp_path / "headless", "qwen3")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(RefusedInput, match=r"lm_head\.weight.*tie_word_embeddings"):
        DecodingTarget.load(folder, layer_ids=CAPTURED)


def test_a_target_cut_short_is_refused(tmp_path: Path) -> None:
    from tests.model.tiny import save_target

    folder = save_target(tmp_path / "short", "qwen3")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RefusedInput, match="cut short"):
        DecodingTarget.load(folder, layer_ids=CAPTURED)
