"""Export of a drafter to the layout released drafters have, which serving engines load: config.json, bfloat16 tensors.

A run keeps float32 masters; serving wants bfloat16, so each weight is rounded once, here. Embedding and vocabulary head belong to the
target and are not stored. provenance.json beside them says run, step, target and data, so that an evaluation finds the held-out part;
serving engines ignore it. The folder appears whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash.errors import RefusedInput, RunFailed
from dflash.model.weight_files import write_tensors
from dflash.runs.folder import write_json
from dflash.serving.checkpoint import MODEL_FILE, PROVENANCE_FILE, SHAPE_FILE, FoundDrafter, load_drafter


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        out: the folder.
        source: the checkpoint it was made from.
        step: optimiser step of that checkpoint; None when it came from an exported folder without provenance.
        tensors: 11 a layer and 3.
        parameters: numbers in them.
        size_bytes: of model.safetensors.
    """

    out: Path
    source: Path
    step: int | None
    tensors: int
    parameters: int
    size_bytes: int


def export_drafter(found: FoundDrafter, out: Path, *, overwrite: bool = False) -> Exported:
    """Write a drafter for serving.

    Args:
        found: see `find_drafter`.
        out: the folder to make.
        overwrite: whether an earlier export there is replaced.

    Raises:
        RefusedInput: the checkpoint is damaged or holds numbers that aren't finite, or `out` is taken.
        RunFailed: the disk is full or the folder can't be written.
    """
    _refuse_taken(out, overwrite)
    drafter = load_drafter(found.folder)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in drafter.named_parameters()}
    part = out.with_name(f".{out.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        drafter.shape.write(part / SHAPE_FILE)
        write_tensors(part / MODEL_FILE, tensors, {"format": "pt"})
        write_json(part / PROVENANCE_FILE, found.origin)
        if out.exists():
            shutil.rmtree(out)
        os.replace(part, out)
    except OSError as error:
        raise RunFailed(f"{out}: can't be written ({error.strerror}); free disk space or mend the folder's rights") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Exported(
        out=out,
        source=found.folder,
        step=found.origin.get("step"),
        tensors=len(tensors),
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        size_bytes=(out / MODEL_FILE).stat().st_size,
    )


def _refuse_taken(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / SHAPE_FILE).is_file() or (out / "state.json").exists():
        raise RefusedInput(f"{out}: is there and is no exported drafter; give another --out")
    if not overwrite:
        raise RefusedInput(f"{out}: holds an exported drafter already; give another --out, or --overwrite")
