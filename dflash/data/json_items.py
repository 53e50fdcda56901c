"""Rows out of one big JSON value, as a stream: an array of rows, an object that holds such arrays, or rows one after the other.

A value is cut out by counting brackets outside strings; what it says is left to the workers, so a row that is balanced and yet
broken costs only itself. Nothing but the row in hand is held in memory.

    [row, row, ...]                                  each item is a row
    [message, message, ...]                          the array is one row
    {"data": [row, ...], "conversations": [row, ...]}  each item of those lists (`_WRAPPERS`) is a row
    {...}  {...}                                     each object is a row

A row without an end (a missing quote or bracket, a file cut off) is told with the line it begins in. If it began a line, reading goes
on at the next line that begins as that one did, with as much white space and a bracket; else what is left can't be told apart, and is
passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import orjson

from dflash.data.text_blocks import UTF8_MARK

_WRAPPERS: Final = frozenset(
    "data rows conversations chats dialogues dialogs examples items samples instances records train".split()
)
_OF_A_ROW: Final = frozenset({"messages", "text", "prompt", "instruction", "input_ids"})
_OF_A_MESSAGE: Final = ("role", "from")
# A string as far as it goes, closed or not; its letters are raw, but for control characters JSON forbids a newline in it.
_TOKEN = re.compile(rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+("?)|[\[\]{}]')
_SPACE = re.compile(rb"[\s,]*")
_SCALAR = re.compile(rb"[^\s,\[\]{}\"]+")
_QUOTE, _OPENING = ord('"'), frozenset(b"[{")
_TO_CLOSING = 2  # from the letter of either opening bracket to that of the closing one


class JsonItem(NamedTuple):
    """One row's text and the line it begins in, from 1; or, with no text, the reason why there is none."""

    line: int
    text: bytes | None
    reason: str = ""


class _Broken(Exception):
    pass


def json_items(blocks: Iterator[bytes], *, longest_bytes: int) -> Iterator[JsonItem]:
    """The rows of a JSON text that comes in `blocks`; a row longer than `longest_bytes` is told as a reason."""
    text = _Text(blocks, longest_bytes)
    while not text.lost and (letter := text.letter()) is not None:
        if letter == ord("["):
            if text.holds_messages():
                yield from _item(text)
            else:
                yield from _array(text)
        elif letter == ord("{"):
            yield from _object(text)
        else:
            yield JsonItem(text.line, None, f"broken JSON: {chr(letter)!r} stands outside of any row; what follows it is not read")
            return


def _array(text: _Text) -> Iterator[JsonItem]:
    begun = text.line
    text.skip(1)
    while (letter := text.letter()) != ord("]"):
        if letter is None:
            text.lost = True
            yield JsonItem(text.line, None, f"cut off: the list that begins in line {begun} has no end")
            return
        yield from _item(text)
        if text.lost:
            return
    text.skip(1)


def _item(text: _Text) -> Iterator[JsonItem]:
    """The value that begins here, consumed; a broken one consumed up to the next that can be told."""
    try:
        length = text.value()
    except _Broken as fault:
        line = text.line
        text.resume()
        yield JsonItem(line, None, f"{fault}; what follows it is not read" if text.lost else str(fault))
        return
    yield JsonItem(text.line, text.ahead(length))
    text.skip(length)


def _object(text: _Text) -> Iterator[JsonItem]:
    """An object is one row, unless it holds lists of rows."""
    try:
        start = text.wrapped(1, perhaps_a_row=True)
    except _Broken:
        start = None
    if start is None:
        yield from _item(text)
        return
    while start is not None:
        text.skip(start)
        yield from _array(text)
        if text.lost:
            return
        try:
            start = text.wrapped(0, perhaps_a_row=False)
        except _Broken as fault:
            text.lost = True
            yield JsonItem(text.line, None, f"{fault}; what follows it is not read")
            return
    text.skip(text.object_end + 1)


