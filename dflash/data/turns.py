"""Which characters of a rendered chat are the assistant's, for templates that do not mark them.

An assistant turn is the role header, then what the assistant says, then the token that ends the turn. What it says and the token
that ends it are supervised, the header is not. A think block that the template writes, even an empty one, comes after the header:
it is the assistant's.

Templates rewrite what they are given (they trim it, move the system text, drop the thinking of earlier turns), so turns are not
found by searching. They are found by marks:

1. The conversation is rendered a second time with a private-use character, another one for each message, behind the last letter
   of each assistant message and of the message before it. Taken out again, they must leave the first text exactly, in order, each
   once; if not, the row is rejected. So the marks say where those contents end in the text really rendered.
2. Between the end of the message before and the start of the answer stand that message's own ending and the role header. What
   they are is learned once from a four-turn probe: the text there is compared in an early turn, in the last turn, and after the
   header that `add_generation_prompt` writes. What all have in common, up to a token boundary, is the header. (An early turn has
   no think block where the last has an empty one; a prompt may open a think block that the turn does not.)
3. In a row, that text must stand, letter by letter, behind the mark of the message before: the span starts where it ends. Behind
   the mark of the answer must stand, after white space, one of the end-of-turn tokens seen in the probe: the span ends behind it.
   A template that writes no such token ends the span with the content.
4. A turn that calls tools is marked behind the name of each function instead, since templates write calls behind the content or in
   its place. Each call must be written; the span ends behind the first end of turn after the last. A null content is tried as empty
   text first, then as null, because templates differ in which of the two they understand.

Anything else is rejected: a row is right to the character or not there at all. The price is a second rendering, a tenth of the
time of tokenising.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from dflash.data.conversation import Conversation
from dflash.data.losses import CALLS_UNWRITTEN, RowRejected, as_json
from dflash.data.marks import ASIDE, FIRST_MARK, found_marks, free_marks, with_mark, with_marked_calls, with_messages
from dflash.data.template import ChatTemplate, Span, Tools
from dflash.data.turn_order import Message

_ID = "\ue000"  # private use


@dataclass(frozen=True)
class TurnRule:
    """How assistant turns are written behind a message of one role.

    Attributes:
        opening: the text from the end of the message before to the end of the role header; `_ID` in it stands for the id of the call
            that the message before answers.
        ends: the texts that end a turn; an empty one when some turns have none.
    """

    opening: str
    ends: tuple[str, ...]

    def opens(self, before: Message) -> re.Pattern[str]:
        """The opening behind this message, and what white space it ends with (escaped, where a tool's answer is written as JSON)."""
        return _opens(self.opening.replace(_ID, str(before.get("tool_call_id", ""))))

    @cached_property
    def closes(self) -> re.Pattern[str]:
        """White space, then the end of turn as group 1."""
        return re.compile(r"\s*(" + "|".join(map(re.escape, self.ends)) + ")")


@lru_cache(maxsize=64)
def _opens(opening: str) -> re.Pattern[str]:
    return re.compile(r"(?:\s|\\[nrt])*?" + re.escape(opening))


class TurnFinder:
    """Finds the assistant's spans in one template's renderings."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._rules: dict[tuple[str, bool], TurnRule | RowRejected] = {}

    def spans(self, row: Conversation, *, last_only: bool) -> tuple[str, list[Span]]:
        """The rendered text and the assistant's spans in it, in order.

        Raises:
            RowRejected: the template refuses the row, or rewrites it in a way that can't be followed.
        """
        messages = row.messages
        turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        around = {number for turn in turns for number in (turn - 1, turn)}
        if any("tool_calls" in messages[turn] for turn in turns):
            around = set(range(turns[0] - 1, len(messages)))
        text, ends = self._content_ends(messages, around, row.tools)
        wanted = turns[-1:] if last_only else turns
        return text, [self._span(text, messages, turn, ends) for turn in wanted]

    def settled(self, row: Conversation) -> Conversation:
        """A row as the template understands it: every call written, whatever it wants in the place of a content that is none.

        Raises:
            RowRejected: the template does not write the calls, or refuses the row.
        """
        callers = [number for number, message in enumerate(row.messages) if "tool_calls" in message]
        if not callers:
            return row
        null = [{**m, "content": None} if "tool_calls" in m and not m["content"].strip() else m for m in row.messages]
        reason: RowRejected | None = None
        for messages in (row.messages, null):
            try:
                self._content_ends(messages, set(callers), row.tools)
            except RowRejected as fault:
                reason = reason or fault
            else:
                return with_messages(row, messages)
        raise reason or RowRejected(CALLS_UNWRITTEN)

    def rule(self, before: str, *, by_id: bool = False) -> TurnRule:
        """The rule for assistant turns behind a message of role `before`, learned at first use.

        Args:
            before: the role.
            by_id: whether that message, a tool's, names the call it answers by an id.

        Raises:
            RowRejected: the template refuses the probe, or writes turns in no way that can be told apart.
        """
        if (before, by_id) not in self._rules:
            self._rules[before, by_id] = self._learn(before, by_id)
        known = self._rules[before, by_id]
        if isinstance(known, RowRejected):
            raise known
        return known

    def _span(self, text: str, messages: Sequence[Message], turn: int, ends: dict[int, int]) -> Span:
        before = messages[turn - 1]
        rule = self.rule(before["role"], by_id="tool_call_id" in before)
        opening = rule.opens(before).match(text, ends[turn - 1])
        if opening is None or opening.end() > ends[turn]:
            raise RowRejected(ASIDE, f"message {turn + 1} does not stand behind the header {rule.opening!r}")
        if "tool_calls" in messages[turn]:
            return opening.end(), self._end_of_calls(text, messages, turn, ends, rule)
        closing = rule.closes.match(text, ends[turn])
        if closing is None:
            raise RowRejected(ASIDE, f"message {turn + 1} is not followed by an end of turn ({' or '.join(rule.ends)})")
        return opening.end(), closing.end() if closing.group(1) else ends[turn]

    def _end_of_calls(self, text: str, messages: Sequence[Message], turn: int, ends: dict[int, int], rule: TurnRule) -> int:
        said = as_json(messages[turn]["tool_calls"])
        found = [place + len(end) for end in rule.ends if end and (place := text.find(end, ends[turn])) >= 0]
        if not found or any(end in said for end in rule.ends) or min(found) > ends.get(turn + 1, len(text)):
            raise RowRejected(ASIDE, f"the tool calls of message {turn + 1} are not followed by an end of turn")
        return min(found)

    def _content_ends(self, messages: Sequence[Message], wanted: set[int], tools: Tools = None) -> tuple[str, dict[int, int]]:
        """The rendered text, and for each wanted message the place behind its last letter (the name of its last call, if it calls)."""
        text = self._template.render(messages, tools)
        owners = [i for i in sorted(wanted) for _ in messages[i].get("tool_calls", (None,))]
        marks = free_marks(text, len(owners))
        given = list(messages)
        for number in sorted(wanted):
            message, first = messages[number], owners.index(number)
            if "tool_calls" in message:
                given[number] = with_marked_calls(message, marks[first : first + owners.count(number)])
            else:
                given[number] = {**message, "content": with_mark(message["content"], marks[first])}
        found = found_marks(text, self._template.render(given, tools), marks)
        if found is None or len(found) < len(owners):
            lost = sorted({owners[place] for place in range(len(owners)) if found is not None and place not in found})
            if any("tool_calls" in messages[number] for number in lost):
                raise RowRejected(CALLS_UNWRITTEN, f"message {lost[0] + 1} calls a tool")
            raise RowRejected(ASIDE, "the template changes, moves or leaves out the content of a message")
        return text, {owners[place]: position for place, position in found.items()}

    def _learn(self, before: str, by_id: bool) -> TurnRule | RowRejected:
        """From the first probe that the template takes: it may refuse the answer of a tool nobody called, or not know of calls."""
        probes = [_probe(before)] + ([_probe_with_calls()] if before == "tool" else [])
        reason: RowRejected | None = None
        for probe in reversed(probes) if by_id else probes:
            try:
                return self._learn_from(before, probe)
            except RowRejected as fault:
                reason = reason or fault
        return reason or RowRejected(ASIDE)

    def _learn_from(self, before: str, probe: list[Message]) -> TurnRule:
        text, ends = self._content_ends(probe, set(range(len(probe))))
        pairs = [(probe[turn - 1]["role"], probe[turn]["role"]) for turn in range(1, len(probe))]
        turns = [turn for turn, pair in enumerate(pairs, 1) if pair == (before, "assistant")]
        between, behind = [], []
        for turn in turns:
            opened, said, _ = text[ends[turn - 1] : ends[turn]].rpartition(probe[turn]["content"])
            if not said:
                raise RowRejected(ASIDE, "the template changes the content of a message")
            between.append(_without_id(opened, probe[turn - 1]))
            behind.append(text[ends[turn] : ends.get(turn + 1)].lstrip())
        asked, unasked = (_without_id(self._behind_last(probe[:-1], ask=ask), probe[-2]) for ask in (True, False))
        return TurnRule(self._opening(between, asked, unasked), self._ends(behind))

    def _behind_last(self, messages: Sequence[Message], *, ask: bool) -> str:
        """What the template writes behind the last message."""
        last = {**messages[-1], "content": with_mark(messages[-1]["content"], FIRST_MARK)}
        head, mark, tail = self._template.render([*messages[:-1], last], ask=ask).partition(FIRST_MARK)
        if not mark or head + tail != self._template.render(messages, ask=ask):
            raise RowRejected(ASIDE, f"the template changes or leaves out the content of message {len(messages)}")
        return tail

    def _opening(self, between: list[str], asked: str, unasked: str) -> str:
        """The common start of all ways a turn is opened, cut back to a token boundary."""
        common = _common_start(between)
        no_prompt_but_header = asked == unasked and common[len(asked) :].strip()
        variants = between if no_prompt_but_header else [*between, asked]
        opening = _common_start(variants)
        opening = opening[: min(self._boundary(variant, len(opening)) for variant in variants)]
        whole = opening.rstrip() in {variant.rstrip() for variant in variants}
        if not whole and any(token in text[len(opening) :] for text in variants for token in self._template.control_tokens):
            raise RowRejected(ASIDE, f"the prompt {asked!r} and the turn {between[-1]!r} are opened differently")
        return opening

    def _boundary(self, text: str, limit: int) -> int:
        """The last token boundary of `text` at or before `limit`."""
        if limit >= len(text):
            return limit
        starts = [start for start, _ in self._template.backend.encode(text, add_special_tokens=False).offsets]
        return max((start for start in starts if start <= limit), default=0)

    def _ends(self, behind: list[str]) -> tuple[str, ...]:
        """The added tokens that stand first behind the answers of the probe, the longest first."""
        found = {next((token for token in self._template.added_tokens if text.startswith(token)), "") for text in behind}
        return tuple(sorted(found, key=lambda token: (-len(token), token)))


def _probe(before: str) -> list[Message]:
    """Two rounds in which the assistant speaks behind `before`, early and last."""
    asks = [{"role": "user", "content": word} for word in ("north", "south")]
    says = [{"role": "assistant", "content": word} for word in ("quail", "zebra", "quince", "zinnia")]
    if before == "user":
        return [asks[0], says[0], asks[1], says[1]]
    tools = [{"role": "tool", "content": word} for word in ("east", "west")]
    return [asks[0], says[0], tools[0], says[1], asks[1], says[2], tools[1], says[3]]


def _without_id(text: str, message: Message) -> str:
    return text.replace(message["tool_call_id"], _ID) if "tool_call_id" in message else text


def _probe_with_calls() -> list[Message]:
    """The same two rounds, the tool called as a template may demand it."""
    probe = _probe("tool")
    for number, name in ((1, "callqrstu"), (5, "callvwxyz")):
        call = {"id": name, "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
        probe[number] = {**probe[number], "content": "", "tool_calls": [call]}
        probe[number + 1] = {**probe[number + 1], "tool_call_id": name, "name": "look"}
    return probe


def _common_start(texts: Sequence[str]) -> str:
    shortest, longest = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(shortest, longest, strict=False)) if a != b), None)
    return shortest[: min(len(shortest), len(longest)) if same is None else same]
