"""Ray's own processes on this machine, watched by the run that started them.

Ray looks after actors; nobody looks after Ray. A driver that lost its raylet is ended by Ray's library in its next call (if its parent
is gone, as a background run's is), one that lost the GCS a minute later, both at once and without an exception. So the engine looks
itself, says what died while it still can, and then calls Ray no more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import ray

_TASKS = {"raylet": "starts the workers and keeps the shared memory", "gcs_server": "keeps the list of workers"}
_PROGRAMS = str(Path(ray.__file__).parent)


@dataclass
class RayProcesses:
    """Ray's two daemons, and all the processes that they and `ray.init` started. Empty: a cluster that was joined, which is let alone."""

    _daemons: dict[str, psutil.Process] = field(default_factory=dict)
    _family: set[psutil.Process] = field(default_factory=set)
    _are_ours: bool = False

    @classmethod
    def of_this_process(cls) -> RayProcesses:
        """Those of the Ray that this process has just started."""
        found = cls(_are_ours=True)
        for child in sorted(_started_here(), key=lambda process: process.create_time()):
            if child.name() in _TASKS:
                found._daemons[child.name()] = child  # the newest, should one of an earlier session still be ending
        found.remember()
        return found

    def remember(self) -> None:
        """Note who is there now: those a daemon started can't be found through it once it is dead."""
        if not self._are_ours:
            return
        self._family |= _started_here()
        for daemon in self._daemons.values():
            self._family |= _children(daemon)

    def fault(self) -> str | None:
        """Which daemon died, and what it did; None while both live."""
        for name, process in self._daemons.items():
            if not _lives(process):
                return f"Ray's {name} (process {process.pid}) died, which {_TASKS[name]}"
        return None

    def end(self) -> None:
        """Kill all that were ever noted and still live. Shared memory goes with the last of them, having no name."""
        self.remember()
        ending = []
        for process in self._family:
            try:
                process.kill()  # refuses by itself when the pid belongs to another process by now
            except psutil.Error:
                continue
            ending.append(process)
        psutil.wait_procs(ending, timeout=10)
        self._family.clear()


def is_orphan() -> bool:
    """Whether the process that started this one is gone."""
    return os.getppid() == 1


def done_within(seconds: float, act: Callable[[], None]) -> bool:
    """Whether an act came to an end in that time; otherwise it is left to itself, in a thread of its own.

    Raises:
        Exception: what the act raised.
    """
    faults: list[BaseException] = []

    def attempt() -> None:
        try:
            act()
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=attempt, name="leave-ray", daemon=True)
    thread.start()
    thread.join(seconds)
    if faults:
        raise faults[0]
    return not thread.is_alive()


def _started_here() -> set[psutil.Process]:
    """Children of this process that run Ray's programs, and none that a notebook or a user started."""
    return {child for child in psutil.Process().children() if any(_PROGRAMS in word for word in _command(child))}


def _children(process: psutil.Process) -> set[psutil.Process]:
    try:
        return set(process.children(recursive=True))
    except psutil.Error:
        return set()


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
