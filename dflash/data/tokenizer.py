"""A tokenizer reduced to what tokenising needs: its fast core, its template, its special tokens. Picklable, and it loads without
torch.

transformers is asked once, in the parent (it may mend or extend what tokenizer.json says), and its core travels to the workers as
text. So a worker starts in half a second, and every worker has the very same tokenizer.

A fast tokenizer is needed, because the loss mask is found in the text and carried to the tokens by their character offsets, which
only fast ones report.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dflash.errors import RefusedInput


@dataclass(frozen=True)
class TextTokenizer:
    """What is needed to render and tokenise a conversation.

    Attributes:
        name: where it came from, for messages.
        core: the fast tokenizer, serialised.
        chat_template: Jinja source, or None when the tokenizer has none.
        special_tokens: the names a template may use, such as bos_token, and their text.
        special_ids: the same names with token ids.
        vocab_size: one more than the highest token id.
        fingerprint: see `fingerprint_of`.
    """

    name: str
    core: str = field(repr=False)
    chat_template: str | None = field(repr=False)
    special_tokens: dict[str, Any]
    special_ids: dict[str, int]
    vocab_size: int
    fingerprint: str

    def backend(self) -> Tokenizer:
        """A fresh fast tokenizer that neither cuts nor pads."""
        backend = Tokenizer.from_str(self.core)
        backend.no_truncation()
        backend.no_padding()
        return backend


def load_tokenizer(name_or_folder: str | Path) -> TextTokenizer:
    """Load the tokenizer of a model folder, or of a target shipped with this package.

    Raises:
        RefusedInput: no such folder or target, it holds no tokenizer, or only a slow one.
    """
    folder = _folder_of(name_or_folder)
    from transformers import AutoTokenizer  # loads torch: seconds, so only when a tokenizer is really wanted

    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever a broken folder makes transformers raise, it is the folder that is to be mended
        first_line = str(error).strip().split("\n", 1)[0]
        raise RefusedInput(f"{folder}: no tokenizer could be loaded from there ({first_line})") from error
    if not loaded.is_fast:
        raise RefusedInput(f"{folder}: its tokenizer is a slow one; a fast one (tokenizer.json) is needed, for character offsets")
    core = loaded.backend_tokenizer.to_str()
    special_tokens = dict(loaded.special_tokens_map)
    return TextTokenizer(
        name=str(name_or_folder),
        core=core,
        chat_template=_template_of(loaded.chat_template),
        special_tokens=special_tokens,
        special_ids={key: int(loaded.convert_tokens_to_ids(text)) for key, text in special_tokens.items() if isinstance(text, str)},
        vocab_size=1 + max(loaded.backend_tokenizer.get_vocab(with_added_tokens=True).values()),
        fingerprint=fingerprint_of(core),
    )


def fingerprint_of(core: str) -> str:
    """SHA-256 over a serialised tokenizer's tokens with their ids and its merges.

    That is what makes a text these ids and no others. How the library spells the rest of the file changes between its versions and
    is left out, so that one tokenizer keeps one fingerprint.
    """
    tree = json.loads(core)
    model = tree["model"]
    added = sorted((token["id"], token["content"]) for token in tree.get("added_tokens") or ())
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model.get("merges") or ()]
    whole = json.dumps(
        [model.get("type"), model["vocab"], added, merges], sort_keys=True, ensure_ascii=False, separators=(",", ":")
    )
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def _folder_of(name_or_folder: str | Path) -> Path:
    from dflash.targets import SHIPPED, shipped_target

    folder = Path(name_or_folder).expanduser()
    return folder if folder.is_dir() and str(name_or_folder) not in SHIPPED else shipped_target(str(name_or_folder))


def _template_of(template: object) -> str | None:
    """The one template of a tokenizer; of several named ones, the default."""
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None
