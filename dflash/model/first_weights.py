"""First weights of a drafter that starts warm: what a `WarmStart` plans, done. Every replica does the same and so holds the same."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dflash.errors import RefusedInput
from dflash.model.drafter import Drafter
from dflash.model.facts import target_facts
from dflash.model.families import family_of
from dflash.model.warm_start import FC, WarmStart
from dflash.model.weight_files import read_tensor
from dflash.model.weight_headers import stored_tensors


@torch.no_grad()
def take_first_weights(drafter: Drafter, plan: WarmStart) -> None:
    """Put the planned weights into a drafter whose own first weights are drawn already.

    Raises:
        RefusedInput: a tensor can't be read or holds numbers that aren't finite. The drafter is then of no use.
    """
    parameters = dict(drafter.named_parameters())
    files = {name: stored.file for name, stored in stored_tensors(plan.source).items()}
    offset = family_of(target_facts(plan.source).family).norm_offset if plan.from_target else 0.0
    for ours, theirs in plan.taken.items():
        tensor = _read_finite(files[theirs], theirs)
        parameters[ours].copy_(tensor + offset if tensor.ndim == 1 else tensor)
    if plan.columns:
        _take_columns(parameters[FC], _read_finite(files[FC], FC), plan.columns, drafter.shape.hidden_size)
    if plan.passed_on is not None:
        _pass_on(parameters[FC], plan.passed_on, drafter.shape.hidden_size)
    for name in plan.silent:
        parameters[name].zero_()


def _take_columns(ours: Tensor, theirs: Tensor, columns: list[tuple[int, int]], width: int) -> None:
    """Column blocks of captured layers both have. Where all of the source's are here, the new ones start at zero: they add nothing yet."""
    if len(columns) * width == theirs.shape[1]:
        ours.zero_()
    for here, there in columns:
        ours[:, here * width : (here + 1) * width] = theirs[:, there * width : (there + 1) * width].to(ours.dtype)


def _pass_on(fc: Tensor, place: int, width: int) -> None:
    """Make `fc` hand on one captured layer's state as it is, and nothing yet of the others."""
    fc.zero_()
    fc[:, place * width : (place + 1) * width].fill_diagonal_(1.0)


def _read_finite(place: Path, name: str) -> Tensor:
    tensor = read_tensor(place, name).float()
    if not torch.isfinite(tensor).all():
        raise RefusedInput(
            f"{place}: {name} holds numbers that aren't finite; set drafter.init_from to another drafter or checkpoint"
        )
    return tensor
