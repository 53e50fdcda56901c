"""The feature cache: a token's features are computed once, written down, and read ever after through a memory map.

    cache.json          what it is made of, with its fingerprint
    features.bin        all features; a sample has a place of its own, given by the data set's lengths alone
    rows-*.journal      which samples are filled, with a checksum each; one file a writer

Because places are fixed, several writers (target workers, runs, `dflash cache`) never meet: a sample can't lie in two places, none is
moved, and a writer that dies leaves at worst one place without a record, to be filled again. features.bin is sparse: it takes the
disk that is filled. Of two workers that fill the same sample, the later one's bytes and record count.

A sample's bytes are held against their checksum when this process first reads them; where they don't fit (a power cut, a bad disk),
the sample is computed again. A cache filled on one machine can be read on others; while it is filled, its workers must be on one
machine, or on a file system that shows a write at once everywhere (not tried over NFS).
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.data.files import write_whole, writing
from dflash.model.cache_facts import DESCRIPTION, FEATURES, CacheFacts, relative_error
from dflash.model.cache_journal import RECORD, Journals
from dflash.model.feature_codec import Codec

if TYPE_CHECKING:
    from dflash.data.rows import TokenRows

_LOG = logging.getLogger(__name__)


class LiveTarget(Protocol):
    """What computes features; see `FrozenTarget.features`."""

    def features(self, rows: TokenRows, *, packed: bool) -> Tensor:
        """[tokens, width]."""


@dataclass(frozen=True)
class CacheState:
    """How far a cache is filled.

    Attributes:
        samples: filled.
        relative_rms_error: root mean square of the error over that of the features, of all that is filled.
        cosine: mean over tokens, between their features and what is kept of them.
    """

    samples: int
    relative_rms_error: float
    cosine: float


def make_cache(facts: CacheFacts) -> None:
    """Make the folder and the empty cache, unless this very cache is there already.

    Raises:
        RefusedInput: another cache lies there, or something else.
        RunFailed: the disk is full or the folder can't be written.
    """
    if not facts.refuse_another():
        with writing(facts.folder):
            facts.folder.mkdir(parents=True, exist_ok=True)
        told = {"fingerprint": facts.fingerprint, "made_of": facts.made_of, "token_bytes": facts.token_bytes}
        write_whole(facts.folder / DESCRIPTION, json.dumps(told, indent=1).encode(), scratch=facts.folder.parent)
    place = facts.folder / FEATURES
    with writing(place), place.open("ab") as file:
        if os.fstat(file.fileno()).st_size != facts.size_bytes:
            file.truncate(facts.size_bytes)


class FeatureCache:
    """One cache, open for reading and filling."""

    def __init__(self, facts: CacheFacts, lengths: NDArray[np.integer]) -> None:
        """Open what `make_cache` made; `lengths` are the tokens of every sample of the data set, [samples].

        Raises:
            RefusedInput: another cache lies there.
        """
        make_cache(facts)
        self.facts = facts
        self._codec = Codec.of(facts)
        self._lengths = lengths.astype(np.int64)
        self._places = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64) * facts.token_bytes
        self._journals = Journals(facts.folder, facts.samples)
        self._checked = np.zeros(facts.samples, dtype=np.bool_)
        self._file = facts.folder / FEATURES
        self._map = np.memmap(self._file, np.uint8, "r") if facts.size_bytes else np.zeros(0, np.uint8)

    def holds(self, sample_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these samples can be read, [samples asked for]; each is checked the first time."""
        there = self._sound(sample_ids)
        if not there.all():
            self._journals.refresh()
            there = self._sound(sample_ids)
            for sample in sample_ids[~there & self._journals.filled()[sample_ids]]:
                _LOG.warning("%s: the features of sample %d are damaged; they are computed again", self._file, sample)
        return there

    def read(self, sample_ids: NDArray[np.int64], dtype: torch.dtype) -> Tensor:
        """Features of samples that it holds, end to end: [tokens, width] on the CPU."""
        ends = np.cumsum(self._lengths[sample_ids])
        kept = np.empty((int(ends[-1]) if len(ends) else 0, self.facts.token_bytes), dtype=np.uint8)
        for sample, end in zip(sample_ids, ends, strict=True):
            kept[end - self._lengths[sample] : end] = self._bytes_of(int(sample)).reshape(-1, self.facts.token_bytes)
        return self._codec.decode(kept, dtype)

    def write(self, sample_ids: NDArray[np.int64], features: Tensor) -> None:
        """Keep the features [tokens, width] of samples, end to end.

        Raises:
            RunFailed: the disk is full or can't be written, or a number isn't finite. What was kept before is whole.
        """
        if features.shape != (int(self._lengths[sample_ids].sum()), self.facts.width):
            raise ValueError(f"features {tuple(features.shape)} for {len(sample_ids)} samples of width {self.facts.width}")
        kept = self._codec.encode(features)
        records = self._records(sample_ids, kept, features)
        with writing(self._file):
            handle = os.open(self._file, os.O_WRONLY)
            try:
                for sample, end in zip(sample_ids, np.cumsum(self._lengths[sample_ids]), strict=True):
                    _write_all(handle, kept[end - self._lengths[sample] : end], int(self._places[sample]))
            finally:
                os.close(handle)
        self._journals.append(records)

    def state(self) -> CacheState:
        """How far it is filled now, by all writers."""
        self._journals.refresh()
        there = self._journals.filled()
        records = self._journals.records[there]
        tokens = int(self._lengths[there].sum())
        return CacheState(
            samples=len(records),
            relative_rms_error=relative_error(float(records["signal"].sum()), float(records["noise"].sum())),
            cosine=float(records["cosine"].sum()) / tokens if tokens else 1.0,
        )

    def _sound(self, sample_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        records = self._journals.records[sample_ids]
        there: NDArray[np.bool_] = records["sample"] >= 0
        for at in np.flatnonzero(there & ~self._checked[sample_ids]):
            sample = int(sample_ids[at])
            if zlib.crc32(self._bytes_of(sample).data) == records["crc"][at]:
                self._checked[sample] = True
            else:
                there[at] = False
        return there

    def _bytes_of(self, sample: int) -> NDArray[np.uint8]:
        return self._map[self._places[sample] : self._places[sample + 1]]

    def _records(self, sample_ids: NDArray[np.int64], kept: NDArray[np.uint8], features: Tensor) -> NDArray[np.void]:
        """A record a sample, with what keeping it costs in accuracy."""
        exact, there = features.detach().cpu().float(), self._codec.decode(kept, torch.float32)
        signal, noise = exact.square().sum(-1), (exact - there).square().sum(-1)
        cosine = torch.nn.functional.cosine_similarity(exact.double(), there.double(), dim=-1)
        starts = np.concatenate([[0], np.cumsum(self._lengths[sample_ids])])[:-1].astype(np.int64)
        records = np.zeros(len(sample_ids), RECORD)
        records["sample"] = sample_ids
        for name, values in (("signal", signal), ("noise", noise), ("cosine", cosine)):
            records[name] = np.add.reduceat(values.double().numpy(), starts)
        for at, (sample, start) in enumerate(zip(sample_ids, starts, strict=True)):
            records["crc"][at] = zlib.crc32(kept[start : start + self._lengths[sample]].reshape(-1).data)
        return records


class CachedTarget:
    """A target that reads what was computed before; what was not, it computes and keeps.

    What it hands out is what it will read later, so a run gives the same weights whether the cache was filled before or meanwhile. The
    target itself is loaded when something has to be computed for the first time.
    """

    def __init__(self, cache: FeatureCache, load: Callable[[], LiveTarget], *, dtype: torch.dtype, device: torch.device) -> None:
        """`load` makes the target; features are handed out in `dtype` on `device`."""
        self._cache, self._load, self._dtype, self._device = cache, load, dtype, device
        self._target: LiveTarget | None = None

    def features(self, rows: TokenRows, *, packed: bool) -> Tensor:
        """As `FrozenTarget.features`."""
        there = self._cache.holds(rows.sample_ids)
        if not there.all():
            lacking = rows if not there.any() else rows.take(np.flatnonzero(~there))
            self._cache.write(lacking.sample_ids, self._live().features(lacking, packed=packed))
        return self._cache.read(rows.sample_ids, self._dtype).to(self._device)

    def _live(self) -> LiveTarget:
        if self._target is None:
            self._target = self._load()
        return self._target


def _write_all(handle: int, data: NDArray[np.uint8], place: int) -> None:
    """Write all of it at a place; a full disk may take a part first and then say so."""
    left = np.ascontiguousarray(data).reshape(-1).data
    while left:
        written = os.pwrite(handle, left, place)
        left, place = left[written:], place + written
