"""Files that are whole or not there: written to a scratch folder of the same file system, synced, then renamed into place.

A process that dies while it writes leaves a scrap in the scratch folder and never a short file under the real name.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash.errors import RefusedInput, RunFailed

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_whole(path: Path, data: bytes | memoryview, *, scratch: Path, synced: bool = True) -> None:
    """Write `data` to `path` atomically, by way of a scrap in `scratch` (same file system).

    `synced=False` leaves it to the system when the bytes reach the disk: whole after a kill, perhaps lost after a power cut.

    Raises:
        RunFailed: the disk is full, or the place can't be written.
    """
    scrap = scratch / f"{path.name}.{os.getpid()}.scrap"
    try:
        with writing(path), scrap.open("wb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        with writing(path):
            scrap.replace(path)
    except BaseException:
        scrap.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError met while writing `path` into a `RunFailed` that says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise RunFailed(
                f"{path}: no space left on the disk. What was finished is kept: free some space and run the same command again"
            ) from error
        raise RunFailed(
            f"{path}: can't be written ({error.strerror or error}); mend that and run the same command again"
        ) from error


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Hold the folder's lock (`folder/.lock`); it falls free when its holder dies.

    Raises:
        RefusedInput: somebody else holds it and `wait` is false.
    """
    path = folder / ".lock"
    with writing(path):
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedInput(f"{folder}: another process is writing there; wait for it, or choose another folder") from error
        yield
    finally:
        os.close(handle)
