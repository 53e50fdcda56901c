"""A real corpus with no download: the documented Python that is already on the machine, as chats.

Every documented function and class of the standard library and of the installed packages becomes one conversation: the user gives
the signature and the documentation, the assistant answers with the source, that docstring taken out. Sources are parsed with `ast`,
never imported, so a package that breaks on import or touches the network does no harm. What can't be decoded or parsed is counted
and passed over.

Order: files are visited in the order of a hash of (seed, package, path), rows of a file by line. So the corpus of `limit=k` is the
first k rows of the whole one, it is a fair sample of the packages, and nothing is held in memory to shuffle. The price is that
neighbouring rows come from one module; whoever trains on it shuffles anyway.

The text stays under the licences of the packages it was taken from: it is made on the user's machine and is not shipped.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import signal
import sysconfig
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import orjson
import zstandard
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dflash.data.documented import pairs_of, read_source
from dflash.errors import RefusedInput, RunFailed

FILES_A_TASK = 24
_PASSED_OVER = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules", "test", "tests"})


@dataclass(frozen=True)
class SampleReport:
    """What was written. `skipped` are files that could not be read, decoded or parsed; `duplicates` are answers met before."""

    path: str
    rows: int
    files: int
    skipped: int
    duplicates: int
    text_bytes: int
    seconds: float
    rows_by_package: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for `--json`."""
        return asdict(self)


class SourceFile(NamedTuple):
    """One source: the package it belongs to ("stdlib" for the standard library), its path, and that path below its root."""

    package: str
    path: str
    name: str


class _Extracted(NamedTuple):
    """One file's share of the corpus: (digest of the answer, JSON line) a row; `rows` is None when the file was skipped."""

    package: str
    rows: list[tuple[bytes, bytes]] | None


def write_sample_corpus(
    out: Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    progress: bool = True,
    roots: Sequence[Path] | None = None,
    workers: int | None = None,
) -> SampleReport:
    """Write the corpus as JSON lines: `{"messages": [user, assistant], "source": "package:module.qualname", "file": ...}`.

    Args:
        out: a .jsonl, .jsonl.gz or .jsonl.zst file. It appears when it is complete; until then it is `out` + ".tmp".
        limit: rows written, at most; None: all there are (about 100,000 in an environment of this package).
        seed: decides the order of the files, and so which rows a `limit` keeps.
        progress: show a bar with rate and time left on standard error.
        roots: folders searched in the place of the standard library and the installed packages.
        workers: processes that parse; None: the cores of the machine, at most 8.

    Raises:
        RefusedInput: `out` has another ending or can't be written, `limit` is below 1, or no documented source was found.
        RunFailed: writing stopped half-way (a full disk); nothing is left behind.
    """
    if limit is not None and limit < 1:
        raise RefusedInput(f"limit {limit}: rows to write, at least 1; leave it out for the whole corpus")
    started = time.monotonic()
    sources = find_sources(roots, seed=seed)
    tally = _Tally()
    with _open_output(Path(out)) as write, _Bar(len(sources), limit, shown=progress) as bar:
        for extracted in _extract_all(sources, workers or min(os.cpu_count() or 1, 8)):
            for line in tally.new_rows(extracted):
                write(line)
                if tally.rows == limit:
                    break
            bar.show(tally.files, tally.rows)
            if tally.rows == limit:
                break
        if not tally.rows:
            where = ", ".join(str(root) for root in roots) if roots else "the standard library and the installed packages"
            raise RefusedInput(f"no documented Python source found in {where}: install packages with their .py files")
    return SampleReport(
        path=str(out),
        rows=tally.rows,
        files=tally.files,
        skipped=tally.skipped,
        duplicates=tally.duplicates,
        text_bytes=tally.text_bytes,
        seconds=time.monotonic() - started,
        rows_by_package=dict(tally.by_package.most_common()),
    )


class _Tally:
    """Counts what goes by, and lets each answer through once."""

    def __init__(self) -> None:
        self.rows = self.files = self.skipped = self.duplicates = self.text_bytes = 0
        self.by_package: Counter[str] = Counter()
        self._seen: set[bytes] = set()

    def new_rows(self, extracted: _Extracted) -> Iterator[bytes]:
        """The rows of a file whose answers were not met before."""
        self.files += 1
        self.skipped += extracted.rows is None
        for digest, line in extracted.rows or ():
            if digest in self._seen:
                self.duplicates += 1
                continue
            self._seen.add(digest)
            self.rows += 1
            self.text_bytes += len(line)
            self.by_package[extracted.package] += 1
            yield line


