"""What a case is, and the command line it goes through, in this process."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest import mock

Verdict = Literal["accepted", "refused", "failed"]
LONGEST_SECONDS = 60


@dataclass(frozen=True)
class Case:
    """One bad input.

    Attributes:
        door: the subcommand.
        name: what is wrong with it.
        words: the command line behind `dflash`.
        expected: what is right: `accepted` (whole or but for the rows named), or `refused`.
        places: what the message, or rejected.jsonl, must name.
        rejected: for prepare: the lines that must be rejected, and no others.
    """

    door: str
    name: str
    words: list[str]
    expected: Verdict
    places: tuple[str, ...] = ()
    rejected: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a case, and all that was printed."""

    verdict: Verdict
    told: str


class _TooLong(BaseException):
    pass


def run(case: Case) -> Outcome:
    """Take one case through the command line. A traceback, an unnamed reason or a hang is a failure."""
    from dflash import cli

    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "argv", ["dflash", *case.words]), _limited():
            cli.main()
        code: int | str | None = 0
    except SystemExit as end:
        code = end.code
    except _TooLong:
        return Outcome("failed", f"no answer within {LONGEST_SECONDS} s")
    except BaseException as error:
        return Outcome("failed", f"traceback: {type(error).__name__}: {error}")
    told = out.getvalue() + err.getvalue()
    if "Traceback (most recent call last)" in told:
        return Outcome("failed", told)
    if code in (0, None):
        return Outcome("accepted", told)
    flat = "".join(told.split())
    lost = [place for place in case.places if "".join(place.split()) not in flat]
    if code not in (1, 2) or not told.strip() or lost:
        return Outcome("failed", f"exit {code}, {lost} not named: {told}")
    return Outcome("refused", told)


@contextmanager
def _limited() -> Iterator[None]:
    def late(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


Maker = Callable[[Path, Path], Iterator[Case]]
"""Makes the cases of a door in an empty folder; the second folder holds the sound things they are made from."""
