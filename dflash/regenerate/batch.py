"""Many answers at a time: continuous batching over slots, within a budget of rows x places.

Requests wait sorted, longest first. Whenever an eighth of the slots is free, the next ones are run as prompts (all tokens but the last) and
take those slots; from then on every step adds a token to every row. A row leaves when it writes an end token or meets its limit. How
many slots there are follows from the longest row in sight: fewer and longer ones, or more and shorter ones.

Prompts are padded on the right, which a causal model can't see; a model with states sees padding, so there prompts of one length go
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dflash.regenerate.answers import Answer, Request
from dflash.regenerate.draws import draw, stream_of, uniforms
from dflash.regenerate.options import RegenerateOptions
from dflash.regenerate.slot_attention import in_groups, use_in
from dflash.regenerate.slots import SlotCache
from dflash.serving.cached_target import DecodingTarget

_PROMPT_TOKENS = 8_192  # of one forward pass of prompts, padding included
_LONGEST_PER_SHORTEST = 1.15  # of prompts that go together
_FREE_SHARE = 8  # one in so many slots is free before prompts are run
_PLACES = 32  # buffers hold a multiple of so many
_WORTH = 1.25  # so many times as many slots are worth a copy of the buffers


@dataclass
class _Row:
    """A request in its slot: what it has written, the token to be run next and its place."""

    request: Request
    token: int
    place: int
    stream: int
    written: list[int] = field(default_factory=list)


class BatchedTarget:
    """A target that answers many requests at once."""

    def __init__(self, target: DecodingTarget, options: RegenerateOptions, end_tokens: Iterable[int] = ()) -> None:
        """Wrap a loaded target whose layers all have slots (`SlotCache.holds`)."""
        self._model, self._device = target.model, target.device
        self._options = options
        self._ends = target.end_tokens | frozenset(end_tokens)
        config = target.model.config.get_text_config()
        self._cache = SlotCache(config)
        self._decoder = target.model.get_decoder()
        use_in(target.model)
        self._waiting: list[Request] = []
        self._rows: list[_Row | None] = []

    @property
    def wanted(self) -> int:
        """How many more requests would find something to do soon."""
        return max(0, 2 * self._options.max_rows - len(self._waiting) - self.running)

    @property
    def running(self) -> int:
        """Rows in slots."""
        return sum(row is not None for row in self._rows)

    def add(self, requests: Iterable[Request]) -> None:
        """Let requests wait for a slot."""
        self._waiting.extend(requests)
        self._waiting.sort(key=lambda request: request.need)  # the longest last, where it is taken from

    @torch.inference_mode()
    def collect(self) -> list[Answer]:
        """Work until at least one row is answered; none when there was nothing to do."""
        done: list[Answer] = []
        while not done and (self._waiting or self.running):
            self._admit()
            done = self._step()
        return done

    def close(self) -> None:
        """Nothing to let go of."""

    def _admit(self) -> None:
        """Fill free slots with what waits."""
        running = self.running
        if not self._waiting:
            self._close_ranks(running)
            return
        slots = self._sized(running)
        free = slots - running
        if free < max(1, slots // _FREE_SHARE) and running:
            return
        admitted = [self._waiting.pop() for _ in range(min(free, len(self._waiting)))]
        self._rows.extend([None] * (min(slots, running + len(admitted)) - len(self._rows)))
        holes = iter([place for place, row in enumerate(self._rows) if row is None])
        for group in _alike(admitted, exact=self._cache.has_states):
            self._run_prompts(group, [next(holes) for _ in group])

    def _sized(self, running: int) -> int:
        """The slots there are to be, after buffers were made anew where that is needed or worth it."""
        needs = [row.request.need for row in self._rows if row is not None] + [self._waiting[-1].need]
        places = -(-max(needs) // _PLACES) * _PLACES
        slots = max(1, min(self._options.max_rows, self._options.token_budget // places))
        cache = self._cache
        if places <= cache.places and slots < _WORTH * cache.slots:
            return cache.slots
        if slots < running:  # the long one waits until there is room for it
            return running
        self._close_ranks(running)
        if cache.slots:
            cache.resize(slots, places, cache, keep=running)
        else:
            probe = cache.for_prompts()
            self._decoder(input_ids=torch.zeros(1, 2, dtype=torch.long, device=self._device), cache=probe, use_cache=True)
            cache.step.rows = cache.step.rows.to(self._device)
            cache.resize(slots, places, probe)
        cache.step.rows = cache.step.rows[:0]  # so that views of the new buffers are shown
        return slots

    def _close_ranks(self, running: int) -> None:
        """Move the last rows into the holes, so that rows 0 .. running - 1 are the running ones."""
        holes = [place for place in range(min(running, len(self._rows))) if self._rows[place] is None]
        if holes:
            last = [place for place in range(running, len(self._rows)) if self._rows[place] is not None]
            self._cache.move(last, holes)
            for hole, place in zip(holes, last, strict=True):
                self._rows[hole] = self._rows[place]
        del self._rows[running:]

    def _run_prompts(self, requests: list[Request], slots: list[int]) -> None:
        """Run all tokens of the prompts but the last, and seat the rows."""
        prompts = [request.prompt[:-1] for request in requests]
        longest = max(map(len, prompts))
        run = self._cache.for_prompts()
        # Prompts of one token leave nothing to run; a pad is run in their place, because states have to be cleared.
        padded = np.zeros((len(prompts), max(1, longest)), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = prompt
        self._decoder(input_ids=torch.from_numpy(padded).to(self._device), cache=run, use_cache=True)
        if not longest:
            self._cache.clear_states(run)
        self._cache.put(run, slots)
        for slot, request in zip(slots, requests, strict=True):
            stream = stream_of(self._options.seed, request.chat, request.turn)
            self._rows[slot] = _Row(request, request.prompt[-1], len(request.prompt) - 1, stream)

    def _step(self) -> list[Answer]:
        """One token for every row."""
        if not self._rows:
            return []
        places = [0 if row is None else row.place for row in self._rows]
        chosen = self._choose(self._forward(places)).tolist()
        done = []
        for slot, row in enumerate(self._rows):
            if row is None:
                continue
            token = chosen[slot]
            ended = token in self._ends
            if not ended:
                row.written.append(token)
            row.token, row.place = token, row.place + 1
            if ended or len(row.written) == row.request.limit:
                done.append(_answer(row, token if ended else None))
                self._rows[slot] = None
        return done

    def _forward(self, places: list[int]) -> Tensor:
        """Logits after each row's newest token, [rows, vocabulary]."""
        longest = max(places) + 1
        tokens = torch.tensor([[0 if row is None else row.token] for row in self._rows], device=self._device)
        where = torch.tensor(places, device=self._device)
        self._cache.begin(where, longest)
        masks = {window: self._mask(where, longest, window) for window in self._cache.windows}
        mask = next(iter(masks.values())) if len(masks) == 1 else _by_kind(masks)
        with in_groups(places):
            out = self._model(input_ids=tokens, position_ids=where[:, None], attention_mask=mask, cache=self._cache, use_cache=True)
        logits: Tensor = out.logits[:, -1]
        return logits

    def _mask(self, places: Tensor, longest: int, window: int | None) -> Tensor:
        """Added to scores, [rows, 1, 1, longest]: 0 where a row may look, the lowest number elsewhere."""
        every = torch.arange(longest, device=self._device)
        hidden = every[None, :] > places[:, None]
        if window is not None:
            hidden |= every[None, :] <= places[:, None] - window
        dtype = self._model.dtype
        return torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill_(hidden, torch.finfo(dtype).min)[
            :, None, None
        ]

    def _choose(self, logits: Tensor) -> Tensor:
        if not self._options.temperature:
            return logits.argmax(-1)
        streams = np.array([0 if row is None else row.stream for row in self._rows], dtype=np.uint64)
        places = np.array([0 if row is None else len(row.written) for row in self._rows], dtype=np.uint64)
        return draw(logits, uniforms(streams, places), self._options.temperature, self._options.top_p)


def _by_kind(masks: dict[int | None, Tensor]) -> dict[str, Tensor | None]:
    """Masks as models of several layer kinds take them."""
    named: dict[str, Tensor | None] = {
        "full_attention" if window is None else "sliding_attention": mask for window, mask in masks.items()
    }
    return {**named, "linear_attention": None}


def _answer(row: _Row, end: int | None) -> Answer:
    request = row.request
    return Answer(
        request.chat,
        request.turn,
        tokens=len(row.written) + (end is not None),
        finish="limit" if end is None else "stop",
        ids=row.written,
        end=end,
    )


def _alike(requests: list[Request], *, exact: bool) -> Iterator[list[Request]]:
    """Requests, sorted by length, in groups to be run together."""
    group: list[Request] = []
    for request in sorted(requests, key=lambda request: len(request.prompt)):
        length = len(request.prompt)
        shortest = len(group[0].prompt) if group else length
        unlike = length != shortest if exact else length > shortest * _LONGEST_PER_SHORTEST + 8
        if group and (unlike or (len(group) + 1) * length > _PROMPT_TOKENS):
            yield group
            group = []
        group.append(request)
    if group:
        yield group
