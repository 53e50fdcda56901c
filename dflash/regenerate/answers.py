"""One turn asked for, one answer given, and what may be wrong with the answer.

An answer *loops* when it ends in at least four repeats of the same tokens (of a period of 1 to 48), 32 tokens or more in all. Targets
that never find their end do so; a drafter learns such text at once and its acceptance looks better than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Finish = Literal["stop", "limit", "refused"]

_LONGEST_PERIOD = 48
_REPEATS = 4
_SHORTEST_LOOP = 32


@dataclass(frozen=True)
class Request:
    """A turn that wants an answer.

    Attributes:
        chat: number of the chat in the input.
        turn: number of the assistant turn in the chat, from 0.
        prompt: token ids up to where the assistant begins to speak.
        limit: tokens of the answer, at most.
        messages: the same prompt as messages, for a server.
    """

    chat: int
    turn: int
    prompt: list[int]
    limit: int
    messages: list[dict[str, str]] = field(default_factory=list)

    @property
    def need(self) -> int:
        """Places of cache that prompt and answer may come to."""
        return len(self.prompt) + self.limit


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    Attributes:
        chat, turn: of the request.
        tokens: how many were generated, an end token included.
        finish: stop (the end of turn was written), limit, or refused (by a server).
        ids: the tokens without the end token; None where a server gave text only.
        text: a server's text; None where it is to be made of the ids.
        end: the end token written, if one was.
        origin: what else a server said of it, such as its own word for how it finished.
    """

    chat: int
    turn: int
    tokens: int
    finish: Finish
    ids: list[int] | None = None
    text: str | None = None
    end: int | None = None
    origin: dict[str, Any] = field(default_factory=dict)


def loops(tokens: Sequence[Any]) -> bool:
    """Whether the tokens (or words) end in a loop; see the module's text."""
    tail = np.unique(np.asarray(tokens[-_LONGEST_PERIOD * (_REPEATS + 1) :]), return_inverse=True)[1]
    for period in range(1, min(_LONGEST_PERIOD, len(tail) // _REPEATS) + 1):
        differing = np.flatnonzero(tail[period:] != tail[:-period])
        repeated = len(tail) if not len(differing) else len(tail) - int(differing[-1]) - 1
        if repeated >= max(_REPEATS * period, _SHORTEST_LOOP):
            return True
    return False
