"""Text in many shapes to a token dataset: read, cut into chunks, tokenise on all cores, put together.

The input is a stream of chunks of about 4 MiB that depends on the files alone; each becomes one shard. So the result does not
depend on the number of workers or on who finished first, work goes on after a kill with the chunks that are missing, and memory
holds a few chunks a worker. The manifest is written last.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash.data.chunk import Chunk, ChunkResult, Workplace
from dflash.data.encode import RowEncoder
from dflash.data.files import locked, write_whole, writing
from dflash.data.flat import build_flat, flat_folder
from dflash.data.inputs import InputFile, find_inputs
from dflash.data.losses import RowRejected, remedy
from dflash.data.manifest import MANIFEST_NAME, REJECTED_NAME, Counts, Manifest, TemplateFacts, TokenizerFacts
from dflash.data.options import PrepareOptions
from dflash.data.progress import PrepareProgress
from dflash.data.readers import Segment, read_segments
from dflash.data.tokenizer import TextTokenizer, load_tokenizer
from dflash.data.workers import Task, work_off
from dflash.data.workfolder import close_workplace, finished_manifest, make_folder, open_workplace
from dflash.errors import RefusedInput, RunFailed

CHUNK_BYTES = 2**22
_RULES = 2  # raise it when the same input would give other tokens or masks
_REASONS_SHOWN = 3


@dataclass(frozen=True)
class PrepareReport:
    """What was made. The counts are `manifest.Counts`; `reasons` counts rejected rows by reason; `seconds` is wall time.

    `losses` has, by reason, what was dropped of rows, turns and tokens and how many kept rows were changed (see `losses.Loss`), and
    `set`: what to set to keep it.
    """

    out: str
    rows_read: int
    kept: int
    rejected: int
    truncated: int
    tokens: int
    loss_tokens: int
    turns: int
    turns_dropped: int
    tokens_dropped: int
    reasons: dict[str, int]
    losses: dict[str, dict[str, Any]]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for `--json`."""
        return asdict(self)


def prepare(
    inputs: str | Path | Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    options: PrepareOptions | None = None,
    progress: bool = False,
) -> PrepareReport:
    """Make a token dataset in the folder `out`, or go on with one that was stopped; a finished one is only reported.

    Args:
        inputs: files and folders to read.
        tokenizer: a model folder, or the name of a shipped target.
        out: folder for the shards, manifest.json and rejected.jsonl.
        options: how; see `PrepareOptions`.
        progress: show a bar on standard error.

    Raises:
        RefusedInput: an input is missing, damaged or of unknown kind, the tokenizer can't be used, `out` holds something else, or not
            one row could be kept.
        RunFailed: the disk is full, a worker died, or Ctrl-C was pressed. The same call goes on where it stopped.
    """
    started = time.monotonic()
    options = options or PrepareOptions()
    folder = Path(out)
    files = find_inputs([inputs] if isinstance(inputs, str | Path) else inputs, out=folder)
    loaded = load_tokenizer(tokenizer)
    job = _job(files, loaded, options)
    make_folder(folder)
    with locked(folder, wait=False):
        manifest = finished_manifest(folder, job, overwrite=options.overwrite)
        if manifest is None:
            place = open_workplace(folder, job)
            try:
                manifest = _make(files, loaded, options, place, job, progress=progress)
            except KeyboardInterrupt as error:
                raise RunFailed(f"{folder}: stopped. What was finished is kept: run the same command again to go on") from error
            close_workplace(place)
    counts = manifest.counts.model_dump(exclude={"max_token_id"})
    for kind, loss in counts["losses"].items():
        loss["set"] = remedy(kind)
    return PrepareReport(out=str(folder), **counts, seconds=time.monotonic() - started)


