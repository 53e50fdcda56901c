"""What a run does when its folder is moved or deleted under it.

Events and console lines go on into the moved folder by themselves, their files being open. All else goes by name: the next checkpoint would
make the old folder anew, and commands would be looked for where nobody puts them. So a run that was moved writes its checkpoint where
the folder is now and stops there, whole; one whose folder is gone stops without.
"""

from __future__ import annotations

from dflash.pipeline.checkpoints import CheckpointStore
from dflash.pipeline.coordinator import Coordinator
from dflash.runs.hold import Hold


class FolderWatch:
    """Looks whether the folder of a driven run is where it was."""

    def __init__(self, hold: Hold, store: CheckpointStore) -> None:
        self._hold, self._store = hold, store

    def look(self, coordinator: Coordinator) -> None:
        """Ask for a stop, and send checkpoints after the folder, if it was moved.

        Raises:
            FolderGone: it was deleted.
        """
        run = self._hold.find()
        if run.checkpoints == self._store.folder:
            return
        self._store.folder = run.checkpoints
        coordinator.stop_requested = True
        self._store.warn(
            f"the run's folder was moved to {run.path}: stopping after this step with a checkpoint there; "
            f"go on with `dflash resume {run.path}`"
        )
