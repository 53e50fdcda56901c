"""The `dflash` command: thin. Each subcommand reads its arguments, calls one function, and prints what it returns.

One file a group of commands; `output` holds what they share. With `--json` the last line on standard output is one JSON object; progress
and warnings go to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage or refused input, 130 stopped at once.
"""

from __future__ import annotations

import os
import sys

import typer

from dflash.cli import data, predict, regenerate, report, runs, serving, workbench
from dflash.errors import DFlashError, in_words

app = typer.Typer(
    help="Train DFlash drafters: prepare text, plan batches, train targets -> pool -> drafters, resume.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for group in (data, regenerate, runs, predict, serving, report, workbench):
    group.register(app)


def main() -> None:
    """Run the command line; errors the package raises on purpose are printed without a traceback."""
    # Threads of a parallel section that spin while they wait take the core from those they wait for, as soon as anything else runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except DFlashError as error:
        print(f"dflash: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None:  # no file of the user's: a fault of ours, to be seen whole
            raise
        print(f"dflash: {in_words(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as error:
        print(f"dflash: {error or 'stopped'}", file=sys.stderr)
        sys.exit(130)
