"""Held-out acceptance in training against real decoding through the exported files; and that training doesn't notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dflash.data.rows import TokenRows
from dflash.errors import RefusedInput
from dflash.model.results import merged_rounds
from dflash.model.target import FrozenTarget
from dflash.model.trainer import DrafterTrainer
from dflash.pipeline.train import drive_run
from dflash.runs.folder import RunFolder, create_run
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.checkpoint import FoundDrafter, load_drafter
from dflash.serving.decoding import DecodingSettings, decode
from dflash.serving.export import export_drafter
from dflash.serving.held_out import HeldOutDecoding, rounds_of
from dflash.telemetry.reader import read_events
from tests.model.tiny import tiny_config

TOKENS = 24


def rows_of(prompts: list[np.ndarray], answers: list[tuple[int, ...]]) -> TokenRows:
    """Conversations of a prompt and an answer; the answers are supervised."""
    parts = [(len(prompt), len(answer)) for prompt, answer in zip(prompts, answers, strict=True)]
    flat = [np.concatenate([prompt, answer]) for prompt, answer in zip(prompts, answers, strict=True)]
    mask = np.concatenate([np.repeat([False, True], part) for part in parts])
    offsets = np.concatenate([[0], np.cumsum([sum(part) for part in parts])]).astype(np.int64)
    return TokenRows(np.arange(len(parts)), np.concatenate(flat).astype(np.int32), mask, offsets)


@pytest.mark.parametrize("family", ["qwen3", "sliding"])
def test_the_walk_over_the_targets_own_answers_is_real_decoding_through_the_exported_files(
    family: str, target_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = target_folder(family)
    config = tiny_config(folder, evaluation={"decode_tokens": TOKENS}, optim={"lr": 3e-3})
    draws = np.random.default_rng(3)
    prompts = [draws.integers(0, 90, size).astype(np.int32) for size in (5, 9, 14, 3, 7, 11)]
    target = DecodingTarget.load(folder, layer_ids=(0, 2))
    settings = DecodingSettings(TOKENS)
    plain = [decode(target, torch.from_numpy(prompt).long(), settings).tokens for prompt in prompts]
    rows = rows_of(prompts, plain)
    frozen = FrozenTarget.load(folder, layer_ids=(0, 2), device="cpu", dtype="float32", attention="sdpa", feature_dtype="float32")
    features = frozen.features(rows, packed=False)
    trainer = DrafterTrainer(config)
    for epoch in range(25):
        trainer.accumulate(rows, features, epoch=epoch, anchors=16)
        trainer.apply_step(3e-3)
    for parameter in trainer.drafter.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()  # as it is exported, so that both have the same weights

    walked = trainer.evaluate(rows, features).walk
    trainer.save_weights(tmp_path / "checkpoint")
    exported = export_drafter(FoundDrafter(tmp_path / "checkpoint"), tmp_path / "exported").out
    drafter = load_drafter(exported)
    decoded = merged_rounds([rounds_of(decode(target, torch.from_numpy(prompt).long(), settings, drafter)) for prompt in prompts])
    assert walked is not None
    assert decoded is not None
    assert 1.3 < walked.acceptance_length < 4.9
    assert round(walked.acceptance_length, 3) == round(decoded.acceptance_length, 3)
    assert walked == decoded


def weights(run: RunFolder) -> dict[str, np.ndarray]:
    newest = sorted(run.checkpoints.glob("step-*"))[-1]
    return {**load_file(newest / "model.safetensors"), **load_file(newest / "optimizer.safetensors")}


def test_training_is_the_same_to_the_bit_with_and_without_decoding(tmp_path: Path, small_config: Callable[..., object]) -> None:
    held = ("data.holdout=4", "evaluation.every=3", "optim.max_steps=5")
    decoding = ("evaluation.decode_every=2", "evaluation.decode_tokens=6", "evaluation.decode_prompts=3")
    runs = [create_run(tmp_path, "plain", small_config(*held)), create_run(tmp_path, "decoded", small_config(*held, *decoding))]
    random_states = []
    for run in runs:
        torch.manual_seed(0)
        drive_run(run, lambda line: None, HeldOutDecoding)
        random_states.append(torch.random.get_rng_state())
    assert torch.equal(*random_states)
    plain, decoded = (weights(run) for run in runs)
    assert all(np.array_equal(tensor, decoded[name]) for name, tensor in plain.items())

    events = read_events(runs[1].events, "evaluation")
    assert [event["step"] for event in events if "decode_rounds" in event] == [2, 4, 5]
    assert [event["step"] for event in events if "loss" in event] == [0, 3, 5]
    for event in events:
        if "decode_rounds" in event:
            assert event["decoded_prompts"] == 3
            assert event["decode_acceptance_length"] == event["decoded_tokens"] / event["decode_rounds"] >= 1
            assert 0 < event["decoding_seconds"] <= event["evaluation_seconds"]
    (kept,) = [event for event in read_events(runs[1].events, "checkpoint") if event["best"]][-1:]
    assert kept["chosen_by"] == "decoding"
    drafter = read_events(runs[1].events, "sample")[-1]["workers"][-1]
    busy = sum(event.get("decoding_seconds", 0) + event.get("drafter_seconds", 0) for event in events)
    assert busy - 1e-3 <= drafter["evaluation_seconds"] <= sum(event["evaluation_seconds"] for event in events) + 1e-3


def test_a_run_that_is_to_decode_with_nothing_to_decode_with_is_refused(
    tmp_path: Path, small_config: Callable[..., object]
) -> None:
    run = create_run(tmp_path, "run", small_config("evaluation.decode_every=2"))
    with pytest.raises(RefusedInput, match=r"evaluation\.decode_every is set.*make_decoder"):
        drive_run(run, lambda line: None)
