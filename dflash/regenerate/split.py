"""Train and hold-out files that share no question, not even nearly.

Rows are grouped by what they ask (`questions`): a chat by its first user turn, a document by its text, token ids by themselves. Groups are
put in an order that depends on (seed, question), and the first ones that fit make the hold-out. Rows that `dflash prepare` would reject
are left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from dflash.data.conversation import Conversation, Document, Row, RowRejected, parse_row
from dflash.data.decode import rows_of
from dflash.data.files import writing
from dflash.data.inputs import InputFile, find_inputs
from dflash.data.readers import read_segments
from dflash.errors import RefusedInput
from dflash.regenerate.questions import groups_of, normalised


def split_rows(
    inputs: Sequence[str | Path],
    train: Path,
    holdout: Path,
    *,
    share: float = 0.05,
    rows: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Split the rows of `inputs` into two JSONL files.

    Args:
        inputs: files and folders as `dflash prepare` reads them.
        train, holdout: files to write; both appear whole, at the end.
        share: part of the rows to hold out, between 0 and 1.
        rows: how many to hold out instead of a share.
        seed: of the choice.
        overwrite: replace files that are there.

    Returns:
        rows_read, rejected, train, holdout (rows), questions (groups), repeated (rows beyond the first of their group).

    Raises:
        RefusedInput: an input can't be read, a file is in the way, or there are too few questions to split.
        RunFailed: a file can't be written.
    """
    if rows is None and not 0 < share < 1:
        raise RefusedInput(f"holdout share {share}: give a number between 0 and 1, as in 0.05")
    if train.resolve() == holdout.resolve():
        raise RefusedInput(f"{train}: is given for train and for hold-out; give two files")
    files = find_inputs(inputs, out=_scrap(train))
    for path in (train, holdout):
        if any(file.path.resolve() == path.resolve() for file in files):
            raise RefusedInput(f"{path}: is an input; write to another file")
        if path.exists() and not overwrite:
            raise RefusedInput(f"{path}: is there already; choose another place, or give --overwrite")
    reasons: Counter[str] = Counter()
    questions = [_question(row) for _, row in _usable(files, reasons)]
    groups = groups_of(questions)
    held = _held(questions, groups, rows or max(1, round(share * len(questions))), seed)
    _write(files, held, train, holdout)
    return {
        "train": str(train),
        "holdout": str(holdout),
        "rows_read": len(questions) + reasons.total(),
        "rejected": reasons.total(),
        "train_rows": int((~held).sum()),
        "holdout_rows": int(held.sum()),
        "questions": len(np.unique(groups)),
        "repeated": len(groups) - len(np.unique(groups)),
    }


def _usable(files: Sequence[InputFile], reasons: Counter[str]) -> Iterator[tuple[Any, Row]]:
    """Each row that can be used: as it was given, and as it was understood."""
    for file in files:
        for segment in read_segments(file):
            for _, raw in rows_of(segment):
                try:
                    if isinstance(raw, RowRejected):
                        raise raw
                    yield raw, parse_row(raw)
                except RowRejected as reason:
                    reasons[reason.kind] += 1


def _question(row: Row) -> str:
    if isinstance(row, Conversation):
        asked = next((message["content"] for message in row.messages if message["role"] == "user"), "")
        return normalised(asked) or asked
    return normalised(row.text) if isinstance(row, Document) else str(list(row.input_ids))


def _held(questions: Sequence[str], groups: NDArray[np.int64], wanted: int, seed: int) -> NDArray[np.bool_]:
    """Which rows are held out, bool [rows]: whole groups, as many as fit into `wanted` rows.

    Raises:
        RefusedInput: no group fits, or none would be left to train on.
    """
    sizes = Counter(groups.tolist())

    def chance(group: int) -> bytes:
        return hashlib.blake2b(f"{seed}:{questions[group]}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

    chosen, taken = [], 0
    for group in sorted(sizes, key=lambda group: (chance(group), group)):
        if taken + sizes[group] <= wanted:
            chosen.append(group)
            taken += sizes[group]
    if not taken or taken == len(groups):
        raise RefusedInput(
            f"{len(groups)} rows ask {len(sizes)} questions: {wanted} rows can't be held out so that some are left on both sides; "
            "give more rows, or another share"
        )
    return np.isin(groups, chosen)


def _write(files: Sequence[InputFile], held: NDArray[np.bool_], train: Path, holdout: Path) -> None:
    scraps = {path: _scrap(path) for path in (train, holdout)}
    try:
        with ExitStack() as stack:
            out = {}
            for path, scrap in scraps.items():
                stack.enter_context(writing(path))
                path.parent.mkdir(parents=True, exist_ok=True)
                out[path] = stack.enter_context(scrap.open("wb"))
            for is_held, (raw, _) in zip(held.tolist(), _usable(files, Counter()), strict=True):
                out[holdout if is_held else train].write(orjson.dumps(raw, default=str, option=orjson.OPT_APPEND_NEWLINE))
        for path, scrap in scraps.items():
            with writing(path):
                scrap.replace(path)
    finally:
        for scrap in scraps.values():
            scrap.unlink(missing_ok=True)


def _scrap(path: Path) -> Path:
    return path.with_name(path.name + ".scrap")