class _Text:
    """What is read and not yet consumed. Offsets count from the first byte that is not consumed, which is in line `line`.

    `lost` is set when what follows can't be told apart any more.
    """

    def __init__(self, blocks: Iterator[bytes], longest_bytes: int) -> None:
        self._blocks, self._longest = blocks, longest_bytes
        self._buffer, self._first = b"", 0
        self._indent: bytes | None = b""
        self.line = 1
        self.object_end = 0
        self.lost = False
        while len(self._buffer) < len(UTF8_MARK) and self._more():
            pass
        self._buffer = self._buffer.removeprefix(UTF8_MARK)

    def letter(self) -> int | None:
        """Consume white space and commas; the byte that follows, or None at the end."""
        while True:
            space = _SPACE.match(self._buffer, self._first)
            end = space.end() if space else self._first
            gap = self._buffer[self._first : end]
            if gap:
                newline = gap.rfind(b"\n")
                if newline >= 0:
                    self._indent = gap[newline + 1 :]
                elif self._indent is not None:
                    self._indent += gap
                self.line += gap.count(b"\n")
                self._first = end
            if self._first < len(self._buffer):
                return self._buffer[self._first]
            if not self._more():
                return None

    def skip(self, length: int) -> None:
        """Consume `length` bytes."""
        gone = self._first + length
        self.line += self._buffer.count(b"\n", self._first, gone)
        self._first, self._indent = gone, None

    def ahead(self, length: int) -> bytes:
        """The next `length` bytes."""
        return self._buffer[self._first : self._first + length]

    def value(self, offset: int = 0) -> int:
        """Where the value that begins at `offset` ends.

        Raises:
            _Broken: it has no end, or none within the longest allowed.
        """
        if not self._has(offset):
            raise _Broken("cut off: the file ends where a value is due")
        if self._buffer[self._first + offset] not in _OPENING:
            return self._scalar(offset)
        open_brackets, scanned = bytearray(), offset
        while True:
            for token in _TOKEN.finditer(self._buffer, self._first + scanned):
                letter = self._buffer[token.start()]
                if letter == _QUOTE:
                    if not token.group(1):
                        scanned = token.start() - self._first
                        self._see_that_string_goes_on(token.end())
                        break
                elif letter in _OPENING:
                    open_brackets.append(letter)
                elif letter - open_brackets.pop() != _TO_CLOSING:
                    raise _Broken(
                        f"broken JSON: a bracket is missing before the {chr(letter)!r} in line {self._line_at(token.start())}"
                    )
                elif not open_brackets:
                    return token.end() - self._first
            else:
                scanned = self.held
            if self.held > self._longest:
                raise _Broken(f"row too long: more than {self._longest} bytes")
            if not self._more():
                raise _Broken("cut off: the file ends inside this row")

    def _see_that_string_goes_on(self, end: int) -> None:
        if self._buffer[end : end + 1] not in (b"", b"\\"):
            raise _Broken(f"broken JSON: a string has no end in line {self._line_at(end)}")

    def _line_at(self, place: int) -> int:
        return self.line + self._buffer.count(b"\n", self._first, place)

    def _scalar(self, offset: int) -> int:
        """Where a string, number or word ends."""
        while True:
            start = self._first + offset
            if self._buffer[start] == _QUOTE:
                string = _TOKEN.match(self._buffer, start)
                if string and string.group(1):
                    return string.end() - self._first
                self._see_that_string_goes_on(string.end() if string else start)
            else:
                word = _SCALAR.match(self._buffer, start)
                if word is None:
                    raise _Broken(f"broken JSON: {chr(self._buffer[start])!r} where a value is due")
                if word.end() < len(self._buffer):
                    return word.end() - self._first
            if self.held > self._longest:
                raise _Broken(f"row too long: more than {self._longest} bytes")
            if not self._more():
                if self._buffer[start] == _QUOTE:
                    raise _Broken("cut off: the file ends inside a string")
                return self.held

    def holds_messages(self, offset: int = 0) -> bool:
        """Whether the list that begins at `offset` is one of messages, told by its first item."""
        try:
            start = self._gap(offset + 1)
            item = orjson.loads(self._slice(start, self.value(start)))
        except (_Broken, ValueError):
            return False
        return isinstance(item, dict) and any(key in item for key in _OF_A_MESSAGE)

    def wrapped(self, offset: int, *, perhaps_a_row: bool) -> int | None:
        """Where, among the keys of an object from `offset` on, the next list of rows begins; None at its end (`object_end`).

        Raises:
            _Broken: the object can't be followed, or has a key that makes it a row when it may be one.
        """
        while True:
            offset = self._gap(offset)
            if not self._has(offset):
                raise _Broken("cut off: the file ends inside an object")
            letter = self._buffer[self._first + offset]
            if letter == ord("}"):
                self.object_end = offset
                return None
            if letter != _QUOTE:
                raise _Broken(f"broken JSON: {chr(letter)!r} where a key is due")
            end = self._scalar(offset)
            key = self._slice(offset + 1, end - 1).decode(errors="replace")
            offset = self._gap(end)
            if self._slice(offset, offset + 1) != b":":
                raise _Broken("broken JSON: a key without a value")
            offset = self._gap(offset + 1)
            if perhaps_a_row and key in _OF_A_ROW:
                raise _Broken("a row")
            if key in _WRAPPERS and self._is_list_of_rows(offset):
                return offset
            offset = self.value(offset)

    def _is_list_of_rows(self, offset: int) -> bool:
        if self._slice(offset, offset + 1) != b"[":
            return False
        inner = self._gap(offset + 1)
        return self._slice(inner, inner + 1) in (b"{", b"[") and not self.holds_messages(offset)

    def resume(self) -> None:
        """Consume what can't be told apart: up to the next line that begins as the broken row did, or all (then it is `lost`)."""
        indent = self._indent
        start = None if indent is None else re.compile(rb"\n" + re.escape(indent) + rb"(?=[\[{])")
        self.skip(min(1, self.held))
        while True:
            found = start.search(self._buffer, self._first) if start else None
            if found:
                self.skip(found.end() - self._first)
                self._indent = indent
                return
            self.skip(max(0, self.held - len(indent or b"") - 1))
            if not self._more():
                self.lost = True
                return

    @property
    def held(self) -> int:
        """Bytes read and not consumed."""
        return len(self._buffer) - self._first

    def _gap(self, offset: int) -> int:
        """Past white space and commas."""
        while True:
            space = _SPACE.match(self._buffer, self._first + offset)
            offset = (space.end() if space else self._first + offset) - self._first
            if self._first + offset < len(self._buffer) or not self._more():
                return offset

    def _slice(self, start: int, end: int) -> bytes:
        return self._buffer[self._first + start : self._first + end]

    def _has(self, offset: int) -> bool:
        while self._first + offset >= len(self._buffer):
            if not self._more():
                return False
        return True

    def _more(self) -> bool:
        """Read on; what is consumed is let go."""
        block = next(self._blocks, None)
        if block is None:
            return False
        self._buffer, self._first = self._buffer[self._first :] + block, 0
        return True
