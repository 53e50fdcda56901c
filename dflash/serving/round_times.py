"""Where the seconds of decoding go, by part, without making the device wait.

On a CPU the clock is read between the parts. On a GPU work is only queued at that moment; there an event is put into the queue instead, and
the events are read once, at the end. The time between two laps goes to the part that ends there, so the parts add up to all of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, get_args

import torch

Part = Literal["prompt", "context", "block", "head", "target", "verdict", "rest"]
PARTS: tuple[Part, ...] = get_args(Part)
MEANING: dict[Part, str] = {
    "prompt": "the target's pass over the prompt",
    "context": "the drafter's keys and values of the tokens that were kept",
    "block": "the drafter's pass over its block",
    "head": "its vocabulary head, and the draw of its tokens",
    "target": "the target's pass that verifies",
    "verdict": "what is kept, and the transfer of it to the host",
    "rest": "bookkeeping",
}


class Stopwatch:
    """Laps of one answer."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._parts: list[Part] = []
        self._marks: list[float | torch.cuda.Event] = [self._mark()]

    def lap(self, part: Part) -> None:
        """What passed since the last lap goes to `part`."""
        self._parts.append(part)
        self._marks.append(self._mark())

    def seconds(self) -> dict[Part, float]:
        """Seconds by part, so far."""
        if self._on_gpu:
            torch.cuda.synchronize()
        total = dict.fromkeys(PARTS, 0.0)
        for index, part in enumerate(self._parts):
            total[part] += _between(self._marks[index], self._marks[index + 1])
        return total

    def _mark(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def added(times: Iterable[dict[Part, float]]) -> dict[Part, float]:
    """Seconds by part of several answers."""
    total = dict.fromkeys(PARTS, 0.0)
    for each in times:
        for part, seconds in each.items():
            total[part] += seconds
    return total


def _between(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    assert isinstance(start, torch.cuda.Event)
    assert isinstance(end, torch.cuda.Event)
    return float(start.elapsed_time(end)) / 1000
