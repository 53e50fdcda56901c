"""The small frozen targets that ship with the package, found by name.

Both were trained by scripts/train_targets.py on the sample corpus and share one tokenizer of 2,048 tokens; each folder's README.md
says what loss it reached. `qwen3-tiny` is plain attention, and its chat template has no generation markers; `qwen3_5-tiny` mixes linear
and full attention, as Qwen3.6-27B does, and its template marks the assistant's tokens. So both kinds of each are at hand everywhere.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from dflash.errors import RefusedInput

SHIPPED = ("qwen3-tiny", "qwen3_5-tiny")


def shipped_target(name_or_dir: str) -> Path:
    """The folder of a target: that of a shipped name, or the existing folder given.

    A shipped name wins over a folder of that name in the current directory; write ./qwen3-tiny for the latter.

    Raises:
        RefusedInput: neither a shipped name nor a folder with a config.json.
    """
    if name_or_dir in SHIPPED:
        return Path(__file__).parent / name_or_dir
    folder = Path(name_or_dir).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.is_dir():
        raise RefusedInput(f"target {name_or_dir}: the folder has no config.json; give the folder of a Hugging Face causal LM")
    near = difflib.get_close_matches(name_or_dir, SHIPPED, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise RefusedInput(f"target {name_or_dir}: {hint}no such folder, and the shipped targets are {', '.join(SHIPPED)}")
