"""Which rows of a feature cache are filled: journals of records, appended by one writer each and read by all.

A record is one sample: its number, a checksum of its features' bytes, what keeping them cost in accuracy, and a checksum of the record.
It is appended after the features are written, so what a killed writer or a full disk left half-written has no record, or one whose
checksum doesn't fit; a torn last record is passed over. A writer begins a file of its own, so that none appends after another's torn end.
numpy only.
"""

from __future__ import annotations

import uuid
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dflash.data.files import writing
from dflash.model.cache_facts import JOURNALS

RECORD = np.dtype([("sample", "<i8"), ("signal", "<f8"), ("noise", "<f8"), ("cosine", "<f8"), ("crc", "<u4"), ("check", "<u4")])
"""signal, noise: sums of squares of the features and of their error; cosine: sum over the tokens, between features and what is kept."""
_CHECKED = RECORD.itemsize - 4


class Journals:
    """All journals of a cache as read so far, and the one this process appends to.

    Attributes:
        records: by sample, [samples]; `sample` is -1 where it isn't filled.
    """

    def __init__(self, folder: Path, samples: int) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._own = folder / JOURNALS.replace("*", uuid.uuid4().hex[:12])
        self.records: NDArray[np.void] = np.zeros(samples, RECORD)
        self.records["sample"] = -1
        self.refresh()

    def refresh(self) -> None:
        """Read what was appended since, by whomever. Of a sample with several records the last read counts."""
        for place in sorted(self._folder.glob(JOURNALS)):
            done = self._read.get(place, 0)
            whole = (place.stat().st_size - done) // RECORD.itemsize
            if whole > 0:
                found = np.fromfile(place, RECORD, whole, offset=done)
                self._read[place] = done + found.nbytes
                self._take(found)

    def append(self, records: NDArray[np.void]) -> None:
        """Append records (their `check` is filled in here) with one write.

        Raises:
            RunFailed: the disk is full or the folder can't be written.
        """
        for record in records:
            record["check"] = zlib.crc32(record.tobytes()[:_CHECKED])
        with writing(self._own), self._own.open("ab", buffering=0) as journal:
            before = journal.tell()
            if journal.write(records.tobytes()) != records.nbytes:  # a full disk takes a part first
                journal.truncate(before)
                journal.write(records.tobytes())
        self._read[self._own] = self._own.stat().st_size
        self._take(records)

    def filled(self) -> NDArray[np.bool_]:
        """Which samples are filled, [samples]."""
        there: NDArray[np.bool_] = self.records["sample"] >= 0
        return there

    def _take(self, found: NDArray[np.void]) -> None:
        sound = [
            zlib.crc32(record.tobytes()[:_CHECKED]) == record["check"] and 0 <= record["sample"] < len(self.records)
            for record in found
        ]
        kept = found[np.array(sound, dtype=np.bool_)]
        self.records[kept["sample"]] = kept
