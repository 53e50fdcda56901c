"""The folder being written: whose work lies in it, and whether that may be gone on with, replaced, or must be left alone.

    finished, same job      nothing to do
    finished, another job   refused, unless it may be overwritten
    unfinished, same job    gone on with
    unfinished, another job its chunks are of no use: started anew
    anything else inside    refused: it is not ours to delete

`.unfinished/job.json` names the job whose chunks lie there. It is emptied before anything is cleared and written when all is clear,
so that a kill at any point leaves a folder that is known to be ours and to need clearing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson

from dflash.data.chunk import Workplace
from dflash.data.files import write_whole, writing
from dflash.data.manifest import MANIFEST_NAME, REJECTED_NAME, SHARDS_NAME, Manifest, read_manifest
from dflash.errors import RefusedInput

_SCRATCH_NAME = ".unfinished"
_JOB_NAME = "job.json"
_OURS = frozenset({MANIFEST_NAME, REJECTED_NAME, SHARDS_NAME, _SCRATCH_NAME, ".lock"})


def make_folder(out: Path) -> None:
    """Make the folder, or see that what lies in it is a dataset's.

    Raises:
        RefusedInput: it holds other files, or is none.
    """
    if out.exists() and not out.is_dir():
        raise RefusedInput(f"{out}: is a file; choose a folder")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    found = {entry.name for entry in out.iterdir()} - {".lock"}
    foreign = sorted(name for name in found if name not in _OURS and not name.startswith("flat-"))
    ours = (out / MANIFEST_NAME).is_file() or (out / _SCRATCH_NAME / _JOB_NAME).is_file()
    if foreign or (found and not ours):
        raise RefusedInput(f"{out}: holds other files ({', '.join(foreign or sorted(found))}); choose an empty or a new folder")


def finished_manifest(out: Path, job: str, *, overwrite: bool) -> Manifest | None:
    """The manifest when this very job is finished there.

    Raises:
        RefusedInput: another job is, and it may not be overwritten.
    """
    if not (out / MANIFEST_NAME).is_file():
        return None
    try:
        manifest = read_manifest(out)
    except RefusedInput:
        if overwrite:
            return None
        raise
    if manifest.job == job:
        return manifest
    if not overwrite:
        raise RefusedInput(
            f"{out}: holds a dataset made from other inputs or with other options; choose another folder, or allow overwriting"
        )
    return None


def open_workplace(out: Path, job: str) -> Workplace:
    """The place to work in, with what this job has finished; of any other job nothing is left."""
    place = Workplace(out, out / _SCRATCH_NAME)
    with writing(out):
        place.scratch.mkdir(exist_ok=True)
        (out / SHARDS_NAME).mkdir(exist_ok=True)
    for scrap in place.scratch.glob("*.scrap"):
        scrap.unlink(missing_ok=True)
    if _job_of(place) != job or (out / MANIFEST_NAME).exists():
        _clear(place)
        write_whole(place.scratch / _JOB_NAME, orjson.dumps({"job": job}), scratch=place.scratch)
    return place


def close_workplace(place: Workplace) -> None:
    """Take the scratch folder away: the dataset is finished."""
    shutil.rmtree(place.scratch, ignore_errors=True)


def _job_of(place: Workplace) -> str | None:
    try:
        job = orjson.loads((place.scratch / _JOB_NAME).read_bytes())["job"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return job if isinstance(job, str) else None


def _clear(place: Workplace) -> None:
    write_whole(place.scratch / _JOB_NAME, orjson.dumps({"job": None}), scratch=place.scratch)
    with writing(place.out):
        for name in (MANIFEST_NAME, REJECTED_NAME):
            (place.out / name).unlink(missing_ok=True)
        for folder in (place.out / SHARDS_NAME, *place.out.glob("flat-*")):
            shutil.rmtree(folder)
        for old in place.scratch.glob("chunk-*"):
            old.unlink()
        (place.out / SHARDS_NAME).mkdir()
