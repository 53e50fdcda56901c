"""The best checkpoint of a run: weights of the step whose held-out acceptance was the highest, kept beside the newest checkpoints.

It is a folder `best-0003-step-00000600` among the others: the third that was chosen, made after step 600. What was chosen last counts, so a
better one is written beside the old one, which goes when the new one is whole: at no moment is there none.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash.runs.folder import read_json

_NAME = re.compile(r"best-\d+-step-\d+")


@dataclass(frozen=True)
class Measure:
    """How the acceptance was measured that a checkpoint was chosen by; figures of different measures are not compared.

    Attributes:
        by: decoding (real speculative decoding) or walk (simulated round by round).
        prompts: held-out prompts decoded, or conversations walked over.
        tokens: of an answer, at most.
    """

    by: str
    prompts: int
    tokens: int


@dataclass(frozen=True)
class Best:
    """A best checkpoint: its folder, the optimiser step it was made after, its acceptance length, and how that was measured."""

    folder: Path
    step: int
    acceptance_length: float
    measure: Measure

    def words(self) -> str:
        """For people: the step, the figure and where it comes from."""
        how = "decoded" if self.measure.by == "decoding" else "walked"
        return (
            f"step {self.step:,}, acceptance length {self.acceptance_length:.3f} {how} on {self.measure.prompts} held-out prompts"
        )


def best_folders(checkpoints: Path) -> list[Path]:
    """Folders of best checkpoints, the one chosen last first; more than one only when a session was killed between two."""
    folders = [path for path in checkpoints.glob("best-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=_number, reverse=True)


def next_best_name(checkpoints: Path, step: int) -> str:
    """The name of the folder of the next choice."""
    chosen = best_folders(checkpoints)
    return f"best-{_number(chosen[0]) + 1 if chosen else 1:04d}-step-{step:08d}"


def read_best(folder: Path) -> Best | None:
    """What a best checkpoint says of itself, None if that can't be read. Its files are not checked; see `checkpoints.find_fault`."""
    state = read_json(folder / "state.json")
    try:
        kept = state["best"]
        return Best(folder, int(state["step"]), float(kept["acceptance_length"]), Measure(**kept["measure"]))
    except (KeyError, TypeError, ValueError):
        return None


def kept_best(checkpoints: Path) -> Best | None:
    """The best checkpoint of a run as it says of itself; None without one."""
    return next((best for folder in best_folders(checkpoints) if (best := read_best(folder)) is not None), None)


def best_state(acceptance_length: float, measure: Measure) -> dict[str, Any]:
    """What `read_best` finds in the state of a checkpoint."""
    return {"best": {"acceptance_length": acceptance_length, "measure": asdict(measure)}}


def _number(folder: Path) -> int:
    return int(folder.name.split("-")[1])
