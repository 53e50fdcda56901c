"""A warm start, planned: which first weights a new drafter takes from another drafter or from its target, and which it can't.

Planned from config.json and file headers alone (no torch, no tensor is read), so that `dflash doctor` and the run's events can tell it
tensor by tensor; `first_weights` then does what the plan says.

**From a drafter** (`plan_from_drafter`; ours, or one of the released layout that others made): tensors are taken by name where the
shape is the same. Block size and number of layers may differ: no tensor depends on the first, and of layers the first ones are taken.
A part (attention or MLP of a layer) that isn't taken whole starts silent: its output projection is zero, the residual stream passes it
by, and it learns from there. So a drafter with more layers than its source computes at first what the source does. `fc` is taken by
column blocks, one for each captured target layer, so that another choice of captured layers keeps what both have.

**From the target** (`plan_from_target`): its last layers become the drafter's, where shapes are the same, as they are in Qwen3's
family. `fc` passes on one captured layer, the one nearest to what the first of these layers reads, and `hidden_norm` is that layer's
norm: so the drafter's layers attend at first to (nearly) the keys and values that they attended to in the target. There is no function
to keep, so what can't be taken keeps its drawn first weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dflash.errors import RefusedInput
from dflash.model.facts import TargetFacts
from dflash.model.footprint import drafter_tensors
from dflash.model.shape import DrafterShape
from dflash.model.weight_headers import StoredTensor, language_prefix, stored_tensors

FC = "fc.weight"
_OUTPUTS = {"self_attn": "o_proj", "mlp": "down_proj"}
_NAMES_SHOWN = 4


@dataclass(frozen=True)
class WarmStart:
    """What a drafter takes from a source.

    Attributes:
        source: folder the tensors are read from.
        from_target: whether that is the target, and not a drafter.
        layers: the drafter's, and those of them that have something of the source.
        taken: our tensor's name -> the source's.
        columns: where `fc` is taken in part: (our captured layer, the source's) by their place among the captured ones.
        passed_on: from the target: the captured layer, by its place, that `fc` passes on at first.
        missing: tensors of ours that the source has not.
        misshapen: tensors of ours that the source has in another shape, and which.
        extra: tensors of the source that this drafter has no place for.
        silent: tensors that start at zero, so that what isn't taken whole changes nothing at first.
        warnings: what makes the taken weights mean something else here.
    """

    source: Path
    from_target: bool
    layers: tuple[int, int]
    taken: dict[str, str]
    columns: list[tuple[int, int]] = field(default_factory=list)
    passed_on: int | None = None
    missing: list[str] = field(default_factory=list)
    misshapen: dict[str, str] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {**asdict(self), "source": str(self.source)}

    def told(self) -> str:
        """What is taken and what not, in a line."""
        wanted = len(self.taken) + len(self.missing) + len(self.misshapen)
        parts = [f"{len(self.taken)} of {wanted} tensors taken, {self.layers[1]} of {self.layers[0]} layers"]
        if self.columns:
            parts.append(f"{FC} for {len(self.columns)} captured layers")
        if self.passed_on is not None:
            parts.append(f"{FC} passes on captured layer {self.passed_on + 1}")
        for kind, names in (("missing", self.missing), ("misshapen", self.misshapen), ("of no use here", self.extra)):
            if names:
                parts.append(f"{kind}: {shortened(list(names))}")
        if self.silent:
            parts.append(f"starting at zero: {shortened(self.silent)}")
        return "; ".join(parts)


def plan_from_drafter(folder: Path, shape: DrafterShape) -> WarmStart:
    """Plan what a drafter of `shape` takes from the drafter in a folder.

    Raises:
        RefusedInput: no drafter there, a file is missing or cut short, hidden size or vocabulary differ, or no matrix fits.
    """
    source = DrafterShape.from_config(folder / "config.json")
    _refuse_other_sizes(folder, source, shape)
    stored, wanted = stored_tensors(folder), drafter_tensors(shape)
    columns = _columns(source, shape, stored)
    taken, missing, misshapen = _match({name: name for name in wanted}, wanted, stored)
    if columns:
        misshapen.pop(FC, None)
        taken.pop(FC, None)
    if not any(len(wanted[name]) > 1 for name in taken):
        raise RefusedInput(
            f"drafter.init_from={folder}: none of its matrices fits this drafter ({shortened([*misshapen.values(), *missing])}); "
            "set drafter.heads, kv_heads, head_dim and intermediate_size as it has them, or leave init_from empty"
        )
    return WarmStart(
        source=folder,
        from_target=False,
        layers=(shape.layers, len({_layer(name) for name in taken} - {None})),
        taken=taken,
        columns=columns,
        missing=missing,
        misshapen=misshapen,
        extra=sorted(stored.keys() - wanted.keys()),
        silent=_silent(shape, taken),
        warnings=_warnings(folder, source, shape),
    )


def plan_from_target(facts: TargetFacts, shape: DrafterShape) -> WarmStart:
    """Plan what a drafter takes from the last layers of its target.

    Raises:
        RefusedInput: a file is missing or cut short, or no matrix fits.
    """
    stored, wanted = stored_tensors(facts.folder), drafter_tensors(shape)
    prefix = language_prefix(stored, facts.folder)
    first = facts.layers - shape.layers
    sources = {
        name: _name_in_target(prefix, first + layer, name.split(".", 2)[2], stored)
        for name in wanted
        if (layer := _layer(name)) is not None
    }
    sources["hidden_norm.weight"] = f"{prefix}layers.{max(0, first)}.input_layernorm.weight"
    taken, missing, misshapen = _match(sources, wanted, stored)
    if not any(len(wanted[name]) > 1 for name in taken):
        raise RefusedInput(
            f"drafter.init_from=target: no matrix of {facts.folder} has the shape this drafter wants "
            f"({shortened([*misshapen.values(), *missing])}); leave init_from empty, or leave the drafter's sizes to the target"
        )
    distances = [abs(layer_id - (first - 1)) for layer_id in shape.target_layer_ids]
    return WarmStart(
        source=facts.folder,
        from_target=True,
        layers=(shape.layers, len({_layer(name) for name in taken} - {None})),
        taken=taken,
        passed_on=distances.index(min(distances)),
        missing=missing,
        misshapen=misshapen,
    )


def shortened(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _refuse_other_sizes(folder: Path, source: DrafterShape, shape: DrafterShape) -> None:
    pairs = {"hidden size": (source.hidden_size, shape.hidden_size), "vocabulary": (source.vocab_size, shape.vocab_size)}
    differing = [f"{name} {theirs}, here {ours}" for name, (theirs, ours) in pairs.items() if theirs != ours]
    if differing:
        raise RefusedInput(
            f"drafter.init_from={folder}: made for another target ({'; '.join(differing)}); give a drafter of this target, or leave it empty"
        )


def _warnings(folder: Path, source: DrafterShape, shape: DrafterShape) -> list[str]:
    """Settings that no tensor's shape tells, and that change what the taken weights compute."""
    same = ("target_layers", "target_layer_ids", "mask_token_id", "rope", "is_causal", "sliding_window", "layer_types")
    told = []
    for name in same:
        theirs, ours = getattr(source, name), getattr(shape, name)
        if name == "layer_types":
            theirs, ours = theirs[: shape.layers], ours[: source.layers]
        if theirs != ours:
            told.append(f"{name} {_shown(theirs)}, here {_shown(ours)}")
    if not told:
        return []
    return [
        f"drafter.init_from={folder}: its weights were trained with {'; '.join(told)}, so they don't compute here what they did there"
    ]


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _columns(source: DrafterShape, shape: DrafterShape, stored: Mapping[str, StoredTensor]) -> list[tuple[int, int]]:
    """Captured layers both have, by their places, where the two lists differ; empty where `fc` is taken whole or not at all."""
    if source.target_layer_ids == shape.target_layer_ids or FC not in stored:
        return []
    if stored[FC].shape != (shape.hidden_size, source.feature_size):
        return []
    theirs = {layer: place for place, layer in enumerate(source.target_layer_ids)}
    return [(place, theirs[layer]) for place, layer in enumerate(shape.target_layer_ids) if layer in theirs]


def _match(
    sources: Mapping[str, str], wanted: Mapping[str, tuple[int, ...]], stored: Mapping[str, StoredTensor]
) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """Our names with the source's where the shape is the same, our names it has not, and those of another shape (told)."""
    taken, missing, misshapen = {}, [], {}
    for ours, theirs in sources.items():
        if theirs not in stored:
            missing.append(ours)
        elif stored[theirs].shape != wanted[ours]:
            misshapen[ours] = f"{ours} {stored[theirs].shape} instead of {wanted[ours]}"
        else:
            taken[ours] = theirs
    return taken, missing, misshapen


def _silent(shape: DrafterShape, taken: Mapping[str, str]) -> list[str]:
    """Output projections of the parts of layers that aren't taken whole."""
    return [
        f"layers.{layer}.{part}.{output}.weight"
        for layer in range(shape.layers)
        for part, output in _OUTPUTS.items()
        if any(name not in taken for name in drafter_tensors(shape) if name.startswith(f"layers.{layer}.{part}."))
    ]


def _name_in_target(prefix: str, layer: int, name: str, stored: Mapping[str, StoredTensor]) -> str:
    """Where a target keeps a layer's tensor. Gemma's norm before the MLP has a name of its own."""
    place = f"{prefix}layers.{layer}."
    before_mlp = f"{place}pre_feedforward_layernorm.weight"
    if name == "post_attention_layernorm.weight" and before_mlp in stored:
        return before_mlp
    return place + name


def _layer(name: str) -> int | None:
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "layers" else None
