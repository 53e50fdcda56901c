"""An independent reading of the exported folder drafts the same, and decodes the same with the same tokens kept.

Each target is one of a family, tiny and random. Its drafter is trained for some steps on the target's own answers, so that drafts are kept,
and exported. Then the folder is all that the plain implementation in `reference.py` gets.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from dflash.data.rows import TokenRows
from dflash.model.attention import attention_backend
from dflash.model.drafter import Drafter
from dflash.model.facts import target_facts
from dflash.model.shape import DrafterShape
from dflash.model.target import FrozenTarget
from dflash.model.trainer import DrafterTrainer
from dflash.model.weight_files import write_tensors
from dflash.serving.cached_drafter import DraftSequence
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.checkpoint import FoundDrafter, load_drafter
from dflash.serving.decoding import DecodingSettings, decode
from dflash.serving.export import export_drafter
from tests.model.tiny import DFLASH2, VOCABULARY, tiny_config
from tests.serving.conftest import FAMILIES, random_drafter
from tests.serving.reference import PlainDrafter, plain_decode

PROMPT = 9
ANSWER = 26


def answered(model: Any, conversations: int) -> TokenRows:
    """Random prompts with the target's own greedy answers."""
    prompts = torch.randint(0, VOCABULARY - 1, (conversations, PROMPT), generator=torch.Generator().manual_seed(7))
    options = {"attention_mask": torch.ones_like(prompts), "eos_token_id": None, "pad_token_id": 0}
    tokens = model.generate(prompts, do_sample=False, max_new_tokens=ANSWER, **options)
    mask = np.tile(np.arange(PROMPT + ANSWER) >= PROMPT, conversations)
    offsets = np.arange(conversations + 1) * (PROMPT + ANSWER)
    return TokenRows(np.arange(conversations), tokens.flatten().numpy().astype(np.int32), mask, offsets)


def trained(folder: Path, rows: TokenRows, settings: dict[str, Any], steps: int) -> DrafterTrainer:
    trainer = DrafterTrainer(tiny_config(folder, {"anchors": 64, **settings}, optim={"seed": 1}))
    target = FrozenTarget.load(folder, layer_ids=trainer.shape.target_layer_ids, feature_dtype="float32")
    features = target.features(rows, packed=False)
    for step in range(steps):
        trainer.accumulate(rows, features, epoch=step)
        assert not trainer.apply_step(4e-3).skipped
    return trainer


def exported(trainer: DrafterTrainer, folder: Path) -> Path:
    trainer.save(folder / "checkpoint")
    return export_drafter(FoundDrafter(folder / "checkpoint"), folder / "out").out


@pytest.mark.parametrize(
    ("family", "architecture"), [*((family, {}) for family in FAMILIES), ("qwen3", DFLASH2), ("gemma2", DFLASH2)]
)
def test_a_drafter_of_each_family_decodes_as_the_plain_implementation_does(
    family: str, architecture: dict[str, Any], tmp_path: Path, target_folder: Callable[[str], Path]
) -> None:
    folder = target_folder(family)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = answered(model, 2)
    trainer = trained(folder, rows, architecture, steps=45)
    out = exported(trainer, tmp_path)
    target = DecodingTarget.load(folder, layer_ids=trainer.shape.target_layer_ids)
    target.end_tokens = frozenset()
    kept_in_all = 0
    for row in range(len(rows)):
        prompt = torch.from_numpy(rows.tokens[rows.offsets[row] : rows.offsets[row] + PROMPT]).long()
        answer = decode(target, prompt, DecodingSettings(ANSWER, draft_tokens=trainer.shape.block_size - 1), load_drafter(out))
        tokens, kept = plain_decode(model, PlainDrafter(out), prompt, ANSWER)
        assert list(answer.tokens) == tokens == rows.tokens[rows.offsets[row] + PROMPT : rows.offsets[row + 1]].tolist()
        assert [block.accepted for block in answer.blocks] == kept
        kept_in_all += sum(kept)
    assert kept_in_all > 6


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
    "yarn, own attention factor": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.4,
    },
}
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"is_causal": True},
    "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
    "all sliding and causal": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 7, "is_causal": True},
    "block of 4, one layer": {"block_size": 4, "layers": 1},
    "block of 16, 3 layers, sliding": {
        "block_size": 16,
        "layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 17,
    },
    "block of 32, 8 layers": {"block_size": 32, "layers": 8},
    "own heads": {"heads": 6, "kv_heads": 3, "head_dim": 8, "intermediate_size": 20},
    "dflash2": DFLASH2,
    "dflash2, sliding and causal": {
        **DFLASH2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "is_causal": True,
    },
    **{name: {"rope": rope} for name, rope in ROPES.items()},
}


