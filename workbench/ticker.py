"""A daemon thread that does one thing again and again, at a steady pace or at once when woken."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Ticker:
    """Calls `work` every `seconds` (after it is done, so that a slow one is never called twice at once) until it returns False or is closed."""

    def __init__(self, work: Callable[[], bool], seconds: float, name: str) -> None:
        self.seconds = seconds
        self._work = work
        self._wake, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Work now rather than at the next tick."""
        self._wake.set()

    def close(self) -> None:
        """End after the tick under way, and wait for that unless called from within it."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    @property
    def alive(self) -> bool:
        """Whether it still ticks."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._closed.is_set() and self._work():
            self._wake.wait(self.seconds)
            self._wake.clear()