def find_sources(roots: Sequence[Path] | None = None, *, seed: int = 0) -> list[SourceFile]:
    """Every .py file below the roots, tests left out, in the order of a hash of (seed, package, path).

    The order is that of a random shuffle but belongs to each file alone: installing one more package moves no other file.
    """
    places = [(None, Path(root)) for root in roots] if roots is not None else _installed_roots()
    found: dict[tuple[str, str], SourceFile] = {}
    for fixed_package, root in places:
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [name for name in subfolders if name not in _PASSED_OVER and "." not in name]
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    below = Path(path).relative_to(root)
                    package = fixed_package or below.parts[0].removesuffix(".py")
                    found.setdefault((package, below.as_posix()), SourceFile(package, path, below.as_posix()))
    keyed = [(hashlib.blake2b(f"{seed}\0{p}\0{n}".encode(), digest_size=8).digest(), p, n) for p, n in found]
    return [found[package, name] for _, package, name in sorted(keyed)]


def _installed_roots() -> list[tuple[str | None, Path]]:
    paths = sysconfig.get_paths()
    return [("stdlib", Path(paths["stdlib"]))] + [(None, Path(p)) for p in dict.fromkeys((paths["purelib"], paths["platlib"]))]


def _extract(sources: list[SourceFile]) -> list[_Extracted]:
    return [_Extracted(source.package, _rows_of(source)) for source in sources]


def _rows_of(source: SourceFile) -> list[tuple[bytes, bytes]] | None:
    text = read_source(source.path)
    module = source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    pairs = None if text is None else pairs_of(text, module)
    if pairs is None:
        return None
    rows = []
    for pair in pairs:
        messages = [{"role": "user", "content": pair.request}, {"role": "assistant", "content": pair.answer}]
        row = {"messages": messages, "source": f"{source.package}:{module}.{pair.qualname}", "file": source.name}
        with suppress(orjson.JSONEncodeError):  # a docstring with a lone surrogate is no text
            digest = hashlib.blake2b(pair.answer.encode(), digest_size=16).digest()
            rows.append((digest, orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)))
    return rows


def _extract_all(sources: list[SourceFile], workers: int) -> Iterator[_Extracted]:
    """Every file's rows, in the order of `sources`, parsed by processes that stay a bounded number of tasks ahead."""
    tasks = [sources[start : start + FILES_A_TASK] for start in range(0, len(sources), FILES_A_TASK)]
    if workers == 1 or len(tasks) == 1:
        for task in tasks:
            yield from _extract(task)
        return
    ahead: deque[Future[list[_Extracted]]] = deque()
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_ignore_interrupts)
    try:
        for task in tasks:
            ahead.append(pool.submit(_extract, task))
            if len(ahead) > 2 * workers:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle


class _Bar:
    """Files or, with a limit, rows done: rate and time left on standard error."""

    def __init__(self, files: int, limit: int | None, *, shown: bool) -> None:
        self._by_rows = limit is not None
        columns = (TextColumn("sample corpus"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[detail]}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not shown)
        self._task = self._progress.add_task("", total=limit or files, detail="files")
        self._started = time.monotonic()

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, files: int, rows: int) -> None:
        """Draw the bar at so many files read and rows written."""
        rate = rows / max(time.monotonic() - self._started, 1e-3)
        unit = "rows" if self._by_rows else f"files, {rows:,} rows"
        self._progress.update(self._task, completed=rows if self._by_rows else files, detail=f"{unit} ({rate:,.0f} rows/s)")


@contextmanager
def _open_output(out: Path) -> Iterator[Callable[[bytes], Any]]:
    """Give a writer of bytes into `out` + ".tmp", compressed by the name of `out`; it becomes `out` when the block ends well."""
    if not out.name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):
        raise RefusedInput(f"{out}: name it .jsonl, .jsonl.gz or .jsonl.zst")
    if out.is_dir():
        raise RefusedInput(f"{out}: is a folder; name a file in it")
    unfinished = out.with_name(out.name + ".tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        raw = unfinished.open("wb")
    except OSError as error:
        raise RefusedInput(f"{out}: can't be written ({error.strerror}); choose another place") from error
    try:
        with raw, _compressor(out.suffix, raw) as stream:
            yield stream.write
        unfinished.replace(out)
    except OSError as error:
        raise RunFailed(
            f"{out}: writing stopped ({error.strerror}); free some space or choose another disk, then start again"
        ) from error
    except BrokenProcessPool as error:
        raise RunFailed(f"{out}: a parsing process was killed, as when memory runs out; start again with fewer workers") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _compressor(suffix: str, raw: BinaryIO) -> AbstractContextManager[BinaryIO]:
    if suffix == ".gz":
        return cast(
            BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
        )  # no name, no time: same rows, same bytes
    if suffix == ".zst":
        return cast(BinaryIO, zstandard.ZstdCompressor(level=6).stream_writer(raw, closefd=False))
    return nullcontext(raw)
