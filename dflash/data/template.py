"""A chat template: text out of messages, and the character spans of it that are the assistant's.

Templates with `{% generation %}` markers say themselves what is the assistant's; transformers' own renderer reports those spans.
For templates without, the rule of `turns` is used. Either way the spans are of the text really rendered, and the text is the one
that `tokenizer.apply_chat_template` gives.

Rows whose text holds one of the template's own control tokens (`<|im_end|>` and the like) are rejected: tokenised, they would be
turn boundaries that nobody spoke.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from dflash.data.losses import RowRejected, as_json
from dflash.data.tokenizer import TextTokenizer
from dflash.data.turn_order import Message
from dflash.errors import RefusedInput

Span = tuple[int, int]
Tools = Sequence[Mapping[str, Any]] | None

_MARKER = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_PLAIN: Sequence[Message] = (
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "four"},
)


class ChatTemplate:
    """One compiled template with the special tokens and variables it is rendered with."""

    def __init__(self, source: str, tokenizer: TextTokenizer, backend: Tokenizer, args: Mapping[str, Any]) -> None:
        """Compile `source`.

        Raises:
            RefusedInput: it is not a Jinja template.
        """
        from jinja2.exceptions import TemplateSyntaxError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            render_jinja_template(conversations=[], chat_template=source)
        except TemplateSyntaxError as error:
            raise RefusedInput(
                f"{tokenizer.name}: its chat template is not valid (line {error.lineno}: {error.message})"
            ) from error
        self.source = source
        self.marked = _MARKER.search(source) is not None
        self.backend = backend
        self._render = render_jinja_template
        self._eos = tokenizer.special_tokens.get("eos_token")
        self._variables = {**tokenizer.special_tokens, **args}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the source."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def render(self, messages: Sequence[Message], tools: Tools = None, *, ask: bool = False) -> str:
        """The text of a conversation; with `ask`, followed by the header that asks the assistant to speak.

        Raises:
            RowRejected: the template refuses these messages.
        """
        return self._run(messages, tools, ask, marked=False)[0]

    def render_with_marks(self, messages: Sequence[Message], tools: Tools = None) -> tuple[str, list[Span]]:
        """The text, and the spans between the template's generation markers."""
        text, spans = self._run(messages, tools, False, marked=True)
        return text, [(start, end) for start, end in spans if end > start]

    def _run(self, messages: Sequence[Message], tools: Tools, ask: bool, *, marked: bool) -> tuple[str, list[Span]]:
        try:
            texts, spans = self._render(
                conversations=[list(messages)],
                tools=tools,
                chat_template=self.source,
                return_assistant_tokens_mask=marked,
                add_generation_prompt=ask,
                **self._variables,
            )
        except Exception as error:  # a template is a program: it may raise anything, on purpose or not
            first_line = str(error).strip().split("\n", 1)[0]
            raise RowRejected("refused by the template", first_line or type(error).__name__) from error
        return texts[0], spans[0] if marked else []

    @cached_property
    def added_tokens(self) -> dict[str, bool]:
        """Text of each added token, and whether it is a special one; longest first."""
        tokens = self.backend.get_added_tokens_decoder().values()
        return {token.content: token.special for token in sorted(tokens, key=lambda token: (-len(token.content), token.content))}

    @cached_property
    def control_tokens(self) -> frozenset[str]:
        """The special tokens this template writes between turns, and the end of text."""
        try:
            plain = self.render(_PLAIN)
        except RowRejected:
            plain = self.source
        control = {token for token, special in self.added_tokens.items() if special and token in plain}
        return frozenset(control | ({self._eos} if self._eos else set()))

    @cached_property
    def writes_tools(self) -> bool:
        """Whether the tools that a row offers stand in the text."""
        tool = {"type": "function", "function": {"name": "look", "description": "looks", "parameters": {"type": "object"}}}
        try:
            return self.render(_PLAIN, [tool]) != self.render(_PLAIN)
        except RowRejected:
            return False

    @cached_property
    def writes_thinking(self) -> bool:
        """Whether the thinking of the last answer stands in the text, when it comes apart from the answer."""
        try:
            return "twelve" in self.render([*_PLAIN[:-1], {**_PLAIN[-1], "reasoning_content": "twelve"}])
        except RowRejected:
            return False

    def refuse_control_tokens(self, messages: Sequence[Message], tools: Tools = None) -> None:
        """Reject a conversation in which somebody speaks a control token.

        Raises:
            RowRejected: the message and the token, named.
        """
        for number, message in enumerate(messages, 1):
            calls = message.get("tool_calls")
            for text in (message["content"], message.get("reasoning_content", ""), as_json(calls) if calls else ""):
                self._refuse_in(text, f"message {number} ({message['role']})")
        if tools:
            self._refuse_in(as_json(tools), "the list of tools")

    def _refuse_in(self, text: str, where: str) -> None:
        spoken = next((token for token in self._control_in_order if token in text), None)
        if spoken is not None:
            raise RowRejected("control token in the text", f"{where} holds {spoken}")

    @cached_property
    def _control_in_order(self) -> list[str]:
        return sorted(self.control_tokens)
