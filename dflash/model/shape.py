"""A drafter's shape: the config's wishes and the target's sizes, resolved once into plain numbers.

`DrafterShape.resolve` fills what the config leaves empty from the target; `to_config` and `from_config` write and read the
config.json of a drafter checkpoint (the layout that vLLM and SGLang load). The trainer, the checkpoint and the speculative
decoder all build the drafter from this one object.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

from dflash.config import DrafterConfig
from dflash.errors import RefusedInput, RunFailed
from dflash.model.facts import TargetFacts, read_json
from dflash.model.mask_token import mask_token_id
from dflash.model.rope import Rope, read_rope

LayerType = Literal["full_attention", "sliding_attention"]
_GAMMA_BY_BLOCK_SIZE = {16: 7.0, 10: 5.0, 8: 4.0}


_CONVOLUTION_TAPS = 2


@dataclass(frozen=True)
class Dflash2Shape:
    """What DFlash 2 adds: `taps` and `group_size` of its convolutions, `rank` and `top_k` of its candidate selector."""

    taps: int
    group_size: int
    rank: int
    top_k: int


@dataclass(frozen=True)
class DrafterShape:
    """Sizes and rules of one drafter; `target_layer_ids` id i is the output AFTER target layer i."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_types: tuple[LayerType, ...]
    sliding_window: int | None
    is_causal: bool
    block_size: int
    gamma: float
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    target_layers: int
    vocab_size: int
    rms_norm_eps: float
    rope: Rope
    max_positions: int
    embedding_scale: float = 1.0
    final_logit_softcap: float | None = None
    dflash2: Dflash2Shape | None = None

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return len(self.layer_types)

    @property
    def feature_size(self) -> int:
        """Width of one token's features: captured layers x hidden size."""
        return len(self.target_layer_ids) * self.hidden_size

    def window(self, layer: int) -> int | None:
        """Tokens that layer looks back, itself included; None for all."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None

    @classmethod
    def resolve(cls, config: DrafterConfig, facts: TargetFacts) -> DrafterShape:
        """Fill what the config leaves empty from the target.

        Raises:
            RefusedInput: a captured layer the target does not have, or sizes that do not fit each other.
        """
        captured = config.target_layer_ids
        if captured is None:
            captured = spread_layer_ids(facts.layers, config.feature_layers or config.layers)
        layer_types = cast("tuple[LayerType, ...]", tuple(config.layer_types or ["full_attention"] * config.layers))
        shape = cls(
            hidden_size=facts.hidden_size,
            intermediate_size=config.intermediate_size or facts.intermediate_size,
            heads=config.heads or facts.heads,
            kv_heads=config.kv_heads or min(facts.kv_heads, config.heads or facts.heads),
            head_dim=config.head_dim or facts.head_dim,
            layer_types=layer_types,
            sliding_window=config.sliding_window if "sliding_attention" in layer_types else None,
            is_causal=config.is_causal,
            block_size=config.block_size,
            gamma=config.gamma or _GAMMA_BY_BLOCK_SIZE.get(config.block_size, (config.block_size - 1) / 2),
            mask_token_id=mask_token_id(facts, config.mask_token_id),
            target_layer_ids=tuple(captured),
            target_layers=facts.layers,
            vocab_size=facts.vocab_size,
            rms_norm_eps=facts.rms_norm_eps,
            rope=facts.rope,
            max_positions=facts.max_positions,
            embedding_scale=facts.embedding_scale,
            final_logit_softcap=facts.final_logit_softcap,
            dflash2=_dflash2(config),
        )
        shape.check()
        return shape

    def check(self) -> None:
        """Raise RefusedInput when the sizes can't make a drafter."""
        beyond = [layer for layer in self.target_layer_ids if not 0 <= layer < self.target_layers]
        if beyond:
            raise RefusedInput(
                f"drafter.target_layer_ids: the target has layers 0 .. {self.target_layers - 1}, {beyond} are not among them"
            )
        if not self.target_layer_ids or len(set(self.target_layer_ids)) != len(self.target_layer_ids):
            raise RefusedInput(
                f"drafter.target_layer_ids {list(self.target_layer_ids)}: give each captured layer once, at least one"
            )
        least = {"block_size": 2, "max_positions": 1, "vocab_size": 1, "target_layers": 1, "layers": 1} | dict.fromkeys(
            ("hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim"), 1
        )
        small = [name for name, bound in least.items() if getattr(self, name) < bound]
        if small:
            raise RefusedInput(f"drafter.{small[0]}={getattr(self, small[0])}: {least[small[0]]} or more is needed")
        if self.heads % self.kv_heads:
            raise RefusedInput(f"drafter.heads={self.heads} is no multiple of drafter.kv_heads={self.kv_heads}")
        if self.head_dim % 2:
            raise RefusedInput(f"drafter.head_dim={self.head_dim}: rotary positions need an even width")
        if self.sliding_window is not None and self.sliding_window < self.block_size:
            raise RefusedInput(
                f"drafter.sliding_window={self.sliding_window} is shorter than a block of {self.block_size}: "
                "a slot could not see its block"
            )

        if self.dflash2 is not None and self.hidden_size % self.dflash2.group_size:
            raise RefusedInput(
                f"drafter.conv_group_size={self.dflash2.group_size} doesn't divide the hidden size {self.hidden_size}; "
                f"set it to {math.gcd(self.dflash2.group_size, self.hidden_size)}"
            )
        if self.dflash2 is not None and self.dflash2.top_k > self.vocab_size:
            raise RefusedInput(f"drafter.selector_top_k={self.dflash2.top_k} is more than the vocabulary has ({self.vocab_size})")

    def to_config(self) -> dict[str, Any]:
        """The config.json of a drafter checkpoint, with every field the known loaders look for, old and new."""
        dflash = {
            "block_size": self.block_size,
            "gamma": self.gamma,
            "is_causal": self.is_causal,
            "mask_token_id": self.mask_token_id,
            "target_layer_ids": list(self.target_layer_ids),
        }
        if self.embedding_scale != 1.0:
            dflash["input_embedding_scale"] = self.embedding_scale
        if self.final_logit_softcap is not None:
            dflash["final_logit_softcapping"] = self.final_logit_softcap
        if self.dflash2 is not None:
            dflash |= {"conv_kernel_size": self.dflash2.taps, "conv_group_size": self.dflash2.group_size}
            dflash |= {"selector_rank": self.dflash2.rank, "selector_top_k": self.dflash2.top_k}
        name = "DFlashDraftModel" if self.dflash2 is None else "DFlash2DraftModel"
        rope = self.rope.to_config()
        return {
            "architectures": [name],
            "auto_map": {"AutoModel": f"dflash.{name}"},
            "model_type": "qwen3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "block_size": self.block_size,
            "dflash_config": dflash,
            "dtype": "bfloat16",
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "is_causal": self.is_causal,
            "layer_types": list(self.layer_types),
            "max_position_embeddings": self.max_positions,
            "max_window_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "num_target_layers": self.target_layers,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": rope,
            "rope_scaling": None if self.rope.type == "default" else {key: rope[key] for key in rope if key != "rope_theta"},
            "rope_theta": self.rope.theta,
            "sliding_window": self.sliding_window,
            "tie_word_embeddings": False,
            "use_cache": True,
            "use_sliding_window": self.sliding_window is not None,
            "vocab_size": self.vocab_size,
        }

    def write(self, place: Path) -> None:
        """Write `to_config` as JSON.

        Raises:
            RunFailed: the disk is full or the folder can't be written.
        """
        try:
            place.write_text(json.dumps(self.to_config(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise RunFailed(f"{place}: can't be written ({error.strerror}); free disk space or mend the folder's rights") from error

    @classmethod
    def from_config(cls, place: Path) -> DrafterShape:
        """Read the config.json of a drafter checkpoint.

        Raises:
            RefusedInput: a field is missing or has the wrong kind, or the sizes don't fit.
        """
        config = read_json(place)
        dflash = config.get("dflash_config") or {}
        if not isinstance(dflash, dict):
            raise RefusedInput(f"{place}: dflash_config is no mapping; is this the config.json of a DFlash drafter?")
        try:
            block_size = int(dflash["block_size"] if "block_size" in dflash else config["block_size"])
            layers = int(config["num_hidden_layers"])
            if len(config.get("layer_types") or range(layers)) != layers:
                raise ValueError(f"layer_types has {len(config['layer_types'])} entries for num_hidden_layers {layers}")
            shape = cls(
                hidden_size=int(config["hidden_size"]),
                intermediate_size=int(config["intermediate_size"]),
                heads=int(config["num_attention_heads"]),
                kv_heads=int(config["num_key_value_heads"]),
                head_dim=int(config["head_dim"]),
                layer_types=tuple(config.get("layer_types") or ["full_attention"] * layers),
                sliding_window=config.get("sliding_window"),
                is_causal=_is_causal(config, dflash),
                block_size=block_size,
                gamma=float(dflash.get("gamma") or _GAMMA_BY_BLOCK_SIZE.get(block_size, (block_size - 1) / 2)),
                mask_token_id=int(dflash["mask_token_id"]),
                target_layer_ids=tuple(int(layer) for layer in dflash["target_layer_ids"]),
                target_layers=int(config["num_target_layers"]),
                vocab_size=int(config["vocab_size"]),
                rms_norm_eps=float(config["rms_norm_eps"]),
                rope=read_rope(config, int(config["max_position_embeddings"]), str(place)),
                max_positions=int(config["max_position_embeddings"]),
                embedding_scale=float(dflash.get("input_embedding_scale") or 1.0),
                final_logit_softcap=float(dflash.get("final_logit_softcapping") or 0.0) or None,
                dflash2=_read_dflash2(config, dflash),
            )
        except KeyError as error:
            raise RefusedInput(f"{place}: {error.args[0]} is missing; is this the config.json of a DFlash drafter?") from error
        except (TypeError, ValueError) as error:
            raise RefusedInput(f"{place}: a field has the wrong kind ({error})") from error
        try:
            shape.check()
        except RefusedInput as error:
            raise RefusedInput(f"{place}: {error}") from error
        return shape


def _dflash2(config: DrafterConfig) -> Dflash2Shape | None:
    if config.architecture == "dflash":
        return None
    return Dflash2Shape(_CONVOLUTION_TAPS, config.conv_group_size, config.selector_rank, config.selector_top_k)


def _read_dflash2(config: dict[str, Any], dflash: dict[str, Any]) -> Dflash2Shape | None:
    if float(dflash.get("output_multiplier") or 1.0) != 1.0:
        raise ValueError(f"output_multiplier is {dflash['output_multiplier']}; drafters that scale their logits can't be run here")
    if "DFlash2DraftModel" not in (config.get("architectures") or []):
        return None
    keys = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    return Dflash2Shape(*(int(dflash[key]) for key in keys))


def _is_causal(config: dict[str, Any], dflash: dict[str, Any]) -> bool:
    """Whether blocks are causal; a file that doesn't say follows the released code: sliding layers are, full ones aren't."""
    stated = config.get("is_causal", dflash.get("is_causal"))
    if stated is not None:
        return bool(stated)
    kinds = set(config.get("layer_types") or ["full_attention"])
    if len(kinds) > 1:
        raise ValueError("is_causal is missing, and layer_types has sliding layers (causal by default) and full ones (not causal)")
    return kinds == {"sliding_attention"}


def spread_layer_ids(target_layers: int, count: int) -> list[int]:
    """`count` target layers spread evenly, as the released drafters capture them.

    One layer: the middle one, N // 2. More: round(1 + i * (N - 4) / (count - 1)), halves to even as Python rounds. Where a
    small target has too few layers for that rule (two ids would fall together): evenly over all its layers but the last.

    Raises:
        RefusedInput: more layers are asked for than the target has below its last.
    """
    if count == 1:
        return [target_layers // 2]
    layer_ids = [round(1 + index * (target_layers - 4) / (count - 1)) for index in range(count)]
    if any(right <= left for left, right in pairwise(layer_ids)):
        layer_ids = [round(index * (target_layers - 2) / (count - 1)) for index in range(count)]
    if count >= target_layers:
        raise RefusedInput(
            f"{count} layers can't be captured from a target of {target_layers}: set drafter.feature_layers to "
            f"{max(1, target_layers - 1)} or less, or give drafter.target_layer_ids"
        )
    return layer_ids
