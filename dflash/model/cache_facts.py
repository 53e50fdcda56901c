"""What a feature cache is made of, and how much disk it takes: told without torch and before anything is written.

A cache holds the features of one target's captured layers for every token of one prepared data set. Its fingerprint covers all that
decides a feature: the target's config.json and weights, the precision it computes in, the captured layers, the data set, and how the
numbers are kept. How attention is computed is no part of it, nor anything of the drafter but the layers it reads.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash.config import RunConfig
from dflash.data.dataset import TokenDataset
from dflash.errors import RefusedInput
from dflash.model.facts import TargetFacts, read_json
from dflash.model.weight_headers import stored_tensors

FORMAT = 1
DESCRIPTION, FEATURES, JOURNALS = "cache.json", "features.bin", "rows-*.journal"
ROOM = "set target.cache to a folder on another disk, target.cache_dtype=float8_e4m3 (half the room), or target.features=live"
_REMEDY = "set target.cache to another folder, or delete this one"


@dataclass(frozen=True)
class CacheFacts:
    """One cache as a run wants it.

    Attributes:
        folder: where it lies.
        made_of: all that decides its content, as JSON values.
        width: numbers of a token's features.
        group: numbers that share a scale in float8_e4m3: one layer's state.
        dtype: how numbers are kept: bfloat16 or float8_e4m3.
        samples, tokens: of the data set.
    """

    folder: Path
    made_of: dict[str, Any] = field(hash=False)
    width: int
    group: int
    dtype: str
    samples: int
    tokens: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's features; float8_e4m3 has a float32 scale for each group."""
        return 2 * self.width if self.dtype == "bfloat16" else self.width + 4 * (self.width // self.group)

    @property
    def size_bytes(self) -> int:
        """Bytes of all features; the journals take 40 more a sample."""
        return self.tokens * self.token_bytes

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what it is made of."""
        return hashlib.sha256(json.dumps(self.made_of, sort_keys=True).encode()).hexdigest()

    def refuse_another(self) -> bool:
        """Whether the folder holds this very cache; False where there is nothing yet.

        Raises:
            RefusedInput: another cache lies there, or something else.
        """
        place = self.folder / DESCRIPTION
        if not place.is_file():
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise RefusedInput(f"target.cache={self.folder}: is no feature cache; give an empty or a new folder")
            return False
        found = read_json(place)
        if found.get("fingerprint") != self.fingerprint:
            theirs = found.get("made_of") or {}
            differing = [
                f"{key} {_short(theirs.get(key))}, here {_short(ours)}"
                for key, ours in self.made_of.items()
                if theirs.get(key) != ours
            ]
            raise RefusedInput(
                f"target.cache={self.folder}: holds other features ({'; '.join(differing)}; fingerprint "
                f"{_short(found.get('fingerprint'))}, here {_short(self.fingerprint)}); {_REMEDY}"
            )
        return True

    def missing_bytes(self) -> int:
        """Bytes of disk the cache has yet to take."""
        place = self.folder / FEATURES
        held = 512 * place.stat().st_blocks if place.is_file() else 0
        return max(0, self.size_bytes - held)

    def free_bytes(self) -> int:
        """Bytes free on its disk."""
        return shutil.disk_usage(
            next(path for path in (self.folder.absolute(), *self.folder.absolute().parents) if path.is_dir())
        ).free

    def refuse_small_disk(self) -> None:
        """Raise RefusedInput when its disk hasn't the room for what is to be written."""
        needed, free = self.missing_bytes(), self.free_bytes()
        if needed > free:
            raise RefusedInput(
                f"target.cache={self.folder}: {needed / 2**30:.2f} GiB to be written, {free / 2**30:.2f} GiB free, "
                f"{(needed - free) / 2**30:.2f} GiB too little; {ROOM}"
            )


def cache_folder(config: RunConfig) -> Path:
    """Where a run's features are kept: `target.cache`, or beside its data set."""
    return Path(config.target.cache) if config.target.cache else Path(f"{config.data.path.rstrip('/')}-features")


def cache_facts(
    config: RunConfig, dataset: TokenDataset, target: TargetFacts, layer_ids: tuple[int, ...], *, on_gpu: bool
) -> CacheFacts:
    """Describe the cache a run wants.

    Args:
        config: the run's settings.
        dataset: its data.
        target: its target.
        layer_ids: layers the target captures, in the order of the columns.
        on_gpu: whether the target computes on a GPU, which decides its precision where target.dtype is auto.

    Raises:
        RefusedInput: a weight file of the target is missing or can't be read.
    """
    precision = config.target.dtype if config.target.dtype != "auto" else "bfloat16" if on_gpu else "float32"
    made_of = {
        "format": FORMAT,
        "target_config": hashlib.sha256((target.folder / "config.json").read_bytes()).hexdigest(),
        "target_weights": _weights_digest(target.folder),
        "target_dtype": precision,
        "layer_ids": list(layer_ids),
        "data": dataset.fingerprint,
        "kept_as": config.target.cache_dtype,
    }
    return CacheFacts(
        folder=cache_folder(config),
        made_of=made_of,
        width=len(layer_ids) * target.hidden_size,
        group=target.hidden_size,
        dtype=config.target.cache_dtype,
        samples=len(dataset),
        tokens=int(dataset.lengths.sum(dtype="int64")),
    )


def _weights_digest(folder: Path) -> str:
    """SHA-256 over the target's weight files."""
    files = sorted({stored.file for stored in stored_tensors(folder).values()})
    whole = hashlib.sha256()
    for file in files:
        stat = file.stat()
        whole.update(_file_digest(file, stat.st_size, stat.st_mtime_ns))
    return whole.hexdigest()


@functools.lru_cache(maxsize=64)
def _file_digest(file: Path, size_bytes: int, changed_ns: int) -> bytes:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and len(value) == 64 else str(value)


def relative_error(signal: float, noise: float) -> float:
    """Root of noise over signal, both sums of squares; 0 of nothing."""
    return math.sqrt(noise / signal) if signal else 0.0
