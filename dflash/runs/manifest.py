"""What a run was made with: versions, hardware, git state, data. Written once when it starts, one entry more at each resume."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from dflash.machine import find_gpus

_PACKAGES = (
    "dflash-workbench",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "ray",
    "polars",
    "numpy",
    "numba",
    "flash-attn",
)


def describe_environment(cwd: Path) -> dict[str, Any]:
    """Versions of what counts, the machine, and the git state of the folder the run was started in."""
    return {
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "machine": {
            "system": platform.platform(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
            "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in find_gpus()],
        },
        "git": _git(cwd),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(cwd: Path) -> dict[str, Any]:
    """Commit, and the uncommitted change; empty outside a repository or without git."""
    commit = _run_git(cwd, "rev-parse", "HEAD")
    return {} if commit is None else {"commit": commit, "diff": _run_git(cwd, "diff", "HEAD") or ""}


def _run_git(cwd: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
