"""What a person sees while a run trains in the foreground: the console lines, and on a terminal a bar of steps under them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dflash.telemetry.console import ConsoleLine, format_eta, parse_line


@contextmanager
def run_view(stream: TextIO, total_steps: Callable[[], int | None]) -> Iterator[Callable[[str], None]]:
    """Give a function that shows one line of a run.

    Args:
        stream: where lines go; a terminal gets the bar, anything else the bare lines.
        total_steps: the run's steps as far as is known; asked at every line, since a live change may move it.
    """
    if not stream.isatty():
        yield lambda line: print(line, file=stream, flush=True)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        task = progress.add_task("steps", total=None, now="")

        def show(line: str) -> None:
            progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
            read = parse_line(line)
            if read is not None:
                progress.update(task, completed=read.step, total=total_steps(), now=summary(read))

        yield show


def summary(line: ConsoleLine) -> str:
    """What counts, in few words, beside the bar."""
    parts = [f"{line.ktok_per_second:.1f} Ktok/s" if line.ktok_per_second is not None else ""]
    parts.append(f"loss {line.loss:.3f}" if line.loss is not None else "")
    parts.append(f"acceptance {line.streak + 1:.2f}" if line.streak is not None else "")
    parts.append(f"{format_eta(line.eta_seconds)} left" if line.eta_seconds is not None else "")
    return "  ".join(part for part in parts if part)
