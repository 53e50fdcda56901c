"""The errors a user can meet, each with what was wrong, where, and what to do.

`RefusedInput` is the user's to mend (a config key, a file, a token id) and ends a command with exit code 2; `RunFailed` is
everything else that stops work (a full disk, a lost worker) and ends it with 1. A traceback is shown for neither.
"""

from __future__ import annotations


class DFlashError(Exception):
    """Base of the errors this package raises on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1


class RefusedInput(DFlashError):
    """Input that can't be used. The message names the place (file, line, key) and the remedy."""

    exit_code = 2


class RunFailed(DFlashError):
    """Work that had to stop; what was done until then is on disk. The message says how to go on."""


def in_words(error: OSError) -> str:
    """What a file error means to a user: the place and the system's reason, as in "runs/first/run.lock: read-only file system"."""
    reason = error.strerror or type(error).__name__
    return f"{error.filename}: {reason[0].lower()}{reason[1:]}" if error.filename else reason
