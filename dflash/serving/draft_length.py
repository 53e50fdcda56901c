"""How many tokens to draft in a round: as many as pay.

A token drafted costs time whether it is kept or not: the target verifies it, and the drafter's head scores it. On a GPU a pass over eight
tokens takes about as long as one over a single token, on a CPU it may take twice as long. So with S(k) the chance that drafted tokens
1 .. k are all kept, and T(d) the seconds of a round that drafts d,

    tokens a second of d = (1 + S(1) + ... + S(d)) / T(d),

and the d with the most is drafted; 0 is a round of plain decoding. Both sides are learnt while decoding, from the rounds themselves:

- S by slot: how often a token was kept whose predecessors were kept. Old rounds count less, so that a change of text is followed; a slot
  that was not drafted of late returns to the average of all slots, so that it is tried again.
- T by the tokens of the target's pass (the drafted ones, the newest, and those it has to read again), apart for rounds with and without a
  draft: the median of the latest few; between two known numbers on the straight line, beyond them as the nearest. The whole block, half
  of it and none are tried at first, and again when they were not for long.

The choice depends on earlier rounds only, so answers stay the target's: equal when greedy, and of its distribution when drawn. But it also
depends on the clock, and a drawn answer's random numbers depend on how many tokens were drafted; for a seed to give the same answer each
time, the length is fixed when drawing.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_MEMORY = 0.98  # weight of a round against the one after it
_PRIOR_ROUNDS = 2.0  # weight of the average of all slots in a slot's own estimate
_LATEST_ROUNDS = 7  # whose median is a time
_FIRST_RATE = 0.8  # chance of a kept token before anything is known: hopeful, so that drafting is tried
_TRIALS = 2  # of a length before it is judged: the first may pay for a first call
_STALE_ROUNDS = 256  # after as many a length is tried once more


class DraftLength:
    """Chooses each round's draft, and learns from it. One for all answers of a target and a drafter: what was learnt stays.

    Attributes:
        most: drafted tokens, at most: block_size - 1.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._reached = [0.0] * most
        self._kept = [0.0] * most
        self._drafting, self._plain = _Times(), _Times()
        self._rounds = 0
        self._due = dict.fromkeys((most, most // 2, 0), 0)  # the round from which on a length is to be tried
        self._trials = dict.fromkeys(self._due, 0)

    def choose(self, limit: int, reread: int = 0) -> int:
        """Tokens to draft, 0 .. min(limit, most), when the target's pass reads `reread` tokens again before the newest."""
        limit = min(limit, self.most)
        due = next((length for length, since in self._due.items() if length <= limit and since <= self._rounds), None)
        if due is not None:
            return due
        if not (self._drafting.known and self._plain.known):
            return limit
        rates, expected, chance = self._rates(), 1.0, 1.0
        best, best_rate = 0, 1 / self._plain.seconds(reread + 1)
        for length in range(1, limit + 1):
            chance *= rates[length - 1]
            expected += chance
            rate = expected / self._drafting.seconds(reread + 1 + length)
            if rate > best_rate:
                best, best_rate = length, rate
        return best

    def learn(self, drafted: int, accepted: int, seconds: float, reread: int = 0) -> None:
        """A round is over: what it drafted, what was kept of it, what it took, what its pass read again."""
        self._rounds += 1
        self._reached = [_MEMORY * weight for weight in self._reached]
        self._kept = [_MEMORY * weight for weight in self._kept]
        for slot in range(min(accepted + 1, drafted)):
            self._reached[slot] += 1
            self._kept[slot] += slot < accepted
        (self._drafting if drafted else self._plain).learn(reread + 1 + drafted, seconds)
        if drafted in self._due:
            self._trials[drafted] += 1
            if self._trials[drafted] >= _TRIALS:
                self._due[drafted] = self._rounds + _STALE_ROUNDS

    def _rates(self) -> list[float]:
        """For each slot, the chance that its token is kept when those before it are."""
        average = (sum(self._kept) + _FIRST_RATE) / (sum(self._reached) + 1)
        return [
            (kept + _PRIOR_ROUNDS * average) / (reached + _PRIOR_ROUNDS)
            for kept, reached in zip(self._kept, self._reached, strict=True)
        ]


class _Times:
    """Seconds of a round by the tokens of its pass."""

    def __init__(self) -> None:
        self.known: dict[int, deque[float]] = {}

    def learn(self, tokens: int, seconds: float) -> None:
        self.known.setdefault(tokens, deque(maxlen=_LATEST_ROUNDS)).append(seconds)

    def seconds(self, tokens: int) -> float:
        """The median of the latest, or what lies between the nearest known numbers of tokens."""
        below = max((each for each in self.known if each <= tokens), default=min(self.known))
        above = min((each for each in self.known if each >= tokens), default=max(self.known))
        low, high = median(self.known[below]), median(self.known[above])
        return low if above == below else low + (high - low) * (tokens - below) / (above - below)
