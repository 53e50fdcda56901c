"""Samples of the machine a run is on: CPU, memory, shared memory, disk, and GPUs where nvidia-smi is there (not tried on a GPU).

A thread of its own writes to a file of its own (one writer a file), so that a coordinator waiting for a long batch delays nothing.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from dflash.machine import nvidia_smi
from dflash.telemetry.recorder import Recorder

_QUERY = ("index", "utilization.gpu", "memory.used", "power.draw", "temperature.gpu")
_MIB = 2**20


class SystemSampler:
    """Writes a `system` event every so many seconds until it is closed."""

    def __init__(self, events: Path, every_seconds: float) -> None:
        self._recorder = Recorder(events, "system")
        self._every_seconds = every_seconds
        self._disk = events
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="system-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._recorder.close()

    def _work(self) -> None:
        psutil.cpu_percent()  # the first reading is the start of the first interval
        while not self._stop.wait(self._every_seconds):
            self._recorder.record("system", **sample_system(self._disk))


def sample_system(disk: Path) -> dict[str, Any]:
    """One reading; `run_memory_bytes` is what this process and its children hold."""
    memory, shared = psutil.virtual_memory(), Path("/dev/shm")
    return {
        "cpu_percent": psutil.cpu_percent(),
        "memory_used_bytes": memory.used,
        "memory_available_bytes": memory.available,
        "run_memory_bytes": _tree_bytes(),
        "shared_memory_used_bytes": shutil.disk_usage(shared).used if shared.is_dir() else None,
        "disk_free_bytes": _free_bytes(disk),
        "gpus": sample_gpus(),
    }


def _free_bytes(folder: Path) -> int | None:
    """Free bytes of the disk a folder is on; None when somebody moved the folder away."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def sample_gpus() -> list[dict[str, float]]:
    """Utilisation, memory, power and temperature of each NVIDIA GPU; empty where there is no nvidia-smi."""
    return parse_gpus(nvidia_smi(*_QUERY))


def parse_gpus(text: str) -> list[dict[str, float]]:
    """nvidia-smi's CSV rows; values it has not ([N/A]) are left out."""
    names = ("gpu", "utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius")
    gpus = []
    for line in text.strip().splitlines():
        values = {name: _value(cell) for name, cell in zip(names, line.split(","), strict=False)}
        known = {name: value for name, value in values.items() if value is not None}
        if "memory_used_bytes" in known:
            known["memory_used_bytes"] *= _MIB
        gpus.append(known)
    return gpus


def _value(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _tree_bytes() -> int:
    """Resident bytes of this process and its children."""
    held = 0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            held += process.memory_info().rss
        except psutil.Error:  # it ended meanwhile
            continue
    return held
