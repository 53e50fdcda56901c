"""A sign of life that is seen on other machines: the process that drives a run touches the run's lock file every other second.

A pid says nothing about another machine, or another container. There the lock file's time does. Two machines' clocks may differ, so the time
of day counts at the first look only; from then on it counts when the file's time was seen to *change*, by the reader's own clock, which only
goes forward.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

BEAT_SECONDS = 2.0
SILENT_SECONDS = 20.0  # a call that holds the interpreter, or a slow network folder, keeps a living process from beating for less
WATCH_SECONDS = 10.0


@dataclass(frozen=True)
class _Sight:
    beat: int  # the file's time, in its own nanoseconds
    last: float  # when it was touched, as far as we know, by our clock
    looked: float  # when we looked


_sights: dict[Path, _Sight] = {}


@contextmanager
def beating(lock: int) -> Iterator[None]:
    """Touch an open file until the block is left, wherever the file is moved meanwhile."""
    ended = threading.Event()

    def beat() -> None:
        while True:
            with suppress(OSError):  # a network folder that does not answer just now: the next beat may come through
                os.utime(lock)
            if ended.wait(BEAT_SECONDS):
                return

    heart = threading.Thread(target=beat, name="heartbeat", daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()


def seconds_silent(lock: Path) -> float:
    """How long ago the file was touched, as well as that can be told; infinite if it is not there."""
    now, beat = time.monotonic(), _last_beat(lock)
    if beat is None:
        return math.inf
    seen = _sights.get(lock)
    if seen is None or seen.beat != beat:
        age = abs(time.time() - beat / 1e9)  # a time to come tells as much of another clock as one long past
        last = now - (age if seen is None else min(age, now - seen.looked))
    else:
        last = seen.last
    _sights[lock] = _Sight(beat, last, now)
    return now - last


def beats(lock: Path, seconds: float | None = None) -> bool:
    """Watch for a touch, WATCH_SECONDS if not told otherwise; True as soon as one comes."""
    first, deadline = _last_beat(lock), time.monotonic() + (WATCH_SECONDS if seconds is None else seconds)
    while time.monotonic() < deadline:
        time.sleep(BEAT_SECONDS / 10)
        if _last_beat(lock) != first:
            return True
    return False


def _last_beat(lock: Path) -> int | None:
    """The file's time. It is opened, because a network folder answers from memory when a file is only asked for its time."""
    try:
        with lock.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None
