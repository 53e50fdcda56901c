"""One daemon thread that works through jobs in order, so that a cell or a click never waits for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Worker:
    """Runs jobs one after the other; `on_error` is told what a job raised. A job under a name waiting already takes its place."""

    def __init__(self, name: str, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._jobs: dict[str, Callable[[], object]] = {}
        self._names: queue.Queue[str | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, name: str, job: Callable[[], object]) -> None:
        """Run the job when those before it are done."""
        self._idle.clear()
        self._jobs[name] = job
        self._names.put(name)

    def wait(self, seconds: float = 120.0) -> bool:
        """Wait until no job is left, for scripts and tests. False if the time was up."""
        return self._idle.wait(seconds)

    def close(self) -> None:
        """End after the job under way; those waiting are dropped."""
        self._jobs.clear()
        self._names.put(None)

    def _run(self) -> None:
        while (name := self._names.get()) is not None:
            job = self._jobs.pop(name, None)
            try:
                if job is not None:
                    job()
            except Exception as error:
                self._on_error(error)
            if self._names.empty():
                self._idle.set()
