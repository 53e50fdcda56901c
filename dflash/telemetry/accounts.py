"""Accounts of time: what each worker did with its seconds, and how full each queue was.

A worker is in one state at a time, so its seconds sum to wall time by construction: `busy`, `starved` (no input), `blocked` (no
room for the result, or waiting for the others of an optimiser step), `copy` (handing over: elapsed minus busy), `evaluation`,
`checkpoint`, `compile`, `paused` (by the user). Counters only grow; a reader takes differences.

A queue keeps its depth integrated over time, so that mean depth = integral / seconds, and Little's law
(mean depth = rate x residence) can be checked by whoever reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

STATES = ("busy", "starved", "blocked", "copy", "evaluation", "checkpoint", "compile", "paused")


@dataclass
class WorkerAccount:
    """One worker's seconds by state, and what it got through."""

    name: str
    since: float
    state: str = "starved"
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STATES, 0.0))
    batches: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    length_squared: int = 0

    def enter(self, state: str, now: float) -> None:
        """Change state; the time since the last change goes to the state left."""
        self.seconds[self.state] += max(now - self.since, 0.0)
        self.since = max(now, self.since)
        self.state = state

    def finish(self, now: float, busy_seconds: float, as_state: str, extra_seconds: dict[str, float]) -> None:
        """Close a job: its elapsed time is what the worker reports as busy, what it reports otherwise, and copy for the rest."""
        elapsed = max(now - self.since, 0.0)
        left = elapsed
        for state, spent in [*extra_seconds.items(), (as_state, busy_seconds)]:
            part = min(spent, left)
            self.seconds[state] += part
            left -= part
        self.seconds["copy"] += left
        self.since = max(now, self.since)
        self.state = "starved"

    def snapshot(self, now: float) -> dict[str, object]:
        """The counters as of now, the state under way included.

        A job under way counts as busy until it ends and tells how much of it was copying; booking it here would make that part busy for good.
        """
        seconds = {**self.seconds, self.state: self.seconds[self.state] + max(now - self.since, 0.0)}
        return {
            "worker": self.name,
            "state": self.state,
            **{f"{state}_seconds": round(spent, 6) for state, spent in seconds.items()},
            "batches": self.batches,
            "tokens": self.tokens,
            "padded_tokens": self.padded_tokens,
            "length_squared": self.length_squared,
        }


@dataclass
class QueueAccount:
    """Depth of one queue over time."""

    name: str
    buckets: int
    since: float
    depths: list[int] = field(default_factory=list)
    depth_seconds: list[float] = field(default_factory=list)
    total_depth_seconds: float = 0.0
    empty_seconds: float = 0.0
    full_seconds: float = 0.0
    residence_seconds: float = 0.0
    puts: int = 0
    gets: int = 0
    full: bool = False

    def __post_init__(self) -> None:
        self.depths = self.depths or [0] * self.buckets
        self.depth_seconds = self.depth_seconds or [0.0] * self.buckets

    def put(self, bucket: int, now: float) -> None:
        """An item came."""
        self._pass(now)
        self.depths[bucket] += 1
        self.puts += 1

    def get(self, bucket: int, now: float, arrived: float) -> None:
        """An item that arrived then was taken."""
        self._pass(now)
        self.depths[bucket] -= 1
        self.gets += 1
        self.residence_seconds += now - arrived

    def mark_full(self, full: bool, now: float) -> None:
        """Whether producers are blocked on it from now on."""
        self._pass(now)
        self.full = full

    def with_buckets(self, depths: list[int], now: float) -> QueueAccount:
        """The account continued with other length buckets: their depth over time is counted from now, all else goes on."""
        self._pass(now)
        return replace(self, buckets=len(depths), depths=depths, depth_seconds=[])

    def snapshot(self, now: float) -> dict[str, object]:
        """The counters as of now."""
        self._pass(now)
        return {
            "queue": self.name,
            "depths": list(self.depths),
            "depth_seconds": [round(each, 6) for each in self.depth_seconds],
            "total_depth_seconds": round(self.total_depth_seconds, 6),
            "empty_seconds": round(self.empty_seconds, 6),
            "full_seconds": round(self.full_seconds, 6),
            "residence_seconds": round(self.residence_seconds, 6),
            "puts": self.puts,
            "gets": self.gets,
        }

    def _pass(self, now: float) -> None:
        spent = now - self.since
        if spent <= 0.0:  # several moves at one moment
            return
        for bucket, depth in enumerate(self.depths):
            self.depth_seconds[bucket] += depth * spent
            self.total_depth_seconds += depth * spent
        if not any(self.depths):
            self.empty_seconds += spent
        if self.full:
            self.full_seconds += spent
        self.since = now
