"""Work on the parts of a stream by a few threads at once, results in the stream's order; what waits in between is bounded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MOST_THREADS = 4
Part = TypeVar("Part")
Result = TypeVar("Result")


def in_order(parts: Iterable[Part], work: Callable[[Part], Result]) -> Iterator[Result]:
    """`work` of each part. It should spend its time in libraries that let other threads run, as polars does."""
    threads = min(os.cpu_count() or 1, MOST_THREADS)
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="import") as pool:
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