def _make(
    files: Sequence[InputFile], tokenizer: TextTokenizer, options: PrepareOptions, place: Workplace, job: str, *, progress: bool
) -> Manifest:
    template = _template_facts(tokenizer, options)
    total_bytes = sum(file.size_bytes for file in files)
    workers = 1 if total_bytes <= CHUNK_BYTES // 2 else options.workers or _cores()
    results: dict[int, ChunkResult] = {}
    with PrepareProgress(total_bytes, shown=progress) as bar:
        with closing(work_off(bar.watched(_chunks(files)), Task(tokenizer, options, place), workers=workers)) as worked:
            for number, result in worked:
                results[number] = result
                bar.done(number, result.counts)
        in_order = [results[number] for number in sorted(results)]
        counts = sum((result.counts for result in in_order), Counts())
        _join_rejected(place, sorted(results))
        if not counts.kept:
            raise RefusedInput(_nothing_kept(place.out, counts))
        manifest = Manifest(
            job=job,
            tokenizer=TokenizerFacts(
                name=tokenizer.name,
                fingerprint=tokenizer.fingerprint,
                vocab_size=tokenizer.vocab_size,
                special_ids=tokenizer.special_ids,
            ),
            template=template,
            options=options.that_matter(),
            inputs=_facts_of(files),
            counts=counts,
            shards=[result.shard for result in in_order if result.shard],
        )
        if not flat_folder(place.out, manifest).is_dir():
            build_flat(place.out, manifest, advance=bar.laid_out(counts.kept))
    write_whole(place.out / MANIFEST_NAME, manifest.to_bytes(), scratch=place.scratch)
    return manifest


def _chunks(files: Iterable[InputFile]) -> Iterator[Chunk]:
    """The whole input, cut where a chunk is full; a chunk may span files."""
    number, gathered, size = 0, list[Segment](), 0
    for file in files:
        for segment in read_segments(file):
            gathered.append(segment)
            size += len(segment.data)
            if size >= CHUNK_BYTES:
                yield Chunk(number, gathered)
                number, gathered, size = number + 1, [], 0
    if gathered:
        yield Chunk(number, gathered)


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _job(files: Sequence[InputFile], tokenizer: TextTokenizer, options: PrepareOptions) -> str:
    """What this call is to make, as a fingerprint: the input files as they are now, the whole tokenizer, the options."""
    parts = [_RULES, CHUNK_BYTES, _facts_of(files), asdict(tokenizer), options.that_matter()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def _facts_of(files: Iterable[InputFile]) -> list[dict[str, Any]]:
    return [{"name": file.name, "size_bytes": file.size_bytes, "modified_ns": file.modified_ns} for file in files]


def _template_facts(tokenizer: TextTokenizer, options: PrepareOptions) -> TemplateFacts | None:
    """What is known of the chat template; it need not be usable, there may be rows that don't need it."""
    encoder = RowEncoder(tokenizer, options)
    if encoder.template is None or encoder.turns is None:
        return None
    facts = TemplateFacts(fingerprint=encoder.template.fingerprint, marked=encoder.template.marked, opening="", ends=[])
    if not facts.marked:
        with suppress(RowRejected):
            rule = encoder.turns.rule("user")
            facts = facts.model_copy(update={"opening": rule.opening, "ends": list(rule.ends)})
    return facts


def _join_rejected(place: Workplace, numbers: Iterable[int]) -> None:
    """The rejected rows of all chunks, in the order of the input, as one file."""
    path, scrap = place.out / REJECTED_NAME, place.scratch / f"{REJECTED_NAME}.scrap"
    with writing(path):
        with scrap.open("wb") as whole:
            for number in numbers:
                whole.write(place.rejected(number).read_bytes())
        scrap.replace(path)


def _nothing_kept(out: Path, counts: Counts) -> str:
    common = sorted(counts.reasons.items(), key=lambda item: (-item[1], item[0]))[:_REASONS_SHOWN]
    listed = "; ".join(f"{kind} ({number})" for kind, number in common)
    with (out / REJECTED_NAME).open("rb") as rejected:
        first = json.loads(rejected.readline())
    return (
        f"{out}: none of {counts.rows_read} rows could be used: {listed}. The first is line {first['line']} of {first['file']} "
        f"({first['reason']}); each is listed in {out / REJECTED_NAME}. To use them: {remedy(common[0][0])}"
    )
