"""A small prepared data set with no download, for notebooks and first tries."""

from __future__ import annotations

from pathlib import Path

from dflash.data.options import PrepareOptions
from dflash.data.prepare import prepare
from dflash.data.sample import write_sample_corpus


def sample_tokens(folder: str | Path, *, chats: int = 200, max_length: int = 512, tokenizer: str = "qwen3-tiny") -> Path:
    """Make (once) a token data set from documented Python on this machine.

    Args:
        folder: where chats.jsonl and the data set `tokens` are put.
        chats: conversations, at most.
        max_length: tokens a row, at most; longer ones are cut.
        tokenizer: a model folder, or the name of a shipped target.

    Returns:
        the data set's folder.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "chats.jsonl").exists():
        write_sample_corpus(place / "chats.jsonl", limit=chats, progress=False)
    prepare([place / "chats.jsonl"], tokenizer, place / "tokens", options=PrepareOptions(max_length=max_length))
    return place / "tokens"
