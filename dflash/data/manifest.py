"""manifest.json of a prepared dataset: what is in it and how it was made. It is written last, so a folder that has one is whole."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from dflash.data.losses import Loss, summed
from dflash.errors import RefusedInput

FORMAT: Final = 1
MANIFEST_NAME = "manifest.json"
SHARDS_NAME = "shards"
REJECTED_NAME = "rejected.jsonl"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TokenizerFacts(_Part):
    """The tokenizer the ids belong to.

    Attributes:
        name: the name or folder it was loaded from.
        fingerprint: SHA-256 over its tokens, their ids and its merges.
        vocab_size: one more than its highest token id.
        special_ids: ids of eos_token, pad_token and the like.
    """

    name: str
    fingerprint: str
    vocab_size: int
    special_ids: dict[str, int]


class TemplateFacts(_Part):
    """The chat template.

    Attributes:
        fingerprint: SHA-256 of its source.
        marked: whether it marks the assistant's text itself.
        opening: for one that does not: what stands between a user's text and the assistant's.
        ends: likewise, the tokens that end an assistant turn.
    """

    fingerprint: str
    marked: bool
    opening: str
    ends: list[str]


class ShardFacts(_Part):
    """One Parquet file: its name in shards/, rows, tokens, size in bytes, and `content_digest` of what it holds."""

    name: str
    rows: int
    tokens: int
    size_bytes: int
    digest: str


class Counts(_Part):
    """Rows and tokens. rows_read = kept + rejected; truncated rows are kept ones; loss_tokens are supervised ones.

    `reasons` counts the rejected rows by reason. A file without rows counts as one row read and rejected. `turns` are those of kept
    rows; what was dropped, with rows or out of them, is in `turns_dropped` and `tokens_dropped`, and by reason in `losses`.
    """

    rows_read: int = 0
    kept: int = 0
    rejected: int = 0
    truncated: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    max_token_id: int = -1
    turns: int = 0
    turns_dropped: int = 0
    tokens_dropped: int = 0
    reasons: dict[str, int] = {}
    losses: dict[str, Loss] = {}

    def __add__(self, other: Counts) -> Counts:
        sums = {name: getattr(self, name) + getattr(other, name) for name in Counts.model_fields if name not in _NOT_SUMS}
        reasons = {kind: self.reasons.get(kind, 0) + other.reasons.get(kind, 0) for kind in sorted({*self.reasons, *other.reasons})}
        losses = summed([self.losses, other.losses])
        return Counts(**sums, max_token_id=max(self.max_token_id, other.max_token_id), reasons=reasons, losses=losses)


_NOT_SUMS = frozenset({"reasons", "losses", "max_token_id"})


class Manifest(_Part):
    """The whole file. `job` is the fingerprint of inputs, tokenizer and options: the same job need not be done again."""

    format: Literal[1] = FORMAT
    job: str
    tokenizer: TokenizerFacts
    template: TemplateFacts | None
    options: dict[str, Any]
    inputs: list[dict[str, Any]]
    counts: Counts
    shards: list[ShardFacts]

    def to_bytes(self) -> bytes:
        """The file's text. The same dataset always gives the same bytes."""
        return self.model_dump_json(indent=2).encode() + b"\n"

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the tokenizer's fingerprint and the shards' digests: equal for equal rows in equal order and shards."""
        parts = [self.tokenizer.fingerprint, *(shard.digest for shard in self.shards)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def content_digest(tokens: NDArray[np.int32], loss_mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> str:
    """BLAKE2b (128 bits) over the rows of a shard: token ids, loss mask and offsets from 0, as `TokenRows` has them."""
    digest = hashlib.blake2b(digest_size=16)
    for array, dtype in ((offsets, "<i8"), (tokens, "<i4"), (loss_mask, "?")):
        digest.update(np.ascontiguousarray(array, dtype=dtype).data)
    return digest.hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Read and check a prepared folder's manifest.

    Raises:
        RefusedInput: the folder or the manifest is missing, of another format, or damaged.
    """
    path = folder / MANIFEST_NAME
    if not folder.is_dir():
        raise RefusedInput(f"{folder}: no such folder; it is written by `dflash prepare`")
    try:
        data = path.read_bytes()
    except OSError as error:
        unfinished = (folder / SHARDS_NAME).is_dir()
        remedy = "run the same `dflash prepare` again to finish it" if unfinished else "make one with `dflash prepare`"
        raise RefusedInput(
            f"{folder}: {'unfinished' if unfinished else 'not a prepared dataset'} (no {MANIFEST_NAME}); {remedy}"
        ) from error
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"])) or "the file"
        raise RefusedInput(f"{path}: {key}: {fault['msg']}; prepare the data again (format {FORMAT} is expected)") from error
