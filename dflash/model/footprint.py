"""Bytes a target and a drafter take, told from config.json and file headers: no tensor is read, no torch is loaded.

Exact: weights, gradients, the optimiser's states, tables, logits, features. Estimated (and said so): what a forward pass keeps besides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dflash.errors import RefusedInput
from dflash.model.facts import TargetFacts
from dflash.model.objectives.registry import CROSS_ENTROPY, Mix
from dflash.model.shape import DrafterShape
from dflash.model.weight_headers import stored_tensors

_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")
_NOT_LOADED = re.compile(r"lm_head|visual|vision|(?:^|\.)mtp")  # the head; towers and extra heads of multimodal wrappers


@dataclass(frozen=True)
class DrafterFootprint:
    """Bytes of one drafter replica while it trains.

    Attributes:
        parameters: numbers in its weights.
        weights, gradients, moments: float32; the moments are the optimiser's: two numbers a weight for AdamW, one a matrix element for Muon.
        tables: the target's embedding and head (once when tied).
        logits: of the largest chunk of the loss, what is made of them included.
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


def drafter_tensors(shape: DrafterShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a drafter: 11 a layer and 3; in DFlash 2, 4 more a layer and 3 of the selector."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (shape.head_dim,),
        "self_attn.k_norm": (shape.head_dim,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    layer = {f"{name}.weight": size for name, size in layer.items()}
    selector: dict[str, tuple[int, ...]] = {}
    if shape.dflash2 is not None:
        two = shape.dflash2
        for name in ("attention_conv", "mlp_conv"):
            layer[f"{name}.base_kernel"] = (2, two.taps, hidden)
            layer[f"{name}.kernel_projection.weight"] = (2 * two.taps * (hidden // two.group_size), hidden)
        codebooks = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
        selector = dict.fromkeys(codebooks, (shape.vocab_size, two.rank))
        selector["candidate_selector.hidden_projection.weight"] = (two.rank, hidden)
    return {
        "fc.weight": (hidden, shape.feature_size),
        "hidden_norm.weight": (hidden,),
        **{f"layers.{index}.{name}": size for index in range(shape.layers) for name, size in layer.items()},
        "norm.weight": (hidden,),
        **selector,
    }


def drafter_parameters(shape: DrafterShape) -> int:
    """Numbers in the weights of a drafter of this shape."""
    return sum(math.prod(size) for size in drafter_tensors(shape).values())


def optimizer_bytes(shape: DrafterShape, optimizer: str) -> int:
    """Bytes of the optimiser's states, float32: two numbers a weight for adamw; for muon one where the weight is in a matrix."""
    numbers = {True: 1 if optimizer == "muon" else 2, False: 2}
    return sum(4 * numbers[len(size) == 2] * math.prod(size) for size in drafter_tensors(shape).values())


def checkpoint_bytes(shape: DrafterShape, optimizer: str) -> int:
    """Bytes of one checkpoint on disk: weights and the optimiser's states, float32."""
    return 4 * drafter_parameters(shape) + optimizer_bytes(shape, optimizer)


def best_checkpoint_bytes(shape: DrafterShape) -> int:
    """Bytes of the best checkpoint on disk: weights, float32."""
    return 4 * drafter_parameters(shape)


def drafter_footprint(
    shape: DrafterShape,
    *,
    optimizer: str,
    tied: bool,
    element_bytes: int,
    logits_chunk: int,
    positions_at_once: int,
    context_tokens: int,
    mix: Mix = CROSS_ENTROPY,
) -> DrafterFootprint:
    """Bytes of one drafter replica.

    Args:
        shape: its sizes.
        optimizer: `optim.name`.
        tied: whether the target's head is its embedding table.
        element_bytes: of the matrix products and of the tables: 2 (bfloat16) or 4.
        logits_chunk: logits computed at a time, at most.
        positions_at_once: drafted positions of a pass, at most.
        context_tokens: tokens of the largest batch.
        mix: of objectives.
    """
    parameters = drafter_parameters(shape)
    table = shape.vocab_size * shape.hidden_size * element_bytes
    models = 2 if mix.needs_target else 1
    fewest = shape.block_size - 1 if mix.by_block else 1
    slots = max(fewest, min(logits_chunk // (models * shape.vocab_size), positions_at_once))
    # float32: the drafter's, with a target its distribution and the sign of their difference, with a soft cap its slope
    float32 = 1 + 2 * mix.needs_target + (shape.final_logit_softcap is not None)
    heads = shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    a_position = shape.layers * (6 * shape.hidden_size + 2 * heads + 3 * shape.intermediate_size)
    a_context_token = shape.feature_size + 2 * shape.hidden_size + shape.layers * 4 * shape.kv_heads * shape.head_dim
    return DrafterFootprint(
        parameters=parameters,
        weights=4 * parameters,
        gradients=4 * parameters,
        moments=optimizer_bytes(shape, optimizer),
        tables=table if tied else 2 * table,
        logits=slots * shape.vocab_size * (4 * float32 + (0 if element_bytes == 4 else element_bytes)),
        activations=element_bytes * (positions_at_once * a_position + context_tokens * a_context_token),
    )


def target_weight_bytes(facts: TargetFacts, layer_ids: Sequence[int], element_bytes: int) -> int:
    """Bytes of the target's weights as training holds them: no vocabulary head, no layer above the last captured one.

    Raises:
        RefusedInput: a file is missing, cut short or no safetensors file.
    """
    last = max(layer_ids)
    count = 0
    for name, stored in stored_tensors(facts.folder).items():
        layer = _LAYER.search(name)
        if not _NOT_LOADED.search(name) and (layer is None or int(layer.group(1)) <= last):
            count += math.prod(stored.shape)
    return count * element_bytes


def whole_target_bytes(facts: TargetFacts, element_bytes: int) -> int:
    """Bytes of all weights of the target, as decoding holds them.

    Raises:
        RefusedInput: a file is missing, cut short or no safetensors file.
    """
    return element_bytes * sum(math.prod(stored.shape) for stored in stored_tensors(facts.folder).values())


def refuse_unfit_tables(facts: TargetFacts) -> None:
    """See that a target has the embedding and the head it lends to its drafter, in the sizes config.json says.

    Raises:
        RefusedInput: one is missing or of another size, or a file can't be read.
    """
    shapes = {name: list(stored.shape) for name, stored in stored_tensors(facts.folder).items()}
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
