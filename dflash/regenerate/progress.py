"""The bar of a job: chats done, tokens a second, time left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class RegenerateProgress:
    """Follows a job; chats that were done before count as done but not for the rate."""

    def __init__(self, total: int | None, *, shown: bool) -> None:
        self._bar = Progress(
            TextColumn("answering"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task("answering", total=total, told="")
        self._tokens, self._started = 0, time.monotonic()

    def __enter__(self) -> RegenerateProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def passed(self, chats: int = 1) -> None:
        """So many chats need no work: done before, or rejected."""
        self._bar.advance(self._task, chats)

    def answered(self, tokens: int) -> None:
        """So many tokens more."""
        self._tokens += tokens
        rate = self._tokens / max(1e-9, time.monotonic() - self._started)
        self._bar.update(self._task, told=f"{rate:,.0f} tokens/s")
