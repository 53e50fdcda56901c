"""Rotary rates: how fast each pair of a head turns with the position, plain or scaled for long contexts. No torch.

A drafter follows its target's base and scaling (linear, dynamic, llama3, yarn), with two differences that its config.json states exactly:

- It rotates the whole head, as released drafters do, whatever share of it the target rotates. `partial_rotary_factor` is therefore not
  copied: with it, a server would rotate part of a head that was trained whole.
- One rate table serves all layers. A target with one for each layer type (Gemma 3) lends that of its full-attention layers.

`longrope`, `proportional` and rotation in several dimensions (mrope) have no counterpart: the drafter then turns plainly with the target's
base. Formulas: position interpolation (linear), NTK by the length (dynamic), YaRN (arXiv 2309.00071), Llama 3.1's three bands (llama3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from dflash.errors import RefusedInput

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]
_FOLLOWED = ("default", "linear", "dynamic", "llama3", "yarn")
_PLAIN = ("longrope", "su", "proportional", "mrope")


@dataclass(frozen=True)
class Rope:
    """Rates of one rotary embedding.

    Attributes:
        theta: base.
        type: how the plain rates are scaled.
        factor: how many times longer the context is made.
        original_positions: positions before it was made longer (llama3, yarn); positions that need no scaling (dynamic).
        low_freq_factor, high_freq_factor: bounds of llama3's middle band, in turns within `original_positions`.
        beta_fast, beta_slow: bounds of yarn's ramp, in turns within `original_positions`.
        truncate: whether yarn's ramp begins and ends at whole pairs.
        attention_factor: cosine and sine are multiplied by it (yarn).
    """

    theta: float
    type: RopeType = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    def rates(self, head_dim: int) -> NDArray[np.float64]:
        """[head_dim / 2], radians a position; of `dynamic` those within `original_positions`."""
        plain = self.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        if self.type == "linear":
            return plain / self.factor
        if self.type == "llama3":
            return self._three_bands(plain)
        if self.type == "yarn":
            share = self._interpolated_share(head_dim)
            return plain * (share / self.factor + 1 - share)
        return plain

    def _three_bands(self, plain: NDArray[np.float64]) -> NDArray[np.float64]:
        """Fast pairs as they are, slow ones divided by the factor, between them a blend by the turns they make."""
        turns = self.original_positions * plain / (2 * np.pi)
        kept = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
        return plain * (kept + (1 - kept) / self.factor)

    def _interpolated_share(self, head_dim: int) -> NDArray[np.float64]:
        """[head_dim / 2]; 0 for pairs that turn more than beta_fast times, 1 for fewer than beta_slow, a ramp between."""

        def pair_of(turns: float) -> float:
            return head_dim * math.log(self.original_positions / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        ramp = (np.arange(head_dim // 2) - low) / (high - low if high != low else 0.001)
        return np.clip(ramp, 0, 1)

    def to_config(self) -> dict[str, Any]:
        """`rope_parameters` of a config.json: only what the type reads, so that strict loaders find nothing unknown."""
        parameters: dict[str, Any] = {"rope_type": self.type, "rope_theta": self.theta}
        if self.type != "default":
            parameters["factor"] = self.factor
        if self.type in ("llama3", "yarn"):
            parameters["original_max_position_embeddings"] = self.original_positions
        if self.type == "llama3":
            parameters |= {"low_freq_factor": self.low_freq_factor, "high_freq_factor": self.high_freq_factor}
        if self.type == "yarn":
            parameters |= {"beta_fast": self.beta_fast, "beta_slow": self.beta_slow, "attention_factor": self.attention_factor}
            if not self.truncate:
                parameters["truncate"] = False
        return parameters


def read_rope(config: dict[str, Any], max_positions: int, place: str) -> Rope:
    """The rope of a config: `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` beside it (older files).

    Args:
        config: of a language model or a drafter.
        max_positions: its max_position_embeddings.
        place: where it stands, for messages.

    Raises:
        RefusedInput: an unknown type, or a number that is missing or can't be.
    """
    given = _of_full_attention(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = given.get("rope_theta") or config.get("rope_theta") or 10_000.0
    kind = str(given.get("rope_type") or given.get("type") or "default")
    if kind not in _FOLLOWED + _PLAIN:
        raise RefusedInput(f"{place}: rope_type {kind!r} is not known; known are {', '.join(_FOLLOWED + _PLAIN)}")
    if kind in ("default", *_PLAIN):
        return Rope(float(theta))
    try:
        return _scaled(cast(RopeType, kind), float(theta), given, config, max_positions)
    except KeyError as error:
        raise RefusedInput(f"{place}: rope_type {kind!r} needs {error.args[0]}, which is missing") from error
    except (TypeError, ValueError) as error:
        raise RefusedInput(f"{place}: a number of rope_type {kind!r} can't be ({error})") from error


def rope_note(config: dict[str, Any]) -> str:
    """What of a target's rope the drafter doesn't follow, in words; empty when it follows all of it."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    given = _of_full_attention(parameters)
    kind = str(given.get("rope_type") or given.get("type") or "default")
    share = given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    notes = []
    if given is not parameters:
        notes.append("one rope a layer type: the drafter takes that of full attention for all its layers")
    if kind in _PLAIN:
        notes.append(f"{kind}: the drafter turns plainly with the same base")
    elif float(share) != 1.0:
        notes.append(f"the target rotates {float(share):g} of a head, the drafter all of it")
    return "; ".join(notes)


def _of_full_attention(parameters: dict[str, Any]) -> dict[str, Any]:
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    full = parameters.get("full_attention")
    return full if isinstance(full, dict) else nested[0] if nested else parameters


def _scaled(kind: RopeType, theta: float, given: dict[str, Any], config: dict[str, Any], max_positions: int) -> Rope:
    if kind in ("linear", "dynamic"):
        return Rope(theta, kind, _positive(given["factor"], "factor"), max_positions if kind == "dynamic" else 0)
    stated = config.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    original = int(stated or max_positions)
    if kind == "llama3":
        low, high = (_positive(given[name], name) for name in ("low_freq_factor", "high_freq_factor"))
        if high <= low:
            raise ValueError(f"high_freq_factor {high} is not above low_freq_factor {low}")
        factor = _positive(given["factor"], "factor")
        return Rope(theta, kind, factor, original, low_freq_factor=low, high_freq_factor=high)
    factor = _positive(given.get("factor") or max_positions / original, "factor")
    rope = Rope(theta, kind, factor, original, truncate=bool(given.get("truncate", True)))
    return replace(
        rope,
        beta_fast=_positive(given.get("beta_fast") or rope.beta_fast, "beta_fast"),
        beta_slow=_positive(given.get("beta_slow") or rope.beta_slow, "beta_slow"),
        attention_factor=_attention_factor(given, factor),
    )


def _attention_factor(given: dict[str, Any], factor: float) -> float:
    """The file's own; else .1 ln(factor) + 1, or with DeepSeek's two mscale numbers the ratio of two such terms."""
    if given.get("attention_factor") is not None:
        return _positive(given["attention_factor"], "attention_factor")

    def term(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1

    if given.get("mscale") and given.get("mscale_all_dim"):
        return term(float(given["mscale"])) / term(float(given["mscale_all_dim"]))
    return term(1.0)


def _positive(value: Any, name: str) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {value!r}")
    return number
