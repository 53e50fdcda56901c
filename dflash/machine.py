"""What this machine has: its GPUs (by nvidia-smi, so that no torch is needed; not tried on a GPU) and the memory this process may use."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_MIB = 2**20
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU."""

    index: int
    name: str
    memory_bytes: int


def find_gpus() -> list[Gpu]:
    """The GPUs nvidia-smi lists; none where it isn't there."""
    return parse_gpus(nvidia_smi("index", "memory.total", "name"))


def nvidia_smi(*fields: str) -> str:
    """What nvidia-smi says of these fields, a CSV row a GPU; empty where it isn't there or doesn't answer."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def parse_gpus(text: str) -> list[Gpu]:
    """GPUs from nvidia-smi's CSV rows `index, MiB, name`; rows of another form are passed over."""
    gpus = []
    for line in text.splitlines():
        index, _, rest = line.partition(",")
        memory, _, name = rest.partition(",")
        if index.strip().isdigit() and memory.strip().isdigit():
            gpus.append(Gpu(int(index), name.strip(), int(memory) * _MIB))
    return gpus


def memory_limit_bytes() -> int:
    """Main memory, or the container's limit where that is lower."""
    limits = [psutil.virtual_memory().total]
    for place in _CGROUP_LIMITS:
        try:
            text = Path(place).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def package_version(package: str) -> str | None:
    """The version of an installed package; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def takes_gpu(device: str, gpus: list[Gpu], torch_version: str) -> bool:
    """Whether work on that device (auto, cpu, cuda) runs on a GPU here; told without loading torch."""
    return device == "cuda" or (device == "auto" and bool(gpus) and not torch_version.endswith("+cpu"))
