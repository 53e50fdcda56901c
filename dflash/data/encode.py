"""One row of text to token ids and loss mask.

The text is tokenised once, whole. A token is supervised when it lies in a supervised span of characters. One that straddles the
edge of a span counts as inside if only white space of it lies outside: end-of-turn tokens that swallow the newline behind them,
words that carry the space before them. If letters of the header are in it, it isn't: the assistant would never be asked to say
it.

A row is kept only if it has two supervised tokens side by side, because a block of the drafter starts at a supervised token whose
successor is supervised too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dflash.data.conversation import Conversation, Document, Pretokenised, Row, parse_row
from dflash.data.losses import THINKING_UNWRITTEN, TOOLS_UNWRITTEN, Change, RowRejected, as_json
from dflash.data.options import PrepareOptions
from dflash.data.template import ChatTemplate, Span
from dflash.data.thinking import without_thinking
from dflash.data.tokenizer import TextTokenizer
from dflash.data.turns import TurnFinder


@dataclass(frozen=True)
class EncodedRow:
    """Token ids (int32), loss mask (bool) of the same length, and how many tokens were cut off to keep to the length limit."""

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    cut: int


class RowEncoder:
    """Tokenises rows with one tokenizer and one set of options."""

    def __init__(self, tokenizer: TextTokenizer, options: PrepareOptions) -> None:
        self._options = options
        self._vocab_size = tokenizer.vocab_size
        self._backend = tokenizer.backend()
        source = options.chat_template or tokenizer.chat_template
        self.template = ChatTemplate(source, tokenizer, self._backend, options.template_args) if source else None
        self.turns = TurnFinder(self.template) if self.template else None

    def parse(self, raw: object) -> Row:
        """A decoded row as what it is; see `parse_row`."""
        return parse_row(raw, odd_turns=self._options.odd_turns, parts=self._options.parts)

    def encode(self, row: Row) -> EncodedRow:
        """Tokens and loss mask of one row, within the length limit.

        Raises:
            RowRejected: the row can't be used; the reason says why.
        """
        if isinstance(row, Conversation):
            return self._fitted(*self._conversation(row))
        if isinstance(row, Document):
            return self._fitted(*self._document(row))
        return self._fitted(*_pretokenised(row, self._vocab_size))

    def spans(self, row: Conversation) -> tuple[str, list[Span]]:
        """The rendered text of a conversation and the character spans to supervise."""
        if self.template is None or self.turns is None:
            raise RowRejected("no chat template", "the tokenizer has none; give one, or pre-tokenised rows")
        self.template.refuse_control_tokens(row.messages, row.tools)
        row = self.turns.settled(row)
        text, spans = self._turns_of(row, self.template, self.turns)
        if self._options.reasoning == "context":
            spans = without_thinking(row, self.template, text, spans)
        return text, spans

    def _turns_of(self, row: Conversation, template: ChatTemplate, turns: TurnFinder) -> tuple[str, list[Span]]:
        last_only = self._options.loss_on == "last"
        if not template.marked:
            return turns.spans(row, last_only=last_only)
        text, spans = template.render_with_marks(row.messages, row.tools)
        spoken = sum(message["role"] == "assistant" for message in row.messages)
        if last_only and len(spans) != spoken:
            raise RowRejected("not followed through the template", f"it marks {len(spans)} spans for {spoken} assistant turns")
        return text, spans[-1:] if last_only else spans

    def changes(self, row: Row) -> list[Change]:
        """What was left out of a row that is kept: by `parse_row`, and by the template."""
        if not isinstance(row, Conversation) or self.template is None:
            return []
        changes = row.changes
        if row.tools and not self.template.writes_tools:
            changes = [*changes, Change(TOOLS_UNWRITTEN, text=as_json(row.tools))]
        thoughts = [message["reasoning_content"] for message in row.messages if "reasoning_content" in message]
        if thoughts and not self.template.writes_thinking:
            changes = [*changes, Change(THINKING_UNWRITTEN, text="\n".join(thoughts))]
        return changes

    def count_tokens(self, text: str) -> int:
        """Tokens of a text that is dropped; what is no text in it counts as one letter."""
        return len(self._backend.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)) if text else 0

    def _conversation(self, row: Conversation) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        text, spans = self.spans(row)
        encoding = self._backend.encode(text, add_special_tokens=False)
        return np.asarray(encoding.ids, dtype=np.int32), mask_of_spans(text, encoding.offsets, spans)

    def _document(self, row: Document) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        tokens = np.asarray(self._backend.encode(row.text).ids, dtype=np.int32)
        return tokens, np.arange(len(tokens)) > 0

    def _fitted(self, tokens: NDArray[np.int32], loss_mask: NDArray[np.bool_]) -> EncodedRow:
        limit = self._options.max_length
        over = len(tokens) > limit
        if over and self._options.over_long == "reject":
            raise RowRejected("over-long", f"{len(tokens)} tokens, the limit is {limit}")
        if not has_neighbours(loss_mask[:limit]):
            where = f" within the first {limit} tokens" if over else ""
            raise RowRejected("fewer than two supervised tokens", f"no two side by side{where}, of {len(tokens)} tokens in all")
        return EncodedRow(tokens[:limit], loss_mask[:limit], max(0, len(tokens) - limit))


def has_neighbours(loss_mask: NDArray[np.bool_]) -> bool:
    """Whether two neighbouring tokens are supervised, so that a block can start there."""
    return bool(np.any(loss_mask[:-1] & loss_mask[1:]))


def mask_of_spans(text: str, offsets: Sequence[tuple[int, int]], spans: Sequence[Span]) -> NDArray[np.bool_]:
    """Supervised tokens: bool [tokens].

    Args:
        text: what was tokenised.
        offsets: first character and one past the last, of each token; both ascend.
        spans: supervised characters, likewise, ascending and apart.
    """
    bounds = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    starts, ends = bounds[:, 0], bounds[:, 1]
    mask = np.zeros(len(bounds), dtype=np.bool_)
    for first, last in spans:
        inside = (starts < last) & (ends > first)
        for token in np.flatnonzero(inside & ((starts < first) | (ends > last))):
            outside = text[starts[token] : max(starts[token], first)] + text[min(ends[token], last) : ends[token]]
            inside[token] = not outside.strip()
        mask |= inside
    return mask


def _pretokenised(row: Pretokenised, vocab_size: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    ids = _integers(row.input_ids, "input_ids")
    if not len(ids):
        raise RowRejected("empty text", "input_ids is empty")
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        place = int(outside[0])
        raise RowRejected("token id outside the vocabulary", f"{ids[place]} at position {place}; the vocabulary has {vocab_size}")
    if row.loss_mask is None:
        return ids.astype(np.int32), np.arange(len(ids)) > 0
    mask = _integers(row.loss_mask, "loss_mask")
    if len(mask) != len(ids):
        raise RowRejected("loss mask of another length", f"{len(mask)} for {len(ids)} tokens")
    if np.any((mask != 0) & (mask != 1)):
        raise RowRejected("loss mask is not 0 and 1", f"it holds {mask[(mask != 0) & (mask != 1)][0]}")
    return ids.astype(np.int32), mask.astype(np.bool_)


def _integers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """A list of whole numbers as int64; numbers too big for it become -1, which no check lets pass."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, list):
        raise RowRejected("not token ids", f"{name} is not a list")
    allowed = {int, bool} if name == "loss_mask" else {int}
    for kind in set(map(type, values)) - allowed:
        place = next(i for i, value in enumerate(values) if type(value) is kind)
        what = "null" if values[place] is None else f"{str(values[place])[:40]!r}"
        raise RowRejected("null" if what == "null" else "not token ids", f"{name} holds {what} at position {place}")
    try:
        return np.asarray(values, dtype=np.int64)
    except OverflowError:
        return np.asarray([value if -1 <= value < 2**62 else -1 for value in values], dtype=np.int64)
