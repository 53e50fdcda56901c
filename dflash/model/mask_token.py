"""Which token stands in a block's slots that are still to be drafted.

Order: the config's own; the one served with the released drafters of the target's family; the tokenizer's mask token; a row
of the embedding table that no token of the tokenizer uses. The choice is written into the drafter's config.json, so a server
never has to guess.
"""

from __future__ import annotations

import re

from dflash.errors import RefusedInput
from dflash.model.facts import TargetFacts, read_json

# (family, rows of the embedding table) -> the mask token of the released drafters
_RELEASED: dict[tuple[str, int], int] = {
    ("qwen3", 151_936): 151_669,
    ("qwen3_moe", 151_936): 151_669,
    ("qwen3_5", 248_320): 248_070,
    ("qwen3_5_moe", 248_320): 248_077,
}
_MASK_NAME = re.compile(r"^[<\[]\|?mask\|?[>\]]$", re.IGNORECASE)


def mask_token_id(facts: TargetFacts, configured: int | None) -> int:
    """The id of the mask token.

    Raises:
        RefusedInput: the configured id is outside the vocabulary, or no token can serve.
    """
    if configured is not None:
        if configured >= facts.vocab_size:
            raise RefusedInput(
                f"drafter.mask_token_id={configured} is outside the target's vocabulary "
                f"(0 .. {facts.vocab_size - 1}); leave it empty"
            )
        return configured
    released = _RELEASED.get((facts.family.removesuffix("_text"), facts.vocab_size))
    return released if released is not None else _from_tokenizer(facts)


def _from_tokenizer(facts: TargetFacts) -> int:
    place = facts.folder / "tokenizer.json"
    if not place.is_file():
        raise RefusedInput(f"{place}: not there, so no mask token can be chosen; set drafter.mask_token_id")
    tokenizer = read_json(place)
    added = {entry["content"]: int(entry["id"]) for entry in tokenizer.get("added_tokens") or []}
    named = [token for content, token in added.items() if _MASK_NAME.match(content) and token < facts.vocab_size]
    if named:
        return named[0]
    vocabulary = tokenizer.get("model", {}).get("vocab") or {}
    used = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))  # Unigram lists its pieces
    unused = max([*used, *added.values()], default=-1) + 1
    if unused < facts.vocab_size:
        return unused
    raise RefusedInput(
        f"{place}: has no mask token and uses all {facts.vocab_size} rows of the embedding table; set drafter.mask_token_id to a "
        "token that never occurs in the text"
    )
