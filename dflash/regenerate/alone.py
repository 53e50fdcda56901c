"""One answer after another, each in a cache of the library's own: for targets whose layers have no slots here.

Such are layers that compress, share or index their keys, and rotary embeddings whose base follows the longest row of a batch (`dynamic`,
`longrope`): side by side, rows would change each other's answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dflash.regenerate.answers import Answer, Request
from dflash.regenerate.draws import draw, stream_of, uniforms
from dflash.regenerate.options import RegenerateOptions
from dflash.serving.cached_target import DecodingTarget

_WAITING = 64


class TargetAlone:
    """A target that answers one request at a time."""

    def __init__(self, target: DecodingTarget, options: RegenerateOptions, end_tokens: Iterable[int] = ()) -> None:
        self._target, self._options = target, options
        self._ends = target.end_tokens | frozenset(end_tokens)
        self._waiting: deque[Request] = deque()

    @property
    def wanted(self) -> int:
        """How many more requests would find something to do soon."""
        return _WAITING - len(self._waiting)

    def add(self, requests: Iterable[Request]) -> None:
        """Let requests wait."""
        self._waiting.extend(requests)

    @torch.inference_mode()
    def collect(self) -> list[Answer]:
        """Answer the next request; none when there is none."""
        return [self._answer(self._waiting.popleft())] if self._waiting else []

    def close(self) -> None:
        """Nothing to let go of."""

    def _answer(self, request: Request) -> Answer:
        sequence = self._target.sequence()
        logits = sequence.begin(torch.tensor(request.prompt, device=self._target.device)).logits
        stream = stream_of(self._options.seed, request.chat, request.turn)
        written: list[int] = []
        while True:
            token = int(self._choose(logits, stream, len(written)))
            if token in self._ends:
                return Answer(request.chat, request.turn, len(written) + 1, "stop", ids=written, end=token)
            written.append(token)
            if len(written) == request.limit:
                return Answer(request.chat, request.turn, len(written), "limit", ids=written)
            logits = sequence.read(torch.tensor([token], device=self._target.device)).logits
            sequence.keep(1)

    def _choose(self, logits: Tensor, stream: int, place: int) -> Tensor:
        if not self._options.temperature:
            return logits.argmax(-1)
        number = uniforms(np.array([stream], dtype=np.uint64), np.array([place], dtype=np.uint64))
        return draw(logits, number, self._options.temperature, self._options.top_p)


def rows_change_each_other(config: Any) -> bool:
    """Whether the rotary embedding of a model depends on the longest row of its batch."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [part.get("rope_type") for part in (rope, *(each for each in rope.values() if isinstance(each, dict)))]
    return any(kind in ("dynamic", "longrope") for kind in kinds)
