"""What a drafter must know of its target, read from the target's config.json alone: no weights, no torch.

Multimodal wrappers keep the language model's sizes under `text_config`; transformers 5 keeps the rotary base under
`rope_parameters`, older files at the top level. Both are understood. What a file leaves out is filled in as its family does
(`dflash.model.families`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.errors import RefusedInput
from dflash.model.families import family_of
from dflash.model.quantisation import Quantisation, quantisation
from dflash.model.rope import Rope, read_rope, rope_note
from dflash.targets import shipped_target


@dataclass(frozen=True)
class TargetFacts:
    """Sizes of a target.

    Attributes:
        folder: where its config.json, weights and tokenizer lie.
        family: model_type of the language model, as in qwen3, qwen3_5_text, llama.
        hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, vocab_size: as their names say.
        rms_norm_eps: added to the mean square inside a norm.
        rope: rotary rates the drafter takes over.
        rope_note: what of the target's rope it doesn't; empty when it takes over all.
        tie_word_embeddings: whether the output head is the embedding table.
        max_positions: positions the target was made for.
        embedding_scale: token embeddings are multiplied by it before the first layer (Gemma: sqrt(hidden size)).
        quantisation: how the weights are stored; None for plain numbers.
        final_logit_softcap: c when logits are capped to c tanh(logits / c); None without a cap.
    """

    folder: Path
    family: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: Rope
    rope_note: str
    tie_word_embeddings: bool
    max_positions: int
    embedding_scale: float
    final_logit_softcap: float | None
    quantisation: Quantisation | None


def target_facts(path: str | Path) -> TargetFacts:
    """Read a target's sizes; `path` is a folder or the name of a shipped target.

    Raises:
        RefusedInput: no config.json, not JSON, or a size is missing or no positive number.
    """
    folder = resolve_target(path)
    place = folder / "config.json"
    wrapper = read_json(place)
    text = wrapper.get("text_config") or wrapper
    if not isinstance(text, dict):
        raise RefusedInput(f"{place}: text_config is not a mapping; give the folder of a causal language model")
    name = str(text.get("model_type", wrapper.get("model_type", "unknown")))
    family = family_of(name)
    outer = {key: wrapper[key] for key in ("tie_word_embeddings",) if key in wrapper}
    text = {**family.defaults, **outer, **text}
    hidden_size = _size(text, ("hidden_size", "n_embd"), place)
    heads = _size(text, ("num_attention_heads", "n_head"), place)
    max_positions = _size(text, ("max_position_embeddings", "n_positions"), place, default=2**18)
    return TargetFacts(
        folder=folder,
        family=name,
        hidden_size=hidden_size,
        intermediate_size=_size(text, ("intermediate_size", "n_inner", "moe_intermediate_size"), place, default=4 * hidden_size),
        layers=_size(text, ("num_hidden_layers", "n_layer"), place),
        heads=heads,
        kv_heads=_size(text, ("num_key_value_heads",), place, default=heads),
        head_dim=_size(text, ("head_dim",), place, default=hidden_size // heads),
        vocab_size=_size(text, ("vocab_size",), place),
        rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
        rope=read_rope(text, max_positions, str(place)),
        rope_note=rope_note(text),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", False)),
        max_positions=max_positions,
        embedding_scale=math.sqrt(hidden_size) if family.scales_embedding else 1.0,
        final_logit_softcap=_softcap(text, place),
        quantisation=quantisation(wrapper),
    )


def resolve_target(path: str | Path) -> Path:
    """The folder of a target: a folder itself, or the name of one shipped with this package."""
    return shipped_target(str(path))


def read_json(place: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        RefusedInput: the file is not there, can't be read, or holds something else.
    """
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise RefusedInput(f"{place}: can't be read ({error.strerror}); a target is a Hugging Face model folder") from error
    except ValueError as error:
        raise RefusedInput(f"{place}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise RefusedInput(f"{place}: holds no JSON object")
    return content


def _size(config: dict[str, Any], names: tuple[str, ...], place: Path, *, default: int | None = None) -> int:
    value = next((config[name] for name in names if config.get(name) is not None), default)
    if value is None:
        raise RefusedInput(f"{place}: {names[0]} is missing; is this the folder of a causal language model?")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RefusedInput(f"{place}: {names[0]} is {value!r}; a whole number of 1 or more is needed")
    return value


def _softcap(config: dict[str, Any], place: Path) -> float | None:
    cap = config.get("final_logit_softcapping")
    if not cap:
        return None
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not 0 < cap < math.inf:
        raise RefusedInput(f"{place}: final_logit_softcapping is {cap!r}; a number above 0, or null for none, is needed")
    return float(cap)
