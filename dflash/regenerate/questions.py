"""Which rows ask the same: questions normalised, and those that are nearly identical put into one group.

Normalised: Unicode compatibility form, case folded, everything but letters and digits a single space. Two questions are nearly identical
when at least 0.8 of their runs of three words are shared (Jaccard). Pairs to compare are found by MinHash: of 64 hashes in 16 bands, a pair
alike to 0.8 shares a band with a probability above 0.999, so a rare one may be missed; identical ones never are.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ALIKE = 0.8
_WORDS = 3
_COMPARED = 64  # of the questions in a band, at most; so that thousands of one form cost no hour
_BANDS, _BAND_ROWS = 16, 4
_NOT_WORDS = re.compile(r"[\W_]+")


def normalised(question: str) -> str:
    """The question without case, punctuation and spacing."""
    return _NOT_WORDS.sub(" ", unicodedata.normalize("NFKC", question).casefold()).strip()


def groups_of(questions: Sequence[str]) -> NDArray[np.int64]:
    """For each normalised question the number of its group: that of the first question in it, int64 [questions]."""
    parents = np.arange(len(questions))
    first: dict[str, int] = {}
    bands: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    runs: dict[int, NDArray[np.uint32]] = {}
    rng = np.random.default_rng(0)  # of the hash family, not of the split
    factors = rng.integers(0, 2**64, _BANDS * _BAND_ROWS, dtype=np.uint64) | np.uint64(1)
    offsets = rng.integers(0, 2**64, _BANDS * _BAND_ROWS, dtype=np.uint64)
    for number, question in enumerate(questions):
        known = first.setdefault(question, number)
        if known != number:
            _join(parents, known, number)
            continue
        runs[number] = _runs(question)
        for band, key in enumerate(_band_keys(runs[number], factors, offsets)):
            others = bands[band, key]
            for other in others[-_COMPARED:]:
                if _root(parents, other) != _root(parents, number) and _alike(runs[other], runs[number]):
                    _join(parents, other, number)
            others.append(number)
    return np.array([_root(parents, number) for number in range(len(questions))], dtype=np.int64)


def _runs(question: str) -> NDArray[np.uint32]:
    """Hashes of the runs of three words, sorted, each once; of a shorter question its whole."""
    words = question.split(" ")
    texts = [" ".join(words[i : i + _WORDS]) for i in range(max(1, len(words) - _WORDS + 1))]
    return np.unique(np.array([zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in texts], dtype=np.uint32))


def _band_keys(runs: NDArray[np.uint32], factors: NDArray[np.uint64], offsets: NDArray[np.uint64]) -> list[bytes]:
    with np.errstate(over="ignore"):
        hashes = (runs.astype(np.uint64)[:, None] * factors + offsets) >> np.uint64(32)  # multiply-shift
    smallest = hashes.min(axis=0).astype(np.uint32)
    return [band.tobytes() for band in smallest.reshape(_BANDS, _BAND_ROWS)]


def _alike(left: NDArray[np.uint32], right: NDArray[np.uint32]) -> bool:
    shared = len(np.intersect1d(left, right, assume_unique=True))
    return shared >= ALIKE * (len(left) + len(right) - shared)


def _root(parents: NDArray[np.int64], number: int) -> int:
    while parents[number] != number:
        parents[number] = parents[parents[number]]
        number = int(parents[number])
    return number


def _join(parents: NDArray[np.int64], one: int, other: int) -> None:
    low, high = sorted((_root(parents, one), _root(parents, other)))
    parents[high] = low
