"""What can be asked of `dflash regenerate`: each option with its unit, default and bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dflash.errors import RefusedInput

FLAGS = ("cut", "looping", "refused", "not_round_trip")
"""What may be wrong with an answer that is there: it met the token limit; it ends in a loop; the server refused it; its text, tokenised
again, gives other tokens than the target wrote."""


@dataclass(frozen=True)
class RegenerateOptions:
    """How answers are made.

    Attributes:
        max_new_tokens: tokens of an answer, at most (1 or more).
        temperature: 0 for the most likely token each time; else logits are divided by it and a token is drawn.
        top_p: of a draw, only the likeliest tokens that together have this probability (above 0, at most 1).
        seed: of the draws; an answer's draws depend on (seed, chat, turn) and on nothing else.
        token_budget: tokens of cache, rows x longest row; a longer row runs alone.
        max_rows: rows at a time, at most.
        limit: chats, at most; None: all.
        leave_out: chats with such an answer are left out; see `FLAGS`.
        overwrite: replace answers made from other inputs or with other options.
    """

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    token_budget: int = 65_536
    max_rows: int = 256
    limit: int | None = None
    leave_out: tuple[str, ...] = ()
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "token_budget", "max_rows", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RefusedInput(f"{name}={value}: give 1 or more")
        if not 0 <= self.temperature < math.inf:
            raise RefusedInput(f"temperature={self.temperature}: give 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise RefusedInput(f"top_p={self.top_p}: give a probability above 0, at most 1")
        unknown = [flag for flag in self.leave_out if flag not in FLAGS]
        if unknown:
            raise RefusedInput(f"leave_out={','.join(unknown)}: unknown; use some of {','.join(FLAGS)}")

    def that_matter(self) -> dict[str, Any]:
        """The options that change what is written, as plain values."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "limit": self.limit,
            "leave_out": sorted(self.leave_out),
        }
