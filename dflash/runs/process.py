"""Which process it is: its pid together with when it began, so that a pid that was given out again is told apart.

Linux counts the beginning in ticks since boot. The time of day derived from it moves when the clock is set, and a run that goes on would
then look dead; so ticks and the boot's id are compared, no time.
"""

from __future__ import annotations

from pathlib import Path

import psutil

_PROC = Path("/proc")
_STATE, _BEGAN = 0, 19  # fields of /proc/PID/stat, counted from behind the name
_DEAD = (b"Z", b"X")


def beginning_of(pid: int) -> str | None:
    """A text that no other process of that pid has; None if there is no such process, or a zombie only."""
    boot = _PROC / "sys/kernel/random/boot_id"
    if not boot.is_file():
        return _beginning_by_clock(pid)
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()  # a name may hold blanks and brackets
        return None if fields[_STATE] in _DEAD else f"{boot.read_text().strip()}/{int(fields[_BEGAN])}"
    except (OSError, IndexError, ValueError):
        return None


def _beginning_by_clock(pid: int) -> str | None:
    """For systems that keep the beginning as a time of day, which does not move there."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except (psutil.Error, ValueError):
        return None
