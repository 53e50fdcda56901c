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
_ROLE = re.compile(r"(?!mask)[a-z]+_token")  # bos_token, eos_token, ...
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
        _refuse_token_in_use(facts, configured)
        return configured
    released = _RELEASED.get((facts.family.removesuffix("_text"), facts.vocab_size))
    return released if released is not None else _from_tokenizer(facts)


def _refuse_token_in_use(facts: TargetFacts, configured: int) -> None:
    """A mask token that text or the chat template uses would teach the drafter that this token means "unknown"."""
    place = facts.folder / "tokenizer.json"
    if not place.is_file():
        return
    tokenizer = read_json(place)
    added = {int(entry["id"]): str(entry["content"]) for entry in tokenizer.get("added_tokens") or []}
    vocabulary = tokenizer.get("model", {}).get("vocab") or {}
    pieces = vocabulary.items() if isinstance(vocabulary, dict) else ((piece[0], token) for token, piece in enumerate(vocabulary))
    if configured in added:
        name = added[configured]
        in_use = name in _text_of_the_tokenizers_settings(facts)
    else:
        name = next((str(piece) for piece, token in pieces if token == configured), "")
        in_use = bool(name)
    if in_use and not _MASK_NAME.match(name):
        raise RefusedInput(
            f"drafter.mask_token_id={configured} is {name!r}, which the tokenizer in {facts.folder} uses for text; leave it empty, "
            "or give a token that never occurs"
        )


def _text_of_the_tokenizers_settings(facts: TargetFacts) -> str:
    """The names of the tokens with a role (bos_token, eos_token, ...), and the chat template's text."""
    texts = []
    if (facts.folder / "tokenizer_config.json").is_file():
        settings = read_json(facts.folder / "tokenizer_config.json")
        roles = [value for key, value in settings.items() if key == "chat_template" or _ROLE.fullmatch(key)]
        texts = [str(value.get("content", "")) if isinstance(value, dict) else str(value) for value in roles]
    template = facts.folder / "chat_template.jinja"
    return "\n".join([*texts, template.read_text(encoding="utf-8", errors="replace") if template.is_file() else ""])


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
