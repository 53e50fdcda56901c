"""The shards once more, flat: a handful of arrays that every process maps into memory and shares through the page cache.

Parquet is the form to keep and to exchange; but a random row of it costs a whole row group. The flat form is derived from it,
lies beside it in a folder named after the data's fingerprint (so it can't be stale, only missing), and can be deleted at any time:
opening the dataset makes it again. It is built one shard at a time by plain writes, never through a memory map, because a full
disk under a map kills the process.

    tokens.npy int32 [tokens], loss_mask.npy bool [tokens], offsets.npy int64 [rows + 1], loss_tokens.npy int32 [rows]
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dflash.data.files import locked, writing
from dflash.data.manifest import SHARDS_NAME, Manifest, ShardFacts, content_digest
from dflash.errors import RefusedInput

_NAMES = ("tokens", "loss_mask", "offsets", "loss_tokens")


@dataclass(frozen=True)
class FlatArrays:
    """The arrays of the flat form, mapped from disk; see the module."""

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    loss_tokens: NDArray[np.int32]


def open_flat(folder: Path, manifest: Manifest) -> FlatArrays:
    """Map a prepared folder's flat arrays, making them first if they are missing. Safe in many processes at once.

    Raises:
        RefusedInput: a shard is missing or is not what the manifest says.
        RunFailed: the flat form is missing and can't be written.
    """
    place = flat_folder(folder, manifest)
    if not place.is_dir():
        check_shards(folder, manifest)
        with locked(folder, wait=True):
            if not place.is_dir():
                build_flat(folder, manifest)
    return FlatArrays(*(np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _NAMES))


def flat_folder(folder: Path, manifest: Manifest) -> Path:
    """Where the flat form of this very manifest lies."""
    return folder / f"flat-{manifest.fingerprint[:16]}"


def check_shards(folder: Path, manifest: Manifest) -> None:
    """See that every shard is there with its size.

    Raises:
        RefusedInput: one is not; it is named.
    """
    for shard in manifest.shards:
        path = folder / SHARDS_NAME / shard.name
        size = path.stat().st_size if path.is_file() else None
        if size != shard.size_bytes:
            state = "missing" if size is None else f"{size} bytes long instead of {shard.size_bytes}"
            raise RefusedInput(f"{path}: {state}; prepare the data again, or bring the file back")


def build_flat(folder: Path, manifest: Manifest, *, advance: Callable[[int], None] = lambda rows: None) -> None:
    """Write the flat form; the caller holds the folder's lock. `advance` is called with the rows done, shard by shard."""
    place = flat_folder(folder, manifest)
    for old in folder.glob("flat-*"):
        if old != place:
            shutil.rmtree(old, ignore_errors=True)
    scrap = folder / f"flat-{manifest.fingerprint[:16]}.{os.getpid()}.scrap"
    try:
        with writing(place):
            scrap.mkdir()
            _write_arrays(scrap, folder, manifest, advance)
            scrap.replace(place)
    except BaseException:
        shutil.rmtree(scrap, ignore_errors=True)
        raise


def _write_arrays(scrap: Path, folder: Path, manifest: Manifest, advance: Callable[[int], None]) -> None:
    lengths, loss_tokens = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
    with (scrap / "tokens.npy").open("wb") as tokens_file, (scrap / "loss_mask.npy").open("wb") as mask_file:
        _write_header(tokens_file, np.dtype(np.int32), manifest.counts.tokens)
        _write_header(mask_file, np.dtype(np.bool_), manifest.counts.tokens)
        for shard in manifest.shards:
            tokens, mask, offsets = _read_shard(folder / SHARDS_NAME / shard.name, shard)
            tokens_file.write(tokens.tobytes())
            mask_file.write(mask.tobytes())
            lengths.append(np.diff(offsets))
            supervised = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)])
            loss_tokens.append(np.diff(supervised[offsets]).astype(np.int32))
            advance(shard.rows)
        for file in (tokens_file, mask_file):
            file.flush()
            os.fsync(file.fileno())
    np.save(scrap / "offsets.npy", np.cumsum(np.concatenate(lengths)))
    np.save(scrap / "loss_tokens.npy", np.concatenate(loss_tokens))


def _write_header(file: Any, dtype: np.dtype[Any], count: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)


def _read_shard(path: Path, facts: ShardFacts) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.int64]]:
    """One shard's tokens, loss mask and offsets from 0."""
    try:
        table = pq.read_table(path, columns=["input_ids", "loss_mask"], use_threads=False)
    except (OSError, ValueError) as error:
        raise RefusedInput(f"{path}: damaged ({error}); prepare the data again") from error
    ids, mask = (table.column(name).combine_chunks() for name in ("input_ids", "loss_mask"))
    ids, mask = (column.chunk(0) if hasattr(column, "chunk") else column for column in (ids, mask))
    offsets = ids.offsets.to_numpy().astype(np.int64)
    tokens = ids.flatten().to_numpy().astype(np.int32, copy=False)
    flags = mask.flatten().to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
    offsets -= offsets[0]
    if content_digest(tokens, flags, offsets) != facts.digest:
        raise RefusedInput(f"{path}: damaged (its rows are not those that were written); prepare the data again")
    return tokens, flags, offsets
