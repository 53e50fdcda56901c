"""What a target family does differently from Qwen3 and Llama: one entry a family, no torch.

The table holds what config.json leaves to the family's code: which attention it lacks, how it scales embeddings, whether its norms
multiply by 1 + weight, and the values its configuration class fills in when the file is silent. The tests hold every entry against the
classes of transformers. A family that is not listed behaves like Qwen3 and Llama in all of this.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

from dflash.errors import RefusedInput


@dataclass(frozen=True)
class Family:
    """What is particular to a family.

    Attributes:
        lacks: attention implementations it doesn't have.
        why: what its attention does that those can't.
        norm_offset: added to the weight of its RMSNorm: 1 where the norm multiplies by 1 + weight.
        scales_embedding: whether token embeddings are multiplied by sqrt(hidden size) before the first layer.
        defaults: values of config.json when it doesn't have the key.
    """

    lacks: tuple[str, ...] = ()
    why: str = ""
    norm_offset: float = 0.0
    scales_embedding: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)


_CAPS_SCORES, _HAS_SINKS = "it caps the attention scores", "its attention has sinks"
_GEMMA2 = {"final_logit_softcapping": 30.0, "head_dim": 256, "vocab_size": 256_000, "max_position_embeddings": 8192}
_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rope_theta": 1e6,
}
_TIED = {"tie_word_embeddings": True}

_FAMILIES: dict[str, Family] = {
    "gemma": Family(norm_offset=1.0, scales_embedding=True, defaults={"head_dim": 256, **_TIED}),
    "gemma2": Family(("sdpa",), _CAPS_SCORES, norm_offset=1.0, scales_embedding=True, defaults={**_GEMMA2, **_TIED}),
    "gemma3": Family(norm_offset=1.0, scales_embedding=True, defaults={**_GEMMA3, **_TIED}),
    "gemma4": Family(scales_embedding=True, defaults=_TIED),
    "gpt_oss": Family(("sdpa", "flash_attention_2"), _HAS_SINKS),
    "qwen3_5": Family(norm_offset=1.0),
    "qwen3_5_moe": Family(norm_offset=1.0),
    "qwen3_next": Family(norm_offset=1.0),
    "vaultgemma": Family(("sdpa",), _CAPS_SCORES, norm_offset=1.0, scales_embedding=True, defaults=_TIED),
}


def family_of(model_type: str) -> Family:
    """The entry of a family by its model_type; `_text` at its end, as wrappers' language models have it, makes no difference."""
    return _FAMILIES.get(model_type.removesuffix("_text"), Family())


def choose_attention(name: str, model_type: str, *, on_gpu: bool) -> str:
    """The attention a target runs with: the one named, or for `auto` the best this machine and the family have.

    The order of `auto` is flash_attention_2 (with flash-attn and a GPU), sdpa, eager.

    Raises:
        RefusedInput: the one named isn't there.
    """
    has_flash = on_gpu and importlib.util.find_spec("flash_attn") is not None
    family = family_of(model_type)
    if name == "auto":
        best = ["flash_attention_2"] * has_flash + ["sdpa", "eager"]
        return next(each for each in best if each not in family.lacks)
    if name in family.lacks:
        raise RefusedInput(f"target.attention={name}: {model_type} doesn't have it ({family.why}); set it to auto or eager")
    if name == "flash_attention_2" and not has_flash:
        raise RefusedInput("target.attention=flash_attention_2 needs a GPU and the package flash-attn; set it to auto")
    return name


def attention_note(model_type: str) -> str:
    """Why a family runs with a slower attention than others; empty when it doesn't."""
    family = family_of(model_type)
    return f"{model_type} has no sdpa: {family.why}" if "sdpa" in family.lacks else ""


def listed_families() -> list[str]:
    """The model_type of each family in the table."""
    return list(_FAMILIES)
