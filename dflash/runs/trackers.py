"""Live logging to experiment trackers: TensorBoard, and trackio and wandb where they are installed.

A tracker gets the scalars of steps, evaluations and log lines at their step. It may not harm the run: one that can't be opened, or that
raises, is left off from then on, with one warning.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from dflash.errors import RefusedInput
from dflash.runs.folder import RunFolder

TRACKERS = ("tensorboard", "trackio", "wandb")
PROJECT = "dflash"
SCALAR_KINDS = ("step", "evaluation", "line")
_NOT_SCALARS = ("time", "seconds", "step", "source_line", "event")


def scalars(event: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of an event by tag, as in step/loss; none for events of other kinds than `SCALAR_KINDS`."""
    kind = event.get("event")
    if kind not in SCALAR_KINDS:
        return {}
    return {
        f"{kind}/{name}": float(value)
        for name, value in event.items()
        if name not in _NOT_SCALARS and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


class Tracker(Protocol):
    """What trackers have in common: scalars at a step."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Log scalars."""

    def close(self) -> None:
        """Write out what is held."""


class LiveTrackers:
    """Passes events on to trackers while a run goes on: `record` each event, `close` at the end.

    Args:
        names: trackers, of `TRACKERS`.
        run: whose events they are.
        warn: told once of each tracker that is left off, and why.

    Raises:
        RefusedInput: an unknown tracker, or one that is not installed.
    """

    def __init__(self, names: Sequence[str], run: RunFolder, warn: Callable[[str], None]) -> None:
        for name in names:
            _check_installed(name)
        self._warn = warn
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            try:
                self._trackers[name] = _OPEN[name](run)
            except Exception as error:
                self._leave_off(name, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, event: dict[str, Any]) -> None:
        """Log an event's scalars, if it is of a kind that has any."""
        values, step = scalars(event), event.get("step")
        if not values or not isinstance(step, int):
            return
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.log(values, step)
            except Exception as error:
                self._leave_off(name, error)

    def close(self) -> None:
        """Close all trackers."""
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.close()
            except Exception as error:
                self._leave_off(name, error)
        self._trackers = {}

    def _leave_off(self, name: str, error: Exception) -> None:
        self._trackers.pop(name, None)
        self._warn(f"telemetry.trackers: {name} failed and is left off: {type(error).__name__}: {error}")


class TensorBoard:
    """Event files of TensorBoard in a folder."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, values: dict[str, float], step: int, time: float | None = None) -> None:
        """Log scalars; `time` in seconds since 1970, now if None."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step, walltime=time)

    def close(self) -> None:
        """Write out what is held."""
        self._writer.close()


class _Hosted:
    """A run of trackio or wandb: their `init` gives an object with the same two calls."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


def _open_tensorboard(run: RunFolder) -> Tracker:
    return TensorBoard(run.path / "tensorboard")


def _open_trackio(run: RunFolder) -> Tracker:
    """A resumed run goes on under its name."""
    return _Hosted(importlib.import_module("trackio").init(project=PROJECT, name=run.name, resume="allow"))


def _open_wandb(run: RunFolder) -> Tracker:
    """wandb takes no step twice, so each session is a run of its own there, in a group of the run's name."""
    return _Hosted(importlib.import_module("wandb").init(project=PROJECT, name=run.name, group=run.name, dir=str(run.path)))


_OPEN: dict[str, Callable[[RunFolder], Tracker]] = {
    "tensorboard": _open_tensorboard,
    "trackio": _open_trackio,
    "wandb": _open_wandb,
}


def _check_installed(name: str) -> None:
    if name not in TRACKERS:
        raise RefusedInput(f"telemetry.trackers: {name}: one of {', '.join(TRACKERS)}")
    package = "tensorboardX" if name == "tensorboard" else name
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:  # without an origin: a mere folder of that name, as wandb leaves where it ran
        raise RefusedInput(f"telemetry.trackers: {name} is not installed: `pip install {package}`, or take it off the list")
