"""Chunks worked off by many processes, a bounded number of them in flight, each result given out as soon as it is there.

Workers are spawned, not forked: the parent has threads. They ignore Ctrl-C (the parent hears it, starts no more and lets those in
hand be finished) and end when the parent does, however it ends.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from typing import NamedTuple

from dflash.data.chunk import Chunk, ChunkResult, Workplace, do_chunk, finished
from dflash.data.encode import RowEncoder
from dflash.data.options import PrepareOptions
from dflash.data.tokenizer import TextTokenizer
from dflash.errors import RunFailed

_WAITING_CHUNKS = 2  # beyond one a worker, so that none waits for the reader


class Task(NamedTuple):
    """What every worker needs to know."""

    tokenizer: TextTokenizer
    options: PrepareOptions
    place: Workplace


def work_off(chunks: Iterable[Chunk], task: Task, *, workers: int) -> Generator[tuple[int, ChunkResult], None, None]:
    """Do the chunks that are not done yet; give each chunk's number and result, in the order they get ready.

    Raises:
        RunFailed: a file can't be written, or a worker died.
    """
    if workers == 1:
        encoder = RowEncoder(task.tokenizer, task.options)
        for chunk in chunks:
            yield chunk.number, finished(chunk, task.place) or do_chunk(chunk, encoder, task.place)
        return
    context = get_context("spawn")
    end, keep = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(task, end))
    try:
        yield from _spread(chunks, pool, task.place, workers + _WAITING_CHUNKS)
    except BrokenProcessPool as error:
        keep.close()  # a worker that was being started while the pool ended the others is ended by nobody else, and waited for
        raise RunFailed(
            f"{task.place.out}: a worker process died (out of memory? or a script that lacks `if __name__ == '__main__':`). "
            "What was finished is kept: run the same command again, perhaps with fewer workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        end.close()
        keep.close()


def _spread(chunks: Iterable[Chunk], pool: ProcessPoolExecutor, place: Workplace, limit: int) -> Iterator[tuple[int, ChunkResult]]:
    flying: dict[Future[ChunkResult], int] = {}

    def landed() -> Iterator[tuple[int, ChunkResult]]:
        for future in wait(flying, return_when=FIRST_COMPLETED).done:
            yield flying.pop(future), future.result()

    for chunk in chunks:
        done = finished(chunk, place)
        if done is not None:
            yield chunk.number, done
            continue
        flying[_submitted(pool, chunk)] = chunk.number
        while len(flying) >= limit:
            yield from landed()
    while flying:
        yield from landed()


def _submitted(pool: ProcessPoolExecutor, chunk: Chunk) -> Future[ChunkResult]:
    try:
        return pool.submit(_work, chunk)
    except (OSError, ValueError) as error:  # a worker had died, and the pool closed its pipes while this call started another
        raise BrokenProcessPool(str(error)) from error


_encoder: RowEncoder
_place: Workplace


def _start(task: Task, end: Connection) -> None:
    """Make this process a worker, until the parent ends or closes its side of `end`."""
    global _encoder, _place
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    threading.Thread(target=_end_with_parent, args=(end,), daemon=True).start()
    _encoder, _place = RowEncoder(task.tokenizer, task.options), task.place


def _end_with_parent(end: Connection) -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel, end])
        os._exit(1)


def _work(chunk: Chunk) -> ChunkResult:
    return do_chunk(chunk, _encoder, _place)
