"""Bytes a target and a drafter take, told from config.json and file headers: no tensor is read, no torch is loaded.

Exact: weights, gradients, AdamW's moments, tables, logits, features. Estimated (and said so): what a forward pass keeps besides.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.errors import RefusedInput
from dflash.model.facts import TargetFacts, read_json
from dflash.model.shape import DrafterShape

_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")
_NOT_LOADED = re.compile(r"lm_head|visual|vision|(?:^|\.)mtp")  # the head; towers and extra heads of multimodal wrappers
_LONGEST_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True)
class DrafterFootprint:
    """Bytes of one drafter replica while it trains.

    Attributes:
        parameters: numbers in its weights.
        weights, gradients, moments: float32; the moments are AdamW's two.
        tables: the target's embedding and head (once when tied).
        logits: of the largest chunk of the loss.
        activations: estimate of what a pass over `positions_at_once` drafted positions keeps for its backward.
    """

    parameters: int
    weights: int
    gradients: int
    moments: int
    tables: int
    logits: int
    activations: int

    @property
    def certain(self) -> int:
        """What is needed without the estimate."""
        return self.weights + self.gradients + self.moments + self.tables + self.logits


def drafter_parameters(shape: DrafterShape) -> int:
    """Numbers in the weights of a drafter of this shape."""
    hidden, attention = shape.hidden_size, shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    layer = hidden * attention + 2 * shape.head_dim + 3 * hidden * shape.intermediate_size + 2 * hidden
    return shape.feature_size * hidden + 2 * hidden + shape.layers * layer


def checkpoint_bytes(shape: DrafterShape) -> int:
    """Bytes of one checkpoint on disk: weights and AdamW's moments, float32."""
    return 12 * drafter_parameters(shape)


def drafter_footprint(
    shape: DrafterShape, *, tied: bool, element_bytes: int, logits_chunk: int, positions_at_once: int, context_tokens: int
) -> DrafterFootprint:
    """Bytes of one drafter replica.

    Args:
        shape: its sizes.
        tied: whether the target's head is its embedding table.
        element_bytes: of the matrix products and of the tables: 2 (bfloat16) or 4.
        logits_chunk: logits computed at a time, at most.
        positions_at_once: drafted positions of a pass, at most.
        context_tokens: tokens of the largest batch.
    """
    parameters = drafter_parameters(shape)
    table = shape.vocab_size * shape.hidden_size * element_bytes
    logits = max(shape.vocab_size, min(logits_chunk, positions_at_once * shape.vocab_size))
    heads = shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    a_position = shape.layers * (6 * shape.hidden_size + 2 * heads + 3 * shape.intermediate_size)
    a_context_token = shape.feature_size + 2 * shape.hidden_size + shape.layers * 4 * shape.kv_heads * shape.head_dim
    return DrafterFootprint(
        parameters=parameters,
        weights=4 * parameters,
        gradients=4 * parameters,
        moments=8 * parameters,
        tables=table if tied else 2 * table,
        logits=logits * (4 if element_bytes == 4 else 4 + element_bytes),
        activations=element_bytes * (positions_at_once * a_position + context_tokens * a_context_token),
    )


def target_weight_bytes(facts: TargetFacts, layer_ids: Sequence[int], element_bytes: int) -> int:
    """Bytes of the target's weights as training holds them: no vocabulary head, no layer above the last captured one.

    Raises:
        RefusedInput: a file is missing, cut short or no safetensors file.
    """
    last = max(layer_ids)
    count = 0
    for name, shape in _tensors(facts.folder).items():
        layer = _LAYER.search(name)
        if not _NOT_LOADED.search(name) and (layer is None or int(layer.group(1)) <= last):
            count += math.prod(shape)
    return count * element_bytes


def refuse_unfit_tables(facts: TargetFacts) -> None:
    """See that a target has the embedding and the head it lends to its drafter, in the sizes config.json says.

    Raises:
        RefusedInput: one is missing or of another size, or a file can't be read.
    """
    shapes = _tensors(facts.folder)
    for table in ("embed_tokens.weight",) if facts.tie_word_embeddings else ("embed_tokens.weight", "lm_head.weight"):
        found = next((shape for name, shape in shapes.items() if name.endswith(table)), None)
        if found is None:
            raise RefusedInput(
                f"{facts.folder}: has no {table}. A head that is the embedding table needs tie_word_embeddings true in config.json; "
                "otherwise fetch the missing file of the target"
            )
        if found != [facts.vocab_size, facts.hidden_size]:
            raise RefusedInput(
                f"{facts.folder}: {table} is {found}, config.json says {[facts.vocab_size, facts.hidden_size]} (vocabulary, hidden "
                "size); the two don't belong together"
            )


def target_activation_bytes(facts: TargetFacts, tokens: int, element_bytes: int) -> int:
    """Estimate of what one layer's forward pass over so many tokens holds at a time."""
    return tokens * element_bytes * (6 * facts.hidden_size + 3 * facts.intermediate_size)


def _tensors(folder: Path) -> dict[str, list[int]]:
    """The shape of every tensor of a target's folder, by its name."""
    return {name: list(entry["shape"]) for place in _weight_files(folder) for name, entry in _header(place).items()}


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return sorted({folder / str(name) for name in read_json(index).get("weight_map", {}).values()})
    return [folder / "model.safetensors"]


def _header(place: Path) -> dict[str, Any]:
    """Shapes and places of the tensors of a safetensors file: 8 bytes of length, then JSON, then the tensors."""
    try:
        with place.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _LONGEST_HEADER_BYTES:
                raise ValueError(f"a header of {length:,} bytes")
            tensors: dict[str, Any] = json.loads(file.read(length))
        tensors.pop("__metadata__", None)
        wanted = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except OSError as error:
        raise RefusedInput(f"{place}: can't be read ({error.strerror}); fetch or copy the target again") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedInput(f"{place}: no safetensors file, or cut short ({error}); fetch or copy it again") from error
    there = place.stat().st_size
    if there < wanted:
        raise RefusedInput(f"{place}: cut short, {there:,} of {wanted:,} bytes; fetch or copy it again")
    return tensors
