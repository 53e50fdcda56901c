from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.data.dataset import TokenDataset
from dflash.data.options import PrepareOptions
from dflash.data.prepare import prepare
from dflash.errors import RefusedInput
from dflash.pipeline.plans import split_holdout
from dflash.serving.acceptance import compare_decoding, summarise
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.checkpoint import FoundDrafter
from dflash.serving.decoding import Decoded, DecodingSettings, DraftedBlock
from dflash.serving.prompts import Prompt, evaluation_samples, take_prompts
from tests.serving.conftest import random_drafter


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("data")
    rows = [{"input_ids": list(range(1, 20)), "loss_mask": [0] * (n % 4) + [1] * (19 - n % 4)} for n in range(12)]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    prepare([folder / "rows.jsonl"], "qwen3-tiny", folder / "out", options=PrepareOptions(workers=1))
    return TokenDataset.open(folder / "out")


def test_a_prompt_ends_before_the_first_supervised_token(dataset: TokenDataset) -> None:
    prompts = take_prompts(dataset, np.arange(12), limit=4)
    assert [prompt.sample_id for prompt in prompts] == [1, 2, 3, 5]  # rows 0 and 4 begin with a supervised token
    assert [prompt.tokens.tolist() for prompt in prompts] == [[1], [1, 2], [1, 2, 3], [1]]
    with pytest.raises(RefusedInput, match="none of 1 conversations"):
        take_prompts(dataset, np.array([0]), limit=4)


def test_only_held_out_samples_of_the_drafters_own_data_are_used(dataset: TokenDataset) -> None:
    said: list[str] = []
    own = FoundDrafter(Path(), {"data": dataset.fingerprint, "holdout": 3, "seed": 7})
    assert evaluation_samples(dataset, own, said.append).tolist() == split_holdout(12, 3, 7)[1].tolist()
    other = FoundDrafter(Path(), {"data": "another", "holdout": 3, "seed": 7})
    assert len(evaluation_samples(dataset, other, said.append)) == 12
    assert not said
    for origin in ({}, {"data": dataset.fingerprint, "holdout": 0}):
        assert len(evaluation_samples(dataset, FoundDrafter(Path(), origin), said.append)) == 12
    assert len(said) == 2


def test_the_figures_are_the_ones_defined(target_folder: Callable[[str], Path]) -> None:
    target = DecodingTarget.load(target_folder("qwen3"), layer_ids=(0, 2))
    prompts = [Prompt(4, np.array([1, 2], np.int32))]
    plain = [Decoded((10, 11, 12, 13, 14, 15), (), 6, 2.0)]
    blocks = (DraftedBlock(1, (11, 12, 99), 2), DraftedBlock(4, (88, 15, 77), 0), DraftedBlock(5, (15, 1, 1), 1))
    drafted = [Decoded((10, 11, 12, 13, 14, 15), blocks, 4, 1.0)]
    got = summarise(target, prompts, plain, drafted, DecodingSettings())
    assert got.acceptance_length == pytest.approx(5 / 3)
    assert got.accuracy_by_slot == (2 / 3, 1.0, 0.0)  # slots past the answer's end are not counted
    assert got.accepted_to_slot == (2 / 3, 1 / 3, 0.0)
    assert got.target_calls_saved == pytest.approx(1 - 4 / 6)
    assert (got.tokens_per_second, got.plain_tokens_per_second, got.speedup) == (6.0, 3.0, 2.0)
    assert got.lossless is True

    other = [Decoded((10, 11, 12, 50), blocks, 4, 1.0)]
    got = summarise(target, prompts, plain, other, DecodingSettings())
    assert got.lossless is False
    logits = target.model(input_ids=torch.tensor([[1, 2, 10, 11, 12]])).logits[0, -1].topk(2).values
    assert (got.differences[0].sample_id, got.differences[0].at) == (4, 3)
    assert got.differences[0].logit_gap == pytest.approx(float(logits[0] - logits[1]), abs=1e-5)
    assert summarise(target, prompts, plain, other, DecodingSettings(temperature=1.0)).lossless is None


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_several_drafters_are_measured_on_the_same_prompts(temperature: float, target_folder: Callable[[str], Path]) -> None:
    folder = target_folder("qwen3")
    target = DecodingTarget.load(folder, layer_ids=(0, 2))
    prompts = [Prompt(n, np.arange(1, 5 + n, dtype=np.int32)) for n in range(3)]
    drafters = {"one": random_drafter(folder, seed=1), "other": random_drafter(folder, seed=2)}
    measured = compare_decoding(target, drafters, prompts, DecodingSettings(12, temperature), progress=False)
    assert list(measured) == ["one", "other"]
    for each in measured.values():
        assert each.prompts == 3
        assert each.tokens == 36
        assert 1.0 <= each.acceptance_length < 5
        assert each.lossless is (None if temperature else True)
