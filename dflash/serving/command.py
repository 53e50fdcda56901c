"""What `dflash eval` and `dflash generate` do: find drafter and target, hold them against each other, decode, sum up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dflash.data.dataset import TokenDataset
from dflash.errors import RefusedInput
from dflash.model.attention import attention_backend
from dflash.model.drafter import Drafter
from dflash.model.facts import TargetFacts, target_facts
from dflash.model.shape import DrafterShape
from dflash.model.shared_weights import load_shared_weights
from dflash.pipeline.stages import pick_device
from dflash.serving.acceptance import Acceptance, compare_decoding, decode_all, summarise
from dflash.serving.cached_target import DecodingTarget
from dflash.serving.checkpoint import FoundDrafter, load_drafter, refuse_misfit
from dflash.serving.decoding import DecodingSettings
from dflash.serving.prompts import Prompt, evaluation_samples, take_prompts


@dataclass(frozen=True)
class Evaluation:
    """Acceptance of a drafter on a data set's prompts, and that of an untrained one of the same shape where it was asked for."""

    checkpoint: Path
    step: int | None
    target: str
    data: str
    trained: Acceptance
    untrained: Acceptance | None


@dataclass(frozen=True)
class Generated:
    """An answer in words, and what decoding it took."""

    text: str
    acceptance: Acceptance


def evaluate_drafter(
    found: FoundDrafter,
    *,
    target: str | None,
    data: str | None,
    settings: DecodingSettings,
    limit: int,
    warn: Callable[[str], None],
    untrained: bool = False,
    device: str = "auto",
    progress: bool = False,
) -> Evaluation:
    """Decode the prompts of a data set with a drafter and without.

    Args:
        found: see `find_drafter`.
        target: folder or shipped name; None: the one it was trained for.
        data: a prepared data set; None: the one it was trained on. Of that one, only what was held out is used.
        settings: how answers are decoded.
        limit: prompts, at most.
        warn: told what the reader of the figures should know.
        untrained: whether a drafter with first weights is measured too.
        device: auto, cpu or cuda.
        progress: whether a bar is shown on standard error.

    Raises:
        RefusedInput: drafter, target and data don't belong together, or one of them is damaged.
    """
    name, facts, shape = _matched(found, target)
    path = data or found.origin.get("data_path")
    if not path:
        raise RefusedInput(f"{found.folder}: doesn't say what it was trained on; give --data")
    dataset = TokenDataset.open(Path(path))
    dataset.check_tokenizer(facts.folder)
    dataset.check_target(facts.vocab_size, name=name)
    prompts = take_prompts(dataset, evaluation_samples(dataset, found, warn), limit)
    place = pick_device(device)
    drafters = {"trained": load_drafter(found.folder, place)}
    if untrained:
        drafters["untrained"] = untrained_drafter(shape, name, place)
    loaded = DecodingTarget.load(
        name, layer_ids=shape.target_layer_ids, device=place, dequantise=bool(found.origin.get("dequantise"))
    )
    measured = compare_decoding(loaded, drafters, prompts, settings, progress=progress)
    return Evaluation(found.folder, found.origin.get("step"), name, str(path), measured["trained"], measured.get("untrained"))


def untrained_drafter(shape: DrafterShape, target: str, device: torch.device, seed: int = 0) -> Drafter:
    """A drafter with the weights training begins from."""
    drafter = Drafter(shape, attention_backend("sdpa", device))
    drafter.initialise(seed, load_shared_weights(target).final_norm)
    return drafter.to(device).eval().requires_grad_(False)


def generate_text(
    found: FoundDrafter,
    prompt: str,
    *,
    target: str | None,
    settings: DecodingSettings,
    raw: bool = False,
    device: str = "auto",
) -> Generated:
    """Answer a prompt with a drafter, and once more without for comparison.

    Args:
        found: see `find_drafter`.
        prompt: what the user says.
        target: folder or shipped name; None: the one it was trained for.
        settings: how the answer is decoded.
        raw: whether the prompt is taken as it is, without the target's chat template.
        device: auto, cpu or cuda.

    Raises:
        RefusedInput: drafter and target don't belong together, one is damaged, or the target has no tokenizer.
    """
    name, facts, shape = _matched(found, target)
    place = pick_device(device)
    tokenizer = _Tokenizer(facts.folder)
    prompts = [Prompt(0, np.asarray(tokenizer.encode(prompt, raw), dtype=np.int32))]
    loaded = DecodingTarget.load(
        name, layer_ids=shape.target_layer_ids, device=place, dequantise=bool(found.origin.get("dequantise"))
    )
    plain = decode_all(loaded, prompts, settings, None, _nothing)
    drafted = decode_all(loaded, prompts, settings, load_drafter(found.folder, place), _nothing)
    text = tokenizer.decode([token for token in drafted[0].tokens if token not in loaded.end_tokens])
    return Generated(text, summarise(loaded, prompts, plain, drafted, settings))


def _matched(found: FoundDrafter, target: str | None) -> tuple[str, TargetFacts, DrafterShape]:
    """The target's name and sizes and the drafter's shape, after they were held against each other."""
    name = found.target(target)
    facts, shape = target_facts(name), found.shape()
    refuse_misfit(shape, facts, found.folder)
    return name, facts, shape


class _Tokenizer:
    """A target's tokenizer with its chat template."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # whatever a broken folder makes transformers raise, it is the folder that is to be mended
            first_line = str(error).strip().split("\n", 1)[0]
            raise RefusedInput(f"{folder}: no tokenizer could be loaded from there ({first_line})") from error

    def encode(self, prompt: str, raw: bool) -> list[int]:
        if raw or not self._tokenizer.chat_template:
            ids = self._tokenizer(prompt)["input_ids"]
        else:
            messages = [{"role": "user", "content": prompt}]
            ids = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return [int(token) for token in ids]

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))


def _nothing() -> None:
    """No bar to move on."""
