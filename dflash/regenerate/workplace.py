"""The files of a job: what is done so far, the finished answers, and what says how they came about.

    OUT                      the answers, in the order of the input; appears whole, at the end
    OUT.manifest.json        how they came about; written last
    OUT.rejected.jsonl       rows that could not be asked: file, line, reason; only if there are any
    OUT.unfinished/          job.json (what is being made) and done.jsonl (a line a finished chat, appended)

A line of done.jsonl is there whole or not at all: what a kill tore is cut off when the job goes on. The line says the chat's number, so a
chat is asked again only if it has no line, and nothing is doubled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

from dflash.data.files import locked, write_whole, writing
from dflash.errors import RefusedInput

_JOB, _DONE = "job.json", "done.jsonl"
FORMAT = 1


class Workplace:
    """The folder of one job while it lasts.

    Attributes:
        out: the file to be made.
        done: numbers of the chats that are done, with the place of their line in done.jsonl.
    """

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.out, self.done = out, dict[int, int]()
        self._settings = settings
        self._folder = out.with_name(out.name + ".unfinished")
        self._file: FileIO | None = None
        self._pending = bytearray()
        self._end = 0

    @property
    def manifest_path(self) -> Path:
        """Where the manifest lies."""
        return self.out.with_name(self.out.name + ".manifest.json")

    @property
    def rejected_path(self) -> Path:
        """Where rejected rows are listed."""
        return self.out.with_name(self.out.name + ".rejected.jsonl")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the place against other processes.

        Raises:
            RefusedInput: another process works there.
            RunFailed: the folder can't be written.
        """
        if self.out.is_dir():
            raise RefusedInput(f"{self.out}: is a folder; give --out a file to write, as in answers.jsonl")
        with writing(self.out):
            self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self._folder, wait=False):
                yield
        finally:
            self._close()
            if not (self._folder / _JOB).exists():
                shutil.rmtree(self._folder, ignore_errors=True)

    def finished(self, *, overwrite: bool) -> dict[str, Any] | None:
        """The manifest when this very job is finished there.

        Raises:
            RefusedInput: the file holds something else, and may not be overwritten.
        """
        if overwrite or not (self.out.exists() or self.manifest_path.exists()):
            return None
        manifest = _read(self.manifest_path)
        settings = manifest.get("settings")
        if settings == self._settings and self.out.is_file() and self.out.stat().st_size == manifest.get("size_bytes"):
            return manifest
        if (self._folder / _DONE).is_file() and settings is None:
            return None  # killed between the answers and their manifest
        differing = _differing(settings, self._settings) if isinstance(settings, dict) else "it has no manifest"
        raise RefusedInput(f"{self.out}: is there already, made otherwise ({differing}); choose another --out, or give --overwrite")

    def open(self, *, overwrite: bool) -> None:
        """Go on with what is done, or begin.

        Raises:
            RefusedInput: what is done is of another job, and may not be overwritten.
        """
        before = _read(self._folder / _JOB).get("settings")
        if before is not None and before != self._settings and not overwrite:
            raise RefusedInput(
                f"{self._folder}: holds unfinished answers made otherwise ({_differing(before, self._settings)}); give the same "
                "settings to go on, another --out, or --overwrite to begin anew"
            )
        path = self._folder / _DONE
        with writing(path):
            if before != self._settings:
                path.unlink(missing_ok=True)
                job = orjson.dumps({"settings": self._settings}, option=orjson.OPT_INDENT_2)
                write_whole(self._folder / _JOB, job, scratch=self._folder)
            self._file = path.open("ab", buffering=0)
            self._end = self._scan(path)
            self._file.truncate(self._end)

    def append(self, number: int, line: dict[str, Any]) -> None:
        """Note a finished chat; `flush` writes it."""
        line_bytes = orjson.dumps({"number": number, **line}, option=orjson.OPT_APPEND_NEWLINE)
        self.done[number] = self._end + len(self._pending)
        self._pending += line_bytes

    def flush(self) -> None:
        """Hand what was appended to the system, so that a kill of this process doesn't lose it.

        Raises:
            RunFailed: the disk is full, or the file can't be written.
        """
        with writing(self._folder / _DONE):
            while self._pending and self._file is not None:  # a full disk may take a part of it: what is torn is cut off later
                written = self._file.write(self._pending) or 0
                self._end += written
                del self._pending[:written]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Lines of all chats that are done, in the order of the input."""
        self.flush()
        with (self._folder / _DONE).open("rb") as file:
            for number in sorted(self.done):
                file.seek(self.done[number])
                yield orjson.loads(file.readline())

    def finish(self, rejected: list[dict[str, Any]], manifest: dict[str, Any]) -> dict[str, Any]:
        """Write the answers, then the manifest, and take the folder away; returns the manifest.

        Raises:
            RunFailed: the disk is full, or a file can't be written. What is done is kept.
        """
        digest, size = hashlib.sha256(), 0
        scrap = self._folder / "answers.scrap"
        with writing(self.out):
            self.manifest_path.unlink(missing_ok=True)
            with scrap.open("wb") as whole:
                for line in self.lines():
                    if line["row"] is not None:
                        row = orjson.dumps(line["row"], option=orjson.OPT_APPEND_NEWLINE)
                        whole.write(row)
                        digest.update(row)
                        size += len(row)
                whole.flush()
                os.fsync(whole.fileno())
            if rejected:
                listed = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rejected)
                write_whole(self.rejected_path, listed, scratch=self._folder)
            else:
                self.rejected_path.unlink(missing_ok=True)
            scrap.replace(self.out)
        whole_manifest = {
            "format": FORMAT,
            "settings": self._settings,
            "sha256": digest.hexdigest(),
            "size_bytes": size,
            **manifest,
        }
        text = orjson.dumps(whole_manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        write_whole(self.manifest_path, text, scratch=self._folder)
        self._close()
        (self._folder / _JOB).unlink(missing_ok=True)  # first: without it the folder is nobody's
        shutil.rmtree(self._folder, ignore_errors=True)
        return whole_manifest

    def _scan(self, path: Path) -> int:
        """Take down the finished chats; returns where the last whole line ends."""
        end = 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    number = int(orjson.loads(line)["number"])
                except (ValueError, KeyError, TypeError):
                    break
                self.done[number] = end
                end += len(line)
        return end

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _differing(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Which settings differ, in words."""
    keys = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    return "; ".join(f"{key}: {_short(before.get(key))} then, {_short(now.get(key))} now" for key in keys) or "nothing known of it"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
