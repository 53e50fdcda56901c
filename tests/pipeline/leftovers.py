"""What a run on the ray engine leaves on the machine: processes, and shared memory by name."""

import os
import re
import time
from pathlib import Path

import psutil

SHARED = Path("/dev/shm")


def session_of(process):
    """The name of the Ray session that a process started; None while it has none."""
    for child in process.children():
        try:
            found = re.search(r"session_[0-9_-]+[0-9]", " ".join(child.cmdline()))
        except psutil.Error:
            continue
        if found:
            return found[0]
    return None


def assert_nothing_left(session, seconds=180):
    """Wait until no process has a file of this Ray session open, and none names it; then no shared memory may be left.

    Memory without a name goes with the last process that has it mapped, so only names have to be looked for besides.
    """
    deadline = time.monotonic() + seconds  # Ray's agents look for their raylet now and then
    while left := _processes_of(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
    assert [name for name in SHARED.glob("*plasma*") if _is_unused(name)] == []
    assert [name for name in SHARED.iterdir() if session in name.name] == []


def _processes_of(session):
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            if process.pid == os.getpid():  # Ray's library keeps its log open in a process that was a driver once
                continue
            if session in command or any(session in file.path for file in process.open_files()):
                found.append((process.pid, command))
        except (psutil.Error, OSError):
            continue
    return found


def _is_unused(name):
    """Whether nobody maps it: runs of others may be going on."""
    maps = []
    for process in psutil.process_iter():
        try:
            maps += [each.path for each in process.memory_maps(grouped=True)]
        except (psutil.Error, OSError):
            continue
    return str(name) not in maps