@pytest.mark.parametrize("way", WAYS)
def test_drafts_equal_the_plain_implementations_cached_and_not(
    way: str, tmp_path: Path, target_folder: Callable[[str], Path]
) -> None:
    settings = dict(WAYS[way])
    rope = settings.pop("rope", None)
    folder = target_folder("qwen3") if rope is None else target_folder_with(target_folder("qwen3"), rope, tmp_path)
    made = random_drafter(folder, settings)
    out = export_random(made, tmp_path)
    drafter, plain = load_drafter(out), PlainDrafter(out)
    remembering = PlainDrafter(out)
    target = DecodingTarget.load(folder, layer_ids=drafter.shape.target_layer_ids)
    features = torch.randn(60, drafter.shape.feature_size, generator=torch.Generator().manual_seed(0))
    drafts = DraftSequence(drafter, target, capacity=60 + drafter.shape.block_size)
    known = 0
    for start in (3, 4, 20, 57):
        drafts.extend(features[known:start])
        block = torch.tensor([start, *[drafter.shape.mask_token_id] * (drafter.shape.block_size - 1)])
        hidden = plain.hidden(features[:start], start, block, target.embedding)
        again = remembering.hidden(features[known:start], start, block, target.embedding, remember=True)
        torch.testing.assert_close(again, hidden)
        expected = plain.logits(hidden[1:], target.head)
        torch.testing.assert_close(drafts.logits(start).double(), expected, atol=2e-4, rtol=2e-4)
        states = drafts.states(start, drafter.shape.block_size - 1)
        assert drafts.draft(states, start, 0.0, torch.Generator()).tokens.tolist() == plain.propose(hidden[1:], start, target.head)
        known = start


def target_folder_with(folder: Path, rope: dict[str, Any], tmp_path: Path) -> Path:
    """The same weights under a config with another rope."""
    changed = Path(shutil.copytree(folder, tmp_path / "target"))
    config = json.loads((changed / "config.json").read_text())
    config["rope_parameters"] = {"rope_theta": 1e4, **rope}
    (changed / "config.json").write_text(json.dumps(config))
    assert target_facts(changed).rope.type == rope["rope_type"]
    return changed


def export_random(made: Drafter, tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    made.shape.write(tmp_path / "checkpoint/config.json")
    write_tensors(tmp_path / "checkpoint/model.safetensors", dict(made.named_parameters()), {"format": "pt"})
    return export_drafter(FoundDrafter(tmp_path / "checkpoint"), tmp_path / "out").out


def test_dflash2_starts_as_dflash_and_learns_from_there(tmp_path: Path, target_folder: Callable[[str], Path]) -> None:
    folder = target_folder("qwen3")
    rows = answered(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), 2)
    trainers = [DrafterTrainer(tiny_config(folder, {"anchors": 64, **settings})) for settings in ({}, DFLASH2)]
    features = torch.randn(len(rows.tokens), trainers[0].shape.feature_size, generator=torch.Generator().manual_seed(0))
    outcomes = [trainer.accumulate(rows, features, epoch=0, with_metrics=True) for trainer in trainers]
    assert outcomes[1].loss_sum == pytest.approx(outcomes[0].loss_sum, rel=1e-6)
    assert outcomes[1].metrics == outcomes[0].metrics
    plain, two = (dict(trainer.drafter.named_parameters()) for trainer in trainers)
    assert all(torch.equal(two[name], plain[name]) for name in plain)
    assert len(two) == len(plain) + 2 * 4 + 3
    for name in two.keys() - plain.keys():
        gradient = two[name].grad
        assert gradient is not None
        moves = name not in ("candidate_selector.predecessor_codebook", "candidate_selector.hidden_projection.weight")
        assert bool(gradient.abs().sum() > 0) == moves, name  # these two wait until the successors have left 0
    before = outcomes[1].loss_sum
    for step in range(30):
        trainers[1].accumulate(rows, features, epoch=step)
        trainers[1].apply_step(4e-3)
    assert trainers[1].accumulate(rows, features, epoch=0).loss_sum < 0.8 * before
    shape = DrafterShape.resolve(trainers[1].config.drafter, target_facts(folder))
    assert Drafter(shape, attention_backend("sdpa", torch.device("cpu"))).state_dict().keys() == two.keys()
