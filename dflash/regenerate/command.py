"""What `dflash regenerate` does with a target on this machine: finds it, takes its fingerprint, starts it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dflash.data.tokenizer import load_tokenizer
from dflash.errors import RefusedInput
from dflash.model.facts import target_facts
from dflash.regenerate.chat_format import ChatFormat
from dflash.regenerate.engine import TargetPlan, load_engine
from dflash.regenerate.job import Source, regenerate
from dflash.regenerate.options import RegenerateOptions

_SAMPLED_BYTES = 2**20


def regenerate_by_target(
    inputs: Sequence[str | Path],
    out: str | Path,
    target: str,
    *,
    options: RegenerateOptions,
    chat_template: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: bool = False,
) -> dict[str, Any]:
    """Answer chats with a target; see `job.regenerate`.

    Args:
        inputs: files and folders to read.
        out: file to write.
        target: folder of a causal language model, or a shipped target's name.
        options: how answers are made.
        chat_template: Jinja source used instead of the tokenizer's.
        device: auto, cpu or cuda.
        dtype: auto, float32 or bfloat16.
        progress: show a bar on standard error.
    """
    if dtype not in ("auto", "float32", "bfloat16"):
        raise RefusedInput(f"dtype={dtype}: use auto, float32 or bfloat16")
    facts = target_facts(target)
    form = ChatFormat(load_tokenizer(target), chat_template)
    plan = TargetPlan(target, device, dtype, form.end_tokens)
    about = {
        "target": target,
        "fingerprint": target_fingerprint(facts.folder),
        "chat_template": form.template.fingerprint,
        "dtype": dtype,
    }
    source = Source(about, form, facts.max_positions, partial(load_engine, plan, options))
    return regenerate(inputs, out, source, options, progress=progress)


def target_fingerprint(folder: Path) -> str:
    """SHA-256 over a model folder's JSON files, and of each weight file its name, size, first and last mebibyte."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".json", ".safetensors", ".jinja") or not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as file:
            if path.suffix != ".safetensors" or size <= 2 * _SAMPLED_BYTES:
                digest.update(file.read())
            else:
                digest.update(file.read(_SAMPLED_BYTES))
                file.seek(-_SAMPLED_BYTES, 2)
                digest.update(file.read())
    return digest.hexdigest()
