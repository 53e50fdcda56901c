"""What tensors a folder of safetensors holds, read from file headers alone: one file, or many with an index. No torch, no tensor is read."""

from __future__ import annotations

import json
import shlex
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dflash.errors import RefusedInput
from dflash.model.facts import read_json

_LONGEST_HEADER_BYTES = 100 * 2**20
_NAMES_SHOWN = 4
_CONVERSION = (
    'python -c "import sys; from transformers import AutoModelForCausalLM as M; '
    "M.from_pretrained(sys.argv[1], use_safetensors=False, dtype='auto').save_pretrained(sys.argv[1])\" {folder}"
)
# where causal language models and multimodal wrappers keep the language model
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "language_model.", "")


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies, and its shape."""

    file: Path
    shape: tuple[int, ...]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder, by its name.

    Raises:
        RefusedInput: no safetensors there; a file is missing, cut short or none; or the index names a tensor that its file lacks.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        single = folder / "model.safetensors"
        if not single.is_file():
            _refuse_other_formats(folder)
        return _tensors_of(single)
    indexed = {str(name): folder / str(file) for name, file in read_json(index).get("weight_map", {}).items()}
    _refuse_missing_files(folder, sorted(set(indexed.values())))
    found = {file: _tensors_of(file) for file in sorted(set(indexed.values()))}
    lacking = next((name for name, file in indexed.items() if name not in found[file]), None)
    if lacking is not None:
        raise RefusedInput(f"{indexed[lacking]}: has no {lacking}, which {index.name} says it holds; fetch or copy it again")
    return {name: found[file][name] for name, file in indexed.items()}


def language_prefix(names: Collection[str], folder: Path) -> str:
    """What the names of a target's language model begin with.

    Raises:
        RefusedInput: it has no embed_tokens.weight where one is known.
    """
    prefix = next((prefix for prefix in _PREFIXES if f"{prefix}embed_tokens.weight" in names), None)
    if prefix is None:
        raise RefusedInput(
            f"{folder}: no embed_tokens.weight under any of {', '.join(repr(known) for known in _PREFIXES)}; "
            "a target of this layout can't lend its embedding to a drafter"
        )
    return prefix


def _refuse_missing_files(folder: Path, files: list[Path]) -> None:
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        more = f" and {len(missing) - _NAMES_SHOWN} more" if len(missing) > _NAMES_SHOWN else ""
        raise RefusedInput(
            f"{folder}: {len(missing)} of {len(files)} weight files are missing: {', '.join(missing[:_NAMES_SHOWN])}{more}; fetch them"
        )


def _refuse_other_formats(folder: Path) -> NoReturn:
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickles:
        raise RefusedInput(
            f"{folder}: has {pickles[0]} but no safetensors, which are needed (a pickle can run code when it is read). If you trust the "
            f"file, convert it: {_CONVERSION.format(folder=shlex.quote(str(folder)))}"
        )
    if any(folder.glob("*.gguf")):
        raise RefusedInput(f"{folder}: has GGUF files, which other programs read; fetch the safetensors of the same model")
    raise RefusedInput(
        f"{folder}: no model.safetensors and no model.safetensors.index.json; fetch the weights, or save the model there with save_pretrained"
    )


def _tensors_of(place: Path) -> dict[str, StoredTensor]:
    return {name: StoredTensor(place, tuple(entry["shape"])) for name, entry in _header(place).items()}


def _header(place: Path) -> dict[str, Any]:
    """Shapes and places of the tensors of a safetensors file: 8 bytes of length, then JSON, then the tensors."""
    try:
        with place.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _LONGEST_HEADER_BYTES:
                raise ValueError(f"a header of {length:,} bytes")
            tensors: dict[str, Any] = json.loads(file.read(length))
        tensors.pop("__metadata__", None)
        wanted = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except OSError as error:
        raise RefusedInput(f"{place}: can't be read ({error.strerror}); fetch or copy the folder again") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedInput(f"{place}: no safetensors file, or cut short ({error}); fetch or copy it again") from error
    there = place.stat().st_size
    if there < wanted:
        raise RefusedInput(f"{place}: cut short, {there:,} of {wanted:,} bytes; fetch or copy it again")
    return tensors
