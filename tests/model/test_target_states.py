"""Objectives that compare with the target: its states travel with the features, and its logits come out as its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from dflash.model.anchors import draw_anchors
from dflash.model.blocks import lay_out
from dflash.model.capture import Capture, bytes_per_token
from dflash.model.results import merged
from dflash.model.target import FrozenTarget
from dflash.model.trainer import DrafterTrainer
from tests.model.tiny import random_rows, tiny_config

LENGTHS = [40, 9, 64, 27, 2, 33]
COMPARING = ["kl", "total_variation", "acceptance"]


def trained(config, batches, **options):
    """A trainer, its results and the gradient after these batches of rows with the target's features."""
    trainer = DrafterTrainer(config)
    target = FrozenTarget.load(config.target.path, layer_ids=trainer.capture.layer_ids, feature_dtype=config.target.feature_dtype)
    results = [trainer.accumulate(rows, target.features(rows, packed=False), epoch=0, **options) for rows in batches]
    return trainer, merged(results), trainer._window.clone()


def with_drafter(config, **changes):
    return config.model_copy(update={"drafter": config.drafter.model_copy(update=changes)})


@pytest.mark.parametrize("layer_ids", [[0, 2], [3, 1]], ids=["last-layer-added", "last-layer-read-anyway"])
@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2"])
def test_the_targets_logits_are_those_it_gives_itself(family, layer_ids, target_folder):
    folder = target_folder(family)
    trainer = DrafterTrainer(tiny_config(folder, {"loss": {"kl": 1.0}, "target_layer_ids": layer_ids}))
    rows = random_rows(LENGTHS)
    target = FrozenTarget.load(folder, layer_ids=trainer.capture.layer_ids, feature_dtype="float32")
    anchors = draw_anchors(rows, budget=6, seed=0, epoch=0)
    blocks = lay_out(rows, anchors, block_size=5, gamma=2.0, is_causal=False)
    states = trainer._target_states(target.features(rows, packed=True), blocks)
    raw = states.states[states.of_slot] @ trainer._head.T
    cap = trainer.shape.final_logit_softcap
    found = raw if cap is None else cap * torch.tanh(raw / cap)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = []
    for row in range(len(rows)):
        span = slice(rows.offsets[row], rows.offsets[row + 1])
        with torch.no_grad():
            expected.append(model(torch.from_numpy(rows.tokens[span].astype(np.int64))[None]).logits[0])
    torch.testing.assert_close(found, torch.cat(expected)[blocks.label_tokens - 1], rtol=1e-4, atol=1e-4)
    assert trainer.shape.feature_size == 2 * 32
    assert trainer.capture.width == (3 if layer_ids == [0, 2] else 2) * 32
    assert bytes_per_token(trainer.config, trainer.shape) == trainer.capture.width * 4


def test_an_objective_of_the_data_alone_captures_what_the_drafter_reads(target_folder):
    config = tiny_config(target_folder("qwen3"), {"loss": {"cross_entropy": 1.0, "dpace": 0.5, "kl": 0.0}})
    shape = DrafterTrainer(config).shape
    assert Capture.of(config, shape) == Capture(shape.target_layer_ids, shape.feature_size, None)


@pytest.mark.parametrize("loss", [*COMPARING, "dpace"])
def test_a_window_is_the_same_however_its_batches_are_cut_into_passes_and_batches(loss, target_folder):
    config = tiny_config(target_folder("qwen3"), {"loss": {loss: 1.0, "cross_entropy": 0.2}, "noise": 0.1})
    rows = random_rows(LENGTHS)
    _, whole, expected = trained(config, [rows], with_metrics=True)
    cut = [
        (with_drafter(config, positions_at_once=7), [rows]),
        (with_drafter(config, logits_chunk=97 * 11), [rows]),
        (config, [rows.take([4, 0]), rows.take([5, 3, 1, 2])]),
    ]
    for settings, batches in cut:
        _, result, gradient = trained(settings, batches, with_metrics=True)
        assert result.loss_sum == pytest.approx(whole.loss_sum, rel=1e-5)
        assert result.cross_entropy == pytest.approx(whole.cross_entropy, rel=1e-5)
        assert replace(result, loss_sum=0, weight_sum=0, seconds=0, cross_entropy_sum=0) == replace(
            whole, loss_sum=0, weight_sum=0, seconds=0, cross_entropy_sum=0
        )
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=2e-5 * float(expected[:-2].abs().max()))


def test_replicas_take_the_step_one_would_take(target_folder):
    config = tiny_config(target_folder("qwen3"), {"loss": {"acceptance": 0.5, "kl": 0.5}})
    batches = [random_rows(LENGTHS, seed=seed) for seed in range(3)]
    single, _, _ = trained(config, batches)
    alone = single.apply_step(1e-3)
    replicas = [trained(config, part)[0] for part in (batches[:1], batches[1:])]
    total = replicas[0]._window + replicas[1]._window
    for replica in replicas:
        outcome = replica.apply_step(1e-3, lambda flat: flat.copy_(total))
        assert outcome.loss == pytest.approx(alone.loss, rel=1e-5)
        for mine, theirs in zip(replica.drafter.parameters(), single.drafter.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", [*COMPARING, "dpace"])
def test_a_few_steps_lower_the_objective(loss, target_folder):
    config = tiny_config(target_folder("qwen3"), {"loss": {loss: 1.0}})
    rows = random_rows(LENGTHS)
    trainer = DrafterTrainer(config)
    target = FrozenTarget.load(config.target.path, layer_ids=trainer.capture.layer_ids)
    features = target.features(rows, packed=False)
    losses = []
    for _ in range(12):
        trainer.accumulate(rows, features, epoch=0)
        losses.append(trainer.apply_step(3e-3).loss)
    held_out = trainer.evaluate(rows, features)
    assert losses[-1] < losses[0]
    assert held_out.cross_entropy is not None
    assert (held_out.loss == held_out.cross_entropy) is (loss == "cross_entropy")


def test_features_without_the_states_the_objective_needs_are_refused(target_folder):
    trainer = DrafterTrainer(tiny_config(target_folder("qwen3"), {"loss": {"kl": 1.0}}))
    rows = random_rows([9])
    with pytest.raises(ValueError, match="features of 64 numbers a token, 96 are needed"):
        trainer.accumulate(rows, torch.zeros(9, 64), epoch=0)
