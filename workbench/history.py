"""Undo and redo for one value."""

from __future__ import annotations

from typing import Generic, TypeVar

Value = TypeVar("Value")


class History(Generic[Value]):
    """A value with the ones before it and the ones undone."""

    def __init__(self, value: Value) -> None:
        self._values = [value]
        self._at = 0

    @property
    def value(self) -> Value:
        """The value now."""
        return self._values[self._at]

    def push(self, value: Value) -> bool:
        """A new value; what was undone is forgotten. False if it is the value now."""
        if value == self.value:
            return False
        self._values[self._at + 1 :] = [value]
        self._at += 1
        return True

    def undo(self) -> bool:
        """Back by one; False at the beginning."""
        self._at -= 1 if (could := self._at > 0) else 0
        return could

    def redo(self) -> bool:
        """Forward by one; False at the end."""
        self._at += 1 if (could := self._at < len(self._values) - 1) else 0
        return could
