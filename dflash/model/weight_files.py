"""Reading and writing named tensors as safetensors, strictly: a file either fits the model entirely or is refused."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dflash.errors import RefusedInput, RunFailed
from dflash.model.weight_headers import stored_tensors

_NAMES_SHOWN = 4


def write_tensors(place: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a file whole or not at all, and durably (the data reach the disk before the name does).

    Raises:
        RunFailed: the disk is full or the folder can't be written.
    """
    draft = place.with_name(place.name + ".partial")
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, str(draft), metadata)
        with draft.open("rb+") as written:
            os.fsync(written.fileno())
        draft.replace(place)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        raise RunFailed(f"{place}: can't be written ({error}); free disk space or mend the folder's rights, then resume") from error


@torch.no_grad()
def read_tensors(place: Path, into: dict[str, Tensor]) -> dict[str, str]:
    """Fill the tensors of `into` from a file of exactly these names and shapes; returns the file's metadata.

    Nothing is changed unless the whole file fits.

    Raises:
        RefusedInput: the file is not there, truncated, or has missing, unknown or misshapen tensors.
    """
    try:
        with safe_open(str(place), framework="pt") as stored:
            shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118 (no mapping)
            _refuse_misfits(place, shapes, into, "It was made with another config: use the config beside it, or another checkpoint")
            read = {name: stored.get_tensor(name) for name in into}
            metadata = stored.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise RefusedInput(f"{place}: can't be read ({error}); use another checkpoint of the run") from error
    for name, tensor in into.items():
        tensor.copy_(read[name])
    return dict(metadata)


@torch.no_grad()
def read_folder(folder: Path, into: dict[str, Tensor]) -> None:
    """Fill the tensors of `into` from a drafter's folder, one file or many with an index, that holds exactly these names and shapes.

    Raises:
        RefusedInput: a file is missing or cut short, or tensors are missing, unknown or misshapen.
    """
    stored = stored_tensors(folder)
    _refuse_misfits(
        folder,
        {name: each.shape for name, each in stored.items()},
        into,
        "With other tensors it would draft otherwise than it was trained to: fetch it again, or a drafter of the layout that its "
        "config.json describes; drafter.init_from trains on from what fits",
    )
    for name, tensor in into.items():
        tensor.copy_(read_tensor(stored[name].file, name))


def read_tensor(place: Path, name: str) -> Tensor:
    """One tensor of a file, as stored.

    Raises:
        RefusedInput: it can't be read.
    """
    try:
        with safe_open(str(place), framework="pt") as stored:
            tensor: Tensor = stored.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise RefusedInput(f"{place}: {name} can't be read ({error}); fetch or copy the file again") from error
    return tensor


def _refuse_misfits(place: Path, found: dict[str, tuple[int, ...]], into: dict[str, Tensor], remedy: str) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in into.items()}
    problems = {
        "missing": sorted(wanted.keys() - found.keys()),
        "unknown": sorted(found.keys() - wanted.keys()),
        "misshapen": [
            f"{name} {found[name]} instead of {wanted[name]}"
            for name in sorted(found.keys() & wanted.keys())
            if found[name] != wanted[name]
        ],
    }
    told = [
        f"{kind}: {', '.join(names[:_NAMES_SHOWN])}"
        + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")
        for kind, names in problems.items()
        if names
    ]
    if told:
        raise RefusedInput(f"{place}: doesn't fit this drafter ({'; '.join(told)}). {remedy}")
