"""Finding a drafter's weights: an exported folder, one checkpoint of a run, or a run (its newest whole checkpoint).

All three hold config.json and model.safetensors in the same layout, so that one loader reads them. A run's checkpoint is held against
its checksums first: of a run, one that is cut short is passed over and said; one that was named is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dflash.errors import RefusedInput
from dflash.model.attention import attention_backend
from dflash.model.drafter import Drafter
from dflash.model.facts import TargetFacts
from dflash.model.shape import DrafterShape
from dflash.model.weight_files import read_folder
from dflash.pipeline.checkpoints import CheckpointStore, find_fault
from dflash.runs.folder import RunFolder, open_run, read_json

MODEL_FILE, SHAPE_FILE, PROVENANCE_FILE = "model.safetensors", "config.json", "provenance.json"


@dataclass(frozen=True)
class FoundDrafter:
    """A drafter on disk.

    Attributes:
        folder: holds config.json and model.safetensors.
        origin: where it came from, as far as known: run, step, target, data (fingerprint), data_path, holdout, seed. Exported folders keep it
            in provenance.json; those made elsewhere have none.
    """

    folder: Path
    origin: dict[str, Any] = field(default_factory=dict)

    def shape(self) -> DrafterShape:
        """Its sizes and rules.

        Raises:
            RefusedInput: config.json is missing or is no drafter's.
        """
        return DrafterShape.from_config(self.folder / SHAPE_FILE)

    def target(self, given: str | None) -> str:
        """The target to decode with: the one given, else the one it was trained for.

        Raises:
            RefusedInput: neither is known.
        """
        target = given or self.origin.get("target")
        if not target:
            raise RefusedInput(f"{self.folder}: doesn't say which target it was trained for; give --target")
        return str(target)


def find_drafter(place: str | Path, runs: Path, warn: Callable[[str], None]) -> FoundDrafter:
    """Find the drafter a user named.

    Args:
        place: an exported folder, a checkpoint folder of a run, a run's folder, or a run's name.
        runs: where runs are looked up by name.
        warn: told of checkpoints that are passed over.

    Raises:
        RefusedInput: nothing of that kind is there, or no whole checkpoint.
    """
    folder = Path(place)
    if (folder / "state.json").is_file():
        fault = find_fault(folder)
        if fault:
            raise RefusedInput(f"{folder}: {fault}; use another checkpoint, or name the run and its newest whole one is used")
        return _of_run(RunFolder(folder.resolve().parent.parent), folder, read_json(folder / "state.json"))
    if (folder / SHAPE_FILE).is_file():
        return FoundDrafter(folder, read_json(folder / PROVENANCE_FILE))
    if folder.is_dir() and not (folder / "config.yaml").is_file():
        raise RefusedInput(f"{folder}: neither a run (config.yaml) nor a drafter (config.json and model.safetensors)")
    run = open_run(place, runs)
    checkpoint = CheckpointStore(run.checkpoints, keep=1, belongs_to={}, warn=warn).newest()
    if checkpoint is None:
        raise RefusedInput(f"{run.path}: has no checkpoint yet; `dflash control {run.name} checkpoint` writes one while it trains")
    return _of_run(run, checkpoint.folder, checkpoint.state)


def load_drafter(folder: Path, device: str | torch.device = "cpu") -> Drafter:
    """Build the drafter of a folder; parameters float32, attention the one that is best for single blocks.

    Raises:
        RefusedInput: config.json or model.safetensors is missing or cut short, or tensors are missing, unknown, misshapen or not finite.
    """
    place = torch.device(device)
    drafter = Drafter(DrafterShape.from_config(folder / SHAPE_FILE), attention_backend("sdpa", place))
    read_folder(folder, dict(drafter.named_parameters()))
    broken = next((name for name, tensor in drafter.named_parameters() if not torch.isfinite(tensor).all()), None)
    if broken is not None:
        raise RefusedInput(f"{folder / MODEL_FILE}: {broken} holds numbers that aren't finite; take an earlier checkpoint")
    return drafter.to(place).eval().requires_grad_(False)


def refuse_misfit(shape: DrafterShape, facts: TargetFacts, drafter_place: Path) -> None:
    """Hold a drafter against the target it is to draft for.

    Raises:
        RefusedInput: hidden size, number of layers or vocabulary differ; all differences are named.
    """
    pairs = {
        "hidden size": (shape.hidden_size, facts.hidden_size),
        "layers": (shape.target_layers, facts.layers),
        "vocabulary": (shape.vocab_size, facts.vocab_size),
    }
    differing = [f"{name} {theirs} instead of {ours}" for name, (ours, theirs) in pairs.items() if ours != theirs]
    if differing:
        raise RefusedInput(
            f"target {facts.folder}: not the one the drafter {drafter_place} was trained for ({'; '.join(differing)}); give that target"
        )


def _of_run(run: RunFolder, folder: Path, state: dict[str, Any]) -> FoundDrafter:
    belongs = state.get("belongs_to", {})
    origin = {
        "run": run.name,
        "step": state.get("step"),
        "data": belongs.get("data"),
        "holdout": belongs.get("data.holdout", 0),
        "seed": belongs.get("optim.seed", 0),
    }
    if (run.path / "config.yaml").is_file():
        config = run.config()
        origin |= {"target": config.target.path, "data_path": config.data.path, "dequantise": config.target.dequantise}
    return FoundDrafter(folder, origin)
