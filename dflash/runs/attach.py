"""Follow a run from anywhere: a terminal, a second host that shares the folder, while it goes on or after it ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from dflash.runs.folder import RunFolder

_FIRST_BYTES = 4_000


def follow(run: RunFolder, show: Callable[[str], None], poll_seconds: float = 0.5) -> str:
    """Show the last progress lines and each new one, until the run is no longer driven. Returns its state.

    Only reads: leaving (Ctrl-C) does nothing to the run.
    """
    offset = max(_size(run) - _FIRST_BYTES, 0)
    is_first = offset > 0
    while True:
        running = run.is_driven(patient=True)  # asked before reading, so that the last lines are shown too
        lines, offset = _new_lines(run, offset)
        for line in lines[1:] if is_first else lines:  # the first one may be cut
            show(line)
        is_first = is_first and not lines
        if not running:
            return run.state()
        time.sleep(poll_seconds)


def _size(run: RunFolder) -> int:
    return run.console_log.stat().st_size if run.console_log.exists() else 0


def _new_lines(run: RunFolder, offset: int) -> tuple[list[str], int]:
    """Whole lines after the offset, and the offset after them."""
    if not run.console_log.exists():
        return [], offset
    with run.console_log.open("rb") as file:
        file.seek(offset)
        chunk = file.read()
    whole = chunk.rfind(b"\n") + 1
    return chunk[:whole].decode("utf-8", errors="replace").splitlines(), offset + whole
