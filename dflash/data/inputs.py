"""What the user pointed at, as a list of files in a fixed order.

A file is taken by its ending. A folder is walked in the order of names; in it, other files (a README, hidden ones, the settings of
models and data sets) are passed over, prepared datasets are too, and folders written by datasets' `save_to_disk` are read as such.
Nothing is read twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from dflash.errors import RefusedInput

Form = Literal["jsonl", "jsonl.gz", "jsonl.zst", "json", "json.gz", "json.zst", "parquet", "arrow"]

_ENDINGS: dict[str, Form] = {f".{form}": form for form in get_args(Form) if form != "arrow"}
_KNOWN = "known: .jsonl, .json (both also .gz, .zst), .parquet, a folder of them, a folder of datasets' save_to_disk"
_NO_ROWS = re.compile(r"(.*config|dataset_infos?|special_tokens_map|tokenizer|vocab|package|manifest)\.json", re.IGNORECASE)


@dataclass(frozen=True)
class InputFile:
    """One file to read; `size_bytes` and `modified_ns` tell whether it has changed since."""

    path: Path
    form: Form
    size_bytes: int
    modified_ns: int

    @property
    def name(self) -> str:
        """The file as messages and rejected rows name it."""
        return str(self.path)


def find_inputs(places: Sequence[str | Path], *, out: Path) -> list[InputFile]:
    """The files behind `places`, in the order given, folders by name. The folder `out` is never an input.

    Raises:
        RefusedInput: a place is missing, of unknown kind, holds no data, lies in `out`, or is named twice.
    """
    if not places:
        raise RefusedInput(f"no input given; {_KNOWN}")
    files: list[InputFile] = []
    seen: dict[Path, str] = {}
    for place in map(Path, places):
        for file in _expand(place, out.resolve()):
            real = file.path.resolve()
            if real in seen:
                raise RefusedInput(f"{file.name}: given twice (by {seen[real]} and {place}); each row is to be read once")
            seen[real] = str(place)
            files.append(file)
    return files


def _expand(place: Path, out: Path) -> Iterator[InputFile]:
    if not place.exists():
        raise RefusedInput(f"{place}: no such file or folder")
    if place.resolve().is_relative_to(out):
        raise RefusedInput(f"{place}: lies in the folder to be written ({out}); choose another --out")
    if place.is_dir():
        found = list(_walk(place, out))
        if not found:
            raise RefusedInput(f"{place}: holds no data files; {_KNOWN}")
        yield from found
        return
    form = _form_of(place)
    if form is None:
        raise RefusedInput(f"{place}: of unknown kind; {_KNOWN}")
    yield _file(place, form)


def _walk(folder: Path, out: Path) -> Iterator[InputFile]:
    if folder.resolve() == out or _is_prepared(folder):
        return
    if (folder / "dataset_dict.json").is_file():
        for split in _read_json(folder / "dataset_dict.json", "splits"):
            yield from _walk(folder / str(split), out)
    elif (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        for entry in _read_json(folder / "state.json", "_data_files"):
            if not isinstance(entry, dict) or "filename" not in entry:
                raise RefusedInput(f"{folder / 'state.json'}: a data file has no filename")
            yield _file(folder / str(entry["filename"]), "arrow")
    else:
        for child in sorted(folder.iterdir()):
            form = _form_of(child)
            if child.name.startswith(".") or _NO_ROWS.fullmatch(child.name):
                continue
            if child.is_dir():
                yield from _walk(child, out)
            elif form is not None:
                yield _file(child, form)


def _form_of(path: Path) -> Form | None:
    name = path.name.lower()
    return next((form for ending, form in _ENDINGS.items() if name.endswith(ending)), None)


def _is_prepared(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "shards").is_dir()


def _read_json(path: Path, key: str) -> list[Any]:
    try:
        value = orjson.loads(path.read_bytes())[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedInput(f"{path}: not what datasets' save_to_disk writes ({key} can't be read)") from error
    if not isinstance(value, list):
        raise RefusedInput(f"{path}: {key} is not a list")
    return value


def _file(path: Path, form: Form) -> InputFile:
    try:
        state = path.stat()
    except OSError as error:
        raise RefusedInput(f"{path}: can't be read ({error.strerror})") from error
    return InputFile(path, form, state.st_size, state.st_mtime_ns)
