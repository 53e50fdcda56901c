"""The three tensors a drafter takes from its target, read alone: input embedding, output head, final norm.

Only their bytes are read from the safetensors files (one file, or many with an index), so a worker that trains the drafter of
a 54 GB target reads 5 GB and never builds the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dflash.errors import RefusedInput
from dflash.model.facts import TargetFacts, target_facts
from dflash.model.families import family_of
from dflash.model.weight_files import read_tensor
from dflash.model.weight_headers import language_prefix, stored_tensors


@dataclass(frozen=True)
class SharedWeights:
    """The frozen tensors a drafter shares with its target, as stored (often bfloat16).

    Attributes:
        embedding: [vocabulary, hidden], without the family's scale (`TargetFacts.embedding_scale`).
        head: [vocabulary, hidden]; logits are hidden @ head.T. The embedding itself when the target ties them.
        final_norm: [hidden], float32; the factor of the target's last RMSNorm, in the `x * weight` convention.
    """

    embedding: Tensor
    head: Tensor
    final_norm: Tensor


def load_shared_weights(path: str | Path) -> SharedWeights:
    """Read embedding, head and final norm of a target folder (or a shipped target, by name).

    Raises:
        RefusedInput: no safetensors, a tensor is missing, truncated or of another shape than config.json says.
    """
    facts = target_facts(path)
    files = {name: stored.file for name, stored in stored_tensors(facts.folder).items()}
    prefix = language_prefix(files, facts.folder)
    table = (facts.vocab_size, facts.hidden_size)
    embedding = _read(files, f"{prefix}embed_tokens.weight", table)
    head = embedding if facts.tie_word_embeddings else _read_head(files, facts, table)
    norm = _read(files, f"{prefix}norm.weight", (facts.hidden_size,)).float()
    return SharedWeights(embedding, head, norm + family_of(facts.family).norm_offset)


def _read_head(files: dict[str, Path], facts: TargetFacts, table: tuple[int, int]) -> Tensor:
    name = next(
        (name for name in ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight") if name in files), None
    )
    if name is None:
        raise RefusedInput(
            f"{facts.folder}: no lm_head.weight, and config.json says tie_word_embeddings is false. If the head is the embedding "
            "table, set tie_word_embeddings to true there; otherwise fetch the missing file of the target"
        )
    return _read(files, name, table)


def _read(files: dict[str, Path], name: str, shape: tuple[int, ...]) -> Tensor:
    if name not in files:
        raise RefusedInput(f"the target has no tensor {name}; its folder is not complete")
    place = files[name]
    tensor = read_tensor(place, name)
    if tuple(tensor.shape) != shape:
        raise RefusedInput(f"{place}: {name} is {tuple(tensor.shape)}, config.json says {shape}; the two don't belong together")
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise RefusedInput(
            f"{place}: {name} is stored as {kind}, and a drafter can't share a quantised table; take unquantised weights"
        )
    return tensor
