"""A target's own form of a chat: messages to the prompt it reads, the tokens it writes to text, and back again to see that they return.

A row *returns* when `dflash prepare`, given its text and this target's tokenizer, supervises exactly the tokens the target wrote.
Most do. Those that don't were written in a way the tokenizer would not have cut the text, or the template trims or rewrites them.

A template that asks may open what a turn does not show (a think block, say): what it opens is then the beginning of the answer's text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash.data.conversation import Conversation, Message, RowRejected
from dflash.data.encode import RowEncoder
from dflash.data.options import PrepareOptions
from dflash.data.template import ChatTemplate
from dflash.data.tokenizer import TextTokenizer
from dflash.errors import RefusedInput

_HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4  # bytes, and so tokens, of one character at most


class ChatFormat:
    """Renders and reads with one tokenizer and its chat template.

    Attributes:
        template: the template.
        end_tokens: ids of the tokens that end a turn in it, as far as they are single tokens.
    """

    def __init__(self, tokenizer: TextTokenizer, chat_template: str | None = None) -> None:
        """Make it.

        Raises:
            RefusedInput: there is no chat template, or it can't be used.
        """
        # A row may be as long as it likes here: `prepare` decides later what it keeps.
        self._encoder = RowEncoder(tokenizer, PrepareOptions(chat_template=chat_template, max_length=2**31))
        if self._encoder.template is None or self._encoder.turns is None:
            raise RefusedInput(
                f"target {tokenizer.name}: its tokenizer has no chat template, so it can't be asked; give one with --chat-template"
            )
        self.template: ChatTemplate = self._encoder.template
        self._backend = tokenizer.backend()
        self._opened, ends = self._learned()
        ids = (self._backend.token_to_id(end.strip()) for end in ends)
        self.end_tokens = frozenset(token for token in ids if token is not None)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of these messages and the header that asks the assistant to speak.

        Raises:
            RowRejected: the template refuses them, or somebody speaks a control token.
        """
        self.template.refuse_control_tokens(messages)
        text = self.template.render(messages, ask=True)
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def text(self, ids: Sequence[int]) -> str:
        """The text of an answer's tokens, with what the template opened for it."""
        return self._opened + str(self._backend.decode(list(ids), skip_special_tokens=False))

    def whole_characters(self, ids: list[int]) -> list[int]:
        """The ids without the beginning of a character at their end, which an answer cut at a limit may have."""
        for dropped in range(_LONGEST_CHARACTER):
            kept = ids[: len(ids) - dropped]
            if not self._backend.decode(kept, skip_special_tokens=False).endswith(_HALF_CHARACTER):
                return kept
        return ids

    def returns(self, messages: list[Message], written: Sequence[Sequence[int]], ended: Sequence[int | None]) -> bool:
        """Whether the supervised tokens of these messages are the ones written.

        Args:
            messages: a whole conversation.
            written: for each assistant turn, the ids of its answer without the end token.
            ended: for each, the end token; None where the answer met its limit: the template then adds an end that nobody wrote.

        Raises:
            RowRejected: the row can't be prepared at all.
        """
        row = self._encoder.encode(Conversation(messages))
        supervised = row.tokens[row.loss_mask]
        opened = self._backend.encode(self._opened, add_special_tokens=False).ids if self._opened else []
        place = 0
        for ids, end in zip(written, ended, strict=True):
            expected = np.asarray([*opened, *ids, *([] if end is None else [end])], dtype=np.int32)
            if not np.array_equal(supervised[place : place + len(expected)], expected):
                return False
            place += len(expected)
            if end is None and place < len(supervised) and int(supervised[place]) in self.end_tokens:
                place += 1
        return place == len(supervised)

    def _learned(self) -> tuple[str, tuple[str, ...]]:
        """What the asking template opens behind the role header, and the texts that end a turn."""
        assert self._encoder.turns is not None
        question = "one"
        try:
            rule = self._encoder.turns.rule("user")
            asked = self.template.render([{"role": "user", "content": question}], ask=True)
        except RowRejected:
            return "", ()
        header = rule.opens({"role": "user", "content": question}).match(asked, asked.rindex(question) + len(question))
        return ("" if header is None else asked[header.end() :]), rule.ends
