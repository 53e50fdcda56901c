"""What came of a job, in figures: counted chat by chat as they finish, the same after a resume."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dflash.regenerate.answers import Answer, loops
from dflash.regenerate.options import FLAGS


def flags_of(answers: list[Answer], texts: list[str], *, returns: bool | None) -> list[str]:
    """What is wrong with a chat's answers; see `options.FLAGS`. `returns` is None where no token ids are known."""
    bad = {
        "cut": any(answer.finish == "limit" for answer in answers),
        "refused": any(answer.finish == "refused" for answer in answers),
        "looping": any(
            loops(text.split() if answer.ids is None else answer.ids) for answer, text in zip(answers, texts, strict=True)
        ),
        "not_round_trip": returns is False,
    }
    return [flag for flag in FLAGS if bad[flag]]


@dataclass
class Counts:
    """Chats and answers so far.

    Attributes:
        chats: finished, those left out included.
        written: in the file.
        turns: answers given; tokens: generated, end tokens included.
        flags: chats with each flag.
        left_out: chats left out, by reason.
        rejected: rows that could not be asked, by reason.
        shortened: chats that lost their last turns because they grew too long.
    """

    chats: int = 0
    written: int = 0
    turns: int = 0
    tokens: int = 0
    shortened: int = 0
    flags: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)

    def add(self, line: dict[str, Any]) -> None:
        """Count a finished chat as done.jsonl has it."""
        self.chats += 1
        self.turns += line["answers"]
        self.tokens += line["tokens"]
        self.shortened += line["shortened"]
        self.flags.update(line["flags"])
        if line["row"] is None:
            self.left_out[line["left_out"]] += 1
        else:
            self.written += 1

    def figures(self) -> dict[str, Any]:
        """The counts as plain values."""
        return {
            "chats": self.chats,
            "written": self.written,
            "answers": self.turns,
            "tokens": self.tokens,
            **{flag: self.flags[flag] for flag in FLAGS},
            "shortened": self.shortened,
            "left_out": dict(sorted(self.left_out.items())),
            "rejected": dict(sorted(self.rejected.items())),
        }
