"""A run's folder as the process that drives it holds it: found again when somebody moves it, missed when somebody deletes it.

The lock file is open as long as the run is driven. Where it lies now is where the folder is, whatever its name was when the run began.
"""

from __future__ import annotations

import fcntl
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.errors import RunFailed

if TYPE_CHECKING:
    from dflash.runs.folder import RunFolder

LOCK = "run.lock"


class FolderGone(RunFailed):
    """The run's folder was deleted, or moved where it can't be found: nothing more can be kept."""


@dataclass
class Hold:
    """A held run; `run` is its folder where it was seen last, `lock` the handle of its lock file."""

    run: RunFolder
    lock: int
    was_moved: bool = False

    def find(self) -> RunFolder:
        """The run's folder where it is now.

        Raises:
            FolderGone: it is nowhere.
        """
        if _is_at(self.run.path / LOCK, self.lock):
            return self.run
        place = _path_of(self.lock)
        if place is None or place.name != LOCK or not _is_at(place, self.lock):
            raise FolderGone(
                f"{self.run.path}: the run's folder was deleted, or moved to another disk, while the run went on; it stops, because nothing "
                "more can be kept. Where a copy was made, `dflash resume COPY` goes on from its last checkpoint"
            )
        self.run, self.was_moved = type(self.run)(place.parent), True
        return self.run


def _is_at(place: Path, handle: int) -> bool:
    try:
        return os.path.samestat(place.stat(), os.fstat(handle))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a network folder that does not answer just now is not gone
        return True


def _path_of(handle: int) -> Path | None:
    """Where an open file lies now; None if it has no name any more, or the system can't tell."""
    try:
        if sys.platform == "darwin":
            return Path(os.fsdecode(fcntl.fcntl(handle, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
        return Path(os.readlink(f"/proc/self/fd/{handle}"))
    except OSError:
        return None
