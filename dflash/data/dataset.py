"""A prepared dataset, opened: random access to token rows by memory map. No torch, no tokenizer; milliseconds to open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dflash.data.flat import FlatArrays, open_flat
from dflash.data.manifest import Manifest, read_manifest
from dflash.data.rows import TokenRows
from dflash.errors import RefusedInput


class TokenDataset:
    """The rows of one prepared folder. Sample ids are row numbers from 0, in the order of the inputs.

    Attributes:
        path: the folder.
        manifest: what is in it and how it was made.
        lengths: int32 [rows], tokens of each row.
        loss_tokens: int32 [rows], supervised tokens of each row.
    """

    def __init__(self, path: Path, manifest: Manifest, arrays: FlatArrays) -> None:
        self.path = path
        self.manifest = manifest
        self.lengths: NDArray[np.int32] = np.diff(arrays.offsets).astype(np.int32)
        self.loss_tokens: NDArray[np.int32] = np.asarray(arrays.loss_tokens)
        self._arrays = arrays

    @classmethod
    def open(cls, path: str | Path) -> TokenDataset:
        """Open a folder written by `prepare`.

        Raises:
            RefusedInput: it is no finished dataset, of another format, or a file of it is missing or damaged.
            RunFailed: the flat form is missing and can't be written.
        """
        folder = Path(path)
        manifest = read_manifest(folder)
        return cls(folder, manifest, open_flat(folder, manifest))

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[object, ...]:
        """Travels to another process as its path: the maps are made there."""
        return TokenDataset.open, (self.path,)

    @property
    def fingerprint(self) -> str:
        """See `Manifest.fingerprint`."""
        return self.manifest.fingerprint

    def rows(self, sample_ids: ArrayLike) -> TokenRows:
        """The rows with these ids, in this order (int [rows]).

        Raises:
            IndexError: an id is below 0 or not below the number of rows.
        """
        ids = np.asarray(sample_ids, dtype=np.int64).reshape(-1)
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise IndexError(f"{self.path}: sample ids {ids.min()} to {ids.max()} of {len(self)} rows")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths[ids], dtype=np.int64)])
        tokens = np.empty(offsets[-1], dtype=np.int32)
        loss_mask = np.empty(offsets[-1], dtype=np.bool_)
        for row, start in enumerate(self._arrays.offsets[ids]):
            here = slice(offsets[row], offsets[row + 1])
            there = slice(start, start + self.lengths[ids[row]])
            tokens[here] = self._arrays.tokens[there]
            loss_mask[here] = self._arrays.loss_mask[there]
        return TokenRows(ids, tokens, loss_mask, offsets)

    def check_target(self, vocab_size: int, *, name: str, fingerprint: str | None = None) -> None:
        """See that a target can be fed with these token ids.

        Args:
            vocab_size: rows of the target's token embedding.
            name: how messages call the target.
            fingerprint: of the target's own tokenizer, where it has one (`tokenizer.load_tokenizer(folder).fingerprint`).

        Raises:
            RefusedInput: the ids belong to another tokenizer, or go beyond the embedding; both sides are named.
        """
        facts = self.manifest.tokenizer
        remedy = f"prepare the data again with --tokenizer {name}"
        if fingerprint is not None and fingerprint != facts.fingerprint:
            raise RefusedInput(
                f"{self.path}: prepared with the tokenizer {facts.name} ({facts.fingerprint[:12]}), but the target {name} has another "
                f"({fingerprint[:12]}); {remedy}"
            )
        if self.manifest.counts.max_token_id >= vocab_size:
            raise RefusedInput(
                f"{self.path}: holds token {self.manifest.counts.max_token_id} of the tokenizer {facts.name}, but the target {name} "
                f"knows only {vocab_size} tokens; {remedy}"
            )

    def check_tokenizer(self, name_or_folder: str | Path) -> None:
        """Compare the tokenizer of a model folder or shipped target with the one these ids were made by.

        Raises:
            RefusedInput: it is another one; both are named.
        """
        from dflash.data.tokenizer import load_tokenizer

        other = load_tokenizer(name_or_folder)
        self.check_target(other.vocab_size, name=other.name, fingerprint=other.fingerprint)
