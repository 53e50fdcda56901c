"""The assistant's thinking taken out of what is supervised, for those who train on answers alone.

Where an answer begins is seen by a mark in front of its first letter: behind the thinking that stands in the content
(`<think>...</think>`), or at the content's start when the thinking came apart from it. All that the template writes before the mark in
that turn, an empty think block too, is then only read. A turn that thinks and calls a tool without a word between is marked behind its
last thought, and the tag that closes the thinking is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dflash.data.conversation import Conversation
from dflash.data.losses import RowRejected
from dflash.data.marks import ASIDE, found_marks, free_marks, with_mark
from dflash.data.template import ChatTemplate, Span
from dflash.data.turn_order import Message

_THOUGHT = re.compile(r"\s*<(think|thinking|seed:think)>(.*?)</\1>", re.DOTALL)
_CLOSING = re.compile(r"\s*(?:</(?:think|thinking|seed:think)>|\[/THINK\])\s*")


def without_thinking(row: Conversation, template: ChatTemplate, text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans, each begun where the answer in it begins.

    Args:
        row: the conversation, as the template understands it.
        template: its template.
        text: the conversation, rendered.
        spans: the assistant's, ascending.

    Raises:
        RowRejected: the template rewrites an answer in a way that can't be followed.
    """
    marks = free_marks(text, len(row.messages))
    given = [_marked(m, marks[i]) if m["role"] == "assistant" else m for i, m in enumerate(row.messages)]
    found = found_marks(text, template.render(given, row.tools), marks)
    if found is None:
        raise RowRejected(ASIDE, "where the answer begins behind the thinking can't be told")
    begins = [_past_closing(text, place) for place in found.values()]
    kept = []
    for start, end in spans:
        inside = [place for place in begins if start <= place < end]
        kept.append((inside[-1] if inside else start, end))
    return kept


def _marked(message: Message, mark: str) -> Message:
    content = message["content"] or ""
    thought = _THOUGHT.match(content)
    answer = content[thought.end() :] if thought else content
    if answer.strip():
        letters = answer.lstrip()
        return {**message, "content": content[: len(content) - len(letters)] + mark + letters}
    if thought:
        inner = with_mark(thought.group(2), mark)
        return {**message, "content": content[: thought.start(2)] + inner + content[thought.end(2) :]}
    if message.get("reasoning_content"):
        return {**message, "reasoning_content": with_mark(message["reasoning_content"], mark)}
    return message


def _past_closing(text: str, place: int) -> int:
    closing = _CLOSING.match(text, place)
    return closing.end() if closing else place
