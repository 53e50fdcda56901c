"""The input as chats that want answers: read as `dflash prepare` reads, numbered as they stand, handed out sorted by length.

A row that ends in a question has no assistant turn yet; here it gets one. Documents and token ids are no chats and are rejected.
Rows are sorted by the length of their first prompt within windows of some thousands, longest first, so that rows which run side by side
are of near-equal length and memory holds one window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dflash.data.conversation import SHAPE_KEYS, Conversation, Message, RowRejected, parse_row
from dflash.data.decode import rows_of
from dflash.data.inputs import InputFile
from dflash.data.readers import read_segments
from dflash.regenerate.answers import Answer, Request
from dflash.regenerate.chat_format import ChatFormat

WINDOW_CHATS = 4096
_TO_COME = "to come"


@dataclass
class Chat:
    """One conversation on its way.

    Attributes:
        number: of its row in the input, from 0.
        file, line: where it stands.
        messages: as given; assistant turns are replaced one by one as they are answered.
        kept: what else the row holds.
        answers: the answers so far.
        shortened: whether turns were dropped, because the chat grew too long for the target.
    """

    number: int
    file: str
    line: int
    messages: list[Message]
    kept: dict[str, Any]
    answers: list[Answer] = field(default_factory=list)
    shortened: bool = False

    @property
    def turns(self) -> list[int]:
        """Places of the assistant's messages."""
        return [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]

    def request(self, form: ChatFormat, max_new_tokens: int, positions: int) -> Request | None:
        """The next turn to be answered; None when all are, or when no place is left for another answer.

        Raises:
            RowRejected: the very first prompt can't be asked.
        """
        turns, turn = self.turns, len(self.answers)
        if turn == len(turns):
            return None
        before = self.messages[: turns[turn]]
        try:
            prompt = form.prompt(before)
            room = positions - len(prompt)
            if room < 1:
                raise RowRejected("prompt too long", f"{len(prompt)} tokens; the target has {positions} positions")
        except RowRejected:
            if not turn:
                raise
            self.messages, self.shortened = self.messages[: turns[turn - 1] + 1], True
            return None
        return Request(self.number, turn, prompt, min(max_new_tokens, room), before)

    def take(self, answer: Answer, text: str) -> None:
        """Put an answer in its place."""
        self.messages[self.turns[answer.turn]] = {"role": "assistant", "content": text}
        self.answers.append(answer)


Rejected = Callable[[int, str, int, RowRejected], None]


def read_chats(files: Iterable[InputFile], rejected: Rejected) -> Iterator[Chat]:
    """The chats of the files, in order; `rejected` is told (number, file, line, reason) of every other row.

    Raises:
        RefusedInput: a file is damaged or unreadable.
    """
    number = 0
    for file in files:
        for segment in read_segments(file):
            for line, raw in rows_of(segment):
                try:
                    yield _chat(number, segment.file, line, raw)
                except RowRejected as reason:
                    rejected(number, segment.file, line, reason)
                number += 1


def sorted_requests(
    chats: Iterable[Chat], form: ChatFormat, rejected: Rejected, max_new_tokens: int, positions: int
) -> Iterator[tuple[Chat, Request]]:
    """Each chat with its first request, longest prompt first in each window."""
    chats = iter(chats)
    while window := list(islice(chats, WINDOW_CHATS)):
        asked = []
        for chat in window:
            try:
                request = chat.request(form, max_new_tokens, positions)
            except RowRejected as reason:
                rejected(chat.number, chat.file, chat.line, reason)
                continue
            if request is not None:
                asked.append((chat, request))
        asked.sort(key=lambda pair: (-len(pair[1].prompt), pair[0].number))
        yield from asked


def _chat(number: int, file: str, line: int, raw: object) -> Chat:
    if isinstance(raw, RowRejected):
        raise raw
    row = parse_row(_with_an_open_turn(raw))
    if not isinstance(row, Conversation):
        raise RowRejected("not a chat", f"the row is a {type(row).__name__.lower()}; only questions can be answered")
    if not any(message["role"] == "user" for message in row.messages):
        raise RowRejected("no user turn", f"{len(row.messages)} messages, none by the user")
    kept = {str(key): value for key, value in raw.items() if key not in SHAPE_KEYS} if isinstance(raw, Mapping) else {}
    return Chat(number, file, line, row.messages, kept)


def _with_an_open_turn(raw: object) -> object:
    """The row, with an assistant turn to come where it ends in a question."""
    if not isinstance(raw, Mapping):
        return raw
    for key in ("messages", "conversations"):
        messages = raw.get(key)
        if isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
            last = messages[-1]
            if str(last.get("role", last.get("from"))).strip().lower() in ("user", "human", "prompter"):
                return {**raw, key: [*messages, {"role": "assistant", "content": _TO_COME}]}
            return raw
    if raw.get("prompt") is not None and raw.get("response") is None and raw.get("completion") is None:
        return {**raw, "response": _TO_COME}
    if raw.get("instruction") is not None and raw.get("output") is None:
        return {**raw, "output": _TO_COME}
    return raw
