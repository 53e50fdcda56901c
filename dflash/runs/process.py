"""Which process it is: its pid together with when it began, so that a pid that was given out again is told apart.

Both count only where the pid was given out: in one boot of one machine, and there in one PID namespace (a container has its own). Linux
counts the beginning in ticks since boot. The time of day derived from it moves when the clock is set, and a run that goes on would then
look dead; so ticks are compared, no time.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

PROC = Path("/proc")
_STATE, _BEGAN = 0, 19  # fields of /proc/PID/stat, counted from behind the name
_DEAD = (b"Z", b"X")


def pid_space() -> str:
    """Where this process's pids count: a text that no other machine, boot or container has."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(PROC / 'self/ns/pid')}"
    except OSError:  # no Linux: no boot's id, no containers
        return os.uname().nodename


def beginning_of(pid: int) -> str | None:
    """A text that no other process of that pid has in this pid space; None if there is no such process, or a zombie only."""
    if not (PROC / "self").exists():
        return _beginning_by_clock(pid)
    try:
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()  # a name may hold blanks and brackets
        return None if fields[_STATE] in _DEAD else str(int(fields[_BEGAN]))
    except (OSError, IndexError, ValueError):
        return None


def _beginning_by_clock(pid: int) -> str | None:
    """For systems that keep the beginning as a time of day, which does not move there."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except (psutil.Error, ValueError):
        return None
