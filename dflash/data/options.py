"""What can be asked of `prepare`: each option with its unit, default and bounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from dflash.errors import RefusedInput

LossOn = Literal["all", "last"]
OverLong = Literal["cut", "reject"]
OddTurns = Literal["join", "drop-turn", "drop-row"]
Parts = Literal["drop-row", "drop-part"]
Reasoning = Literal["loss", "context"]
_CHOICES = {"loss_on": LossOn, "over_long": OverLong, "odd_turns": OddTurns, "parts": Parts, "reasoning": Reasoning}


@dataclass(frozen=True)
class PrepareOptions:
    """How text becomes tokens.

    Attributes:
        loss_on: which assistant turns are supervised: `all`, or only the `last`.
        max_length: tokens a row, at most (2 or more).
        over_long: what becomes of a longer row: `cut` keeps its first `max_length` tokens, `reject` leaves it out.
        odd_turns: what becomes of turns no template foresees. `join` puts two of one role in a row together and drops what can't be
            joined: an assistant turn before the first user's, user or tool turns behind the last answer. `drop-turn` drops those
            and the later of two in a row; `drop-row` drops the row.
        parts: what becomes of message parts that are not text (images, sound): `drop-row`, or `drop-part` keeps the text.
        reasoning: whether the assistant's thinking, where the template writes it, is supervised (`loss`) or only read (`context`).
        chat_template: Jinja source used instead of the tokenizer's own template; empty: the tokenizer's.
        template_args: variables handed to the template, for instance `{"enable_thinking": False}`.
        workers: processes that tokenise; 0: one a core. It doesn't change what is written.
        overwrite: replace a finished dataset that was made from other inputs or with other options.
    """

    loss_on: LossOn = "all"
    max_length: int = 8192
    over_long: OverLong = "cut"
    odd_turns: OddTurns = "join"
    parts: Parts = "drop-row"
    reasoning: Reasoning = "loss"
    chat_template: str | None = None
    template_args: dict[str, Any] = field(default_factory=dict)
    workers: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in get_args(allowed):
                raise RefusedInput(f"{name}={getattr(self, name)!r}: use {' or '.join(get_args(allowed))}")
        if self.max_length < 2:
            raise RefusedInput(f"max_length={self.max_length}: a row needs two tokens at least")
        if self.workers < 0:
            raise RefusedInput(f"workers={self.workers}: use 0 (one a core) or a count of processes")

    def that_matter(self) -> dict[str, Any]:
        """The options that change what is written, as plain values."""
        chosen = asdict(self)
        del chosen["workers"], chosen["overwrite"]
        return chosen
