"""`drafter.init_from`: the drafter a user named, found, and what a new one takes from it. No torch, so that `dflash doctor` can tell it too."""

from __future__ import annotations

from pathlib import Path

from dflash.config import RunConfig
from dflash.errors import RefusedInput
from dflash.model.facts import target_facts
from dflash.model.shape import DrafterShape
from dflash.model.warm_start import WarmStart, plan_from_drafter, plan_from_target
from dflash.pipeline.checkpoints import find_fault
from dflash.runs.folder import open_run


def plan_warm_start(config: RunConfig, shape: DrafterShape, runs: Path) -> WarmStart | None:
    """What a new drafter of `shape` takes from `drafter.init_from`; None when that is empty.

    Args:
        config: the run's settings.
        shape: the new drafter's.
        runs: where runs are looked up by name.

    Raises:
        RefusedInput: nothing of that kind is there, it is damaged, or it was made for another target.
    """
    named = config.drafter.init_from
    if named is None:
        return None
    if named == "target":
        return plan_from_target(target_facts(config.target.path), shape)
    return plan_from_drafter(_folder_of(named, runs), shape)


def _folder_of(named: str, runs: Path) -> Path:
    """The folder with a drafter's config.json: the one named, or the newest whole checkpoint of a run."""
    folder = Path(named).expanduser()
    if (folder / "state.json").is_file():
        fault = find_fault(folder)
        if fault:
            raise RefusedInput(f"drafter.init_from={folder}: {fault}; name another checkpoint, or the run for its newest whole one")
        return folder
    if (folder / "config.json").is_file():
        return folder
    try:
        run = open_run(named, runs)
    except RefusedInput as error:
        raise RefusedInput(
            f"drafter.init_from={named}: neither a drafter's folder (config.json and model.safetensors), nor a run of {runs}, nor "
            "`target`; give one of these, or leave it empty"
        ) from error
    whole = [path for path in sorted(run.checkpoints.glob("step-*")) if find_fault(path) is None]
    if not whole:
        raise RefusedInput(f"drafter.init_from={named}: the run {run.path} has no whole checkpoint")
    return whole[-1]
