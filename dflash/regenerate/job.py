"""One job: chats in, each turn asked of the target when the answers before it are there, chats with answers out.

The engine is kept busy with what it wants: first the next turns of chats under way, then new chats, longest prompt first. A finished chat
is appended to the workplace at once. So a kill loses only what was under way, and the result depends neither on when it came nor on the
engine's batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dflash.data.conversation import RowRejected
from dflash.data.inputs import find_inputs
from dflash.errors import RunFailed
from dflash.regenerate.answers import Answer, Request
from dflash.regenerate.chat_format import ChatFormat
from dflash.regenerate.chats import Chat, read_chats, sorted_requests
from dflash.regenerate.engine import Engine
from dflash.regenerate.options import RegenerateOptions
from dflash.regenerate.progress import RegenerateProgress
from dflash.regenerate.report import Counts, flags_of
from dflash.regenerate.workplace import Workplace

_FLUSH_SECONDS = 1.0


@dataclass(frozen=True)
class Source:
    """Who answers.

    Attributes:
        facts: what the manifest says of it; a job that goes on must meet the same.
        form: its form of a chat.
        positions: tokens that prompt and answer may have together.
        engine: starts it.
    """

    facts: dict[str, Any]
    form: ChatFormat
    positions: int
    engine: Callable[[], Engine]


def regenerate(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    source: Source,
    options: RegenerateOptions,
    *,
    progress: bool = False,
) -> dict[str, Any]:
    """Answer the chats of `inputs` and write them to `out`, or go on with that; a finished job is only reported.

    Returns:
        The figures of `Counts`, and seconds, tokens_per_second (of this call).

    Raises:
        RefusedInput: an input or the target can't be used, or `out` holds something else.
        RunFailed: the disk is full, or Ctrl-C was pressed. The same call goes on where it stopped.
    """
    started = time.monotonic()
    path = Path(out)
    files = find_inputs([inputs] if isinstance(inputs, str | Path) else inputs, out=path)
    settings = {
        "inputs": [{"name": file.name, "size_bytes": file.size_bytes, "modified_ns": file.modified_ns} for file in files],
        "answered_by": source.facts,
        **options.that_matter(),
    }
    place = Workplace(path, settings)
    with place.held():
        manifest = place.finished(overwrite=options.overwrite)
        made = 0
        if manifest is None:
            place.open(overwrite=options.overwrite)
            work = _Work(place, source, options)
            try:
                made = work.run(read_chats(files, work.reject), progress=progress)
            except KeyboardInterrupt as error:
                raise RunFailed(f"{path}: stopped. What was finished is kept: run the same command again to go on") from error
            manifest = place.finish(work.rejected, {"figures": work.counts.figures()})
    seconds = time.monotonic() - started
    return {"out": str(path), **manifest["figures"], "seconds": seconds, "tokens_per_second": made / seconds}


class _Work:
    """The loop of a job."""

    def __init__(self, place: Workplace, source: Source, options: RegenerateOptions) -> None:
        self._place, self._source, self._options = place, source, options
        self._open: dict[int, Chat] = {}
        self._next: list[Request] = []
        self._tokens = 0
        self.counts = Counts()
        self.rejected: list[dict[str, Any]] = []

    def reject(self, number: int, file: str, line: int, reason: RowRejected) -> None:
        """Note a row that can't be asked."""
        self.counts.rejected[reason.kind] += 1
        told = str(reason).encode("utf-8", "backslashreplace").decode()
        self.rejected.append({"number": number, "file": file, "line": line, "reason": told})

    def run(self, chats: Iterator[Chat], *, progress: bool) -> int:
        """Answer all that is not done; returns how many tokens that took."""
        for line in self._place.lines():
            self.counts.add(line)
        with RegenerateProgress(self._options.limit, shown=progress) as bar:
            bar.passed(self.counts.chats)
            asked = self._asked(chats)
            first = next(asked, None)
            if first is not None:
                self._start(first)
                try:
                    self._answer(asked, bar)
                finally:
                    self._place.flush()
        self.rejected.sort(key=lambda row: row["number"])
        return self._tokens

    def _answer(self, asked: Iterator[tuple[Chat, Request]], bar: RegenerateProgress) -> None:
        """Keep the engine busy until nothing is under way."""
        flushed = time.monotonic()
        with closing(self._source.engine()) as engine:
            while self._feed(engine, asked):
                for answer in engine.collect():
                    self._tokens += answer.tokens
                    bar.answered(answer.tokens)
                    bar.passed(self._take(answer))
                if time.monotonic() - flushed > _FLUSH_SECONDS:
                    self._place.flush()
                    flushed = time.monotonic()

    def _asked(self, chats: Iterator[Chat]) -> Iterator[tuple[Chat, Request]]:
        """New chats with their first requests."""
        wanted = (chat for chat in islice(chats, self._options.limit) if chat.number not in self._place.done)
        return sorted_requests(wanted, self._source.form, self.reject, self._options.max_new_tokens, self._source.positions)

    def _start(self, asked: tuple[Chat, Request]) -> None:
        chat, request = asked
        self._open[chat.number] = chat
        self._next.append(request)

    def _feed(self, engine: Engine, asked: Iterator[tuple[Chat, Request]]) -> bool:
        """Give the engine what it wants; returns whether anything is under way."""
        for pair in islice(asked, max(0, engine.wanted - len(self._next))):
            self._start(pair)
        engine.add(self._next)
        self._next = []
        return bool(self._open)

    def _take(self, answer: Answer) -> int:
        """Put an answer into its chat; returns 1 if that finished the chat."""
        form, chat = self._source.form, self._open[answer.chat]
        if answer.ids is not None and answer.finish == "limit":
            answer = Answer(**{**vars(answer), "ids": form.whole_characters(answer.ids)})
        text = form.text(answer.ids) if answer.ids is not None else answer.text or ""
        chat.take(answer, text)
        request = None
        if text.strip():
            request = chat.request(form, self._options.max_new_tokens, self._source.positions)
        if request is not None:
            self._next.append(request)
            return 0
        self._place.append(chat.number, self._line(chat))
        del self._open[chat.number]
        return 1

    def _line(self, chat: Chat) -> dict[str, Any]:
        """What done.jsonl says of a finished chat."""
        texts = [chat.messages[turn]["content"] for turn in chat.turns[: len(chat.answers)]]
        reason, returns = "", None
        if not all(text.strip() for text in texts):
            reason = "empty"
        else:
            try:
                returns = self._returns(chat)
            except RowRejected as error:
                reason = error.kind
        flags = flags_of(chat.answers, texts, returns=returns)
        reason = reason or next((flag for flag in flags if flag in self._options.leave_out), "")
        line = {
            "answers": len(chat.answers),
            "tokens": sum(answer.tokens for answer in chat.answers),
            "shortened": chat.shortened,
            "flags": flags,
            "left_out": reason,
            "row": None if reason else _row(chat, flags),
        }
        self.counts.add(line)
        return line

    def _returns(self, chat: Chat) -> bool | None:
        written = [answer.ids for answer in chat.answers if answer.ids is not None]
        if len(written) != len(chat.answers):
            return None
        return self._source.form.returns(chat.messages, written, [answer.end for answer in chat.answers])


def _row(chat: Chat, flags: list[str]) -> dict[str, Any]:
    """The chat as it is written: what the source row held beside its text, the messages, and how they came about."""
    about: dict[str, Any] = {
        "finish": [answer.finish for answer in chat.answers],
        "tokens": [answer.tokens for answer in chat.answers],
        "flags": flags,
    }
    origins = [answer.origin for answer in chat.answers]
    return {"messages": chat.messages, **chat.kept, "regenerated": about | ({"origin": origins} if any(origins) else {})}
