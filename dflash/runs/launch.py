"""Start a run in the background, so that it outlives the terminal, the notebook's kernel and JupyterLab.

The child is a session of its own with no standard input and its output in output.log; interrupts and hang-ups of the parent do not
reach it. Whoever wants to know how it goes reads the run's folder.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from dflash.config import RunConfig
from dflash.errors import RunFailed
from dflash.runs.folder import RunFolder, create_run


def launch(config: RunConfig, *, runs: Path = Path("runs"), name: str | None = None) -> RunFolder:
    """Create a run and start driving it in a process of its own.

    Returns:
        The run's folder, once the process has taken hold of it.

    Raises:
        RefusedInput: the name is taken.
        RunFailed: the process died at once; its output is in the message.
    """
    run = create_run(runs, name, config)
    drive(run)
    return run


def drive(run: RunFolder, *, start_seconds: float = 120.0) -> int:
    """Start a background process that drives an existing run from its newest checkpoint. Returns its pid."""
    with run.output_log.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "dflash", "resume", str(run.path.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + start_seconds
    while not _drives(child.pid, run) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if child.poll() not in (None, 0) and run.state() != "finished":
        raise RunFailed(f"{run.path}: the run ended at once with code {child.returncode}:\n{_last_lines(run.output_log)}")
    return child.pid


def wait_until_ended(run: RunFolder, seconds: float = 600.0) -> str:
    """Wait until no process drives the run any more. Returns its state then.

    Raises:
        RunFailed: it still goes on after so many seconds; the wait ends, the run does not.
    """
    deadline = time.monotonic() + seconds
    while run.is_driven(patient=True):
        if time.monotonic() > deadline:
            raise RunFailed(f"{run.path}: still running after {seconds:g} s; wait again, or stop it")
        time.sleep(0.2)
    return run.state()


def _drives(pid: int, run: RunFolder) -> bool:
    return run.is_driven() and run.process().get("pid") == pid


def _last_lines(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
