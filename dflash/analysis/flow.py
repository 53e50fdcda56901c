"""What the pipeline did in a stretch of time, from its own accounts: the shares of time of each kind of worker, queue depths, speeds.

All counters in `sample` events only grow; a stretch is the difference of the two samples nearest its ends. Speeds are real seconds a worker
was busy for the tokens it got through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from dflash.analysis.eventlog import Event, EventLog

STATES = ("busy", "starved", "blocked", "copy", "evaluation", "checkpoint", "compile")
KINDS = ("prefetch", "target", "drafter")


@dataclass(frozen=True)
class Worker:
    """One worker in a stretch: its share of time in each state, and how fast it is.

    `tokens_per_second` is padded tokens (targets) or real tokens (others) per second it was busy; nan if it did nothing.
    """

    name: str
    kind: str
    shares: dict[str, float]
    tokens: float
    tokens_per_second: float
    busy_seconds: float
    padded_tokens: float
    length_squared: float


@dataclass(frozen=True)
class Queue:
    """One queue in a stretch. `little` is mean depth / (rate x residence): 1 when the instruments are right, nan when unknown."""

    name: str
    depth: float
    by_bucket: list[float]
    empty: float
    full: float
    residence_seconds: float
    little: float


@dataclass(frozen=True)
class Flow:
    """The pipeline in the stretch from `begin` to `end` (seconds since the first event).

    Attributes:
        ktok_s: real tokens committed by steps, thousands a second, pauses included.
        workers: by kind.
        queues: by name.
        batches: the batches drafted in it.
        step_share, evaluation_share: shares of wall time taken by optimiser steps and evaluations.
        steps: optimiser steps that ended in it.
        accounts_add_up: largest relative gap between a worker's states summed and wall time.
    """

    begin: float
    end: float
    ktok_s: float
    workers: dict[str, list[Worker]]
    queues: dict[str, Queue]
    batches: pl.DataFrame
    step_share: float
    evaluation_share: float
    steps: int
    accounts_add_up: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin

    def share(self, kind: str, state: str) -> float:
        """Mean share of time that workers of a kind are in a state; 0 if there are none."""
        workers = self.workers.get(kind, [])
        return sum(worker.shares.get(state, 0.0) for worker in workers) / len(workers) if workers else 0.0


def measure_flow(log: EventLog, begin: float, end: float) -> Flow | None:
    """Measure a stretch; None if it holds no two samples with accounts of workers, or no time passes between them."""
    samples = [sample for sample in log.rare["sample"] if sample.get("workers")]
    inside = [sample for sample in samples if begin - 1e-9 <= sample["at"] <= end + 1e-9]
    inside = _same_session(inside)
    if len(inside) < 2 or inside[-1]["at"] <= inside[0]["at"]:
        return None
    first, last = inside[0], inside[-1]
    begin, end = first["at"], last["at"]
    seconds = float(last["clock_seconds"] - first["clock_seconds"])
    workers, gap = _workers(first, last, seconds)
    queues = {
        queue["queue"]: _queue(before, queue, seconds) for before, queue in zip(first["queues"], last["queues"], strict=False)
    }
    steps = _between(log.steps, begin, end)
    evaluations = [event for event in log.rare["evaluation"] if begin < event["at"] <= end]
    return Flow(
        begin=begin,
        end=end,
        ktok_s=_committed_rate(log, begin, end, seconds),
        workers=workers,
        queues=queues,
        batches=_between(log.batches, begin, end),
        step_share=float(steps["step_seconds"].sum()) / seconds if "step_seconds" in steps.columns else 0.0,
        evaluation_share=sum(event.get("evaluation_seconds") or 0.0 for event in evaluations) / seconds,
        steps=len(steps),
        accounts_add_up=gap,
    )


def _same_session(samples: list[Event]) -> list[Event]:
    """The longest run of samples whose counters only grow: those of one session."""
    cuts = [at for at in range(1, len(samples)) if samples[at]["clock_seconds"] < samples[at - 1]["clock_seconds"]]
    parts = [samples[left:right] for left, right in zip([0, *cuts], [*cuts, len(samples)], strict=True)]
    return max(parts, key=len)


def _committed_rate(log: EventLog, begin: float, end: float, seconds: float) -> float:
    """Ktok/s between the last step before the stretch and the last one in it, so that whole steps are counted in their own time."""
    if not len(log.steps) or "tokens" not in log.steps.columns:
        return float("nan")
    at, tokens = log.steps["at"].to_numpy(), log.steps["tokens"].to_numpy().astype(np.float64)
    inside = np.flatnonzero((at > begin) & (at <= end))
    if not inside.size:
        drafted = _between(log.batches, begin, end)
        return float(drafted["tokens"].sum()) / seconds / 1_000 if len(drafted) else float("nan")
    start = at[inside[0] - 1] if inside[0] > 0 else begin
    return float(tokens[inside].sum() / (at[inside[-1]] - start)) / 1_000 if at[inside[-1]] > start else float("nan")


def _workers(first: Event, last: Event, seconds: float) -> tuple[dict[str, list[Worker]], float]:
    before = {worker["worker"]: worker for worker in first["workers"]}
    found: dict[str, list[Worker]] = {kind: [] for kind in KINDS}
    gap = 0.0
    for now in last["workers"]:
        then = before.get(now["worker"], {})
        spent = {state: (now.get(f"{state}_seconds") or 0.0) - (then.get(f"{state}_seconds") or 0.0) for state in STATES}
        kind = now["worker"].rpartition("-")[0]
        done = {name: float((now.get(name) or 0) - (then.get(name) or 0)) for name in ("tokens", "padded_tokens", "length_squared")}
        tokens = done["padded_tokens" if kind == "target" else "tokens"]
        speed = tokens / spent["busy"] if spent["busy"] > 0 and tokens > 0 else float("nan")
        shares = {state: value / seconds for state, value in spent.items()}
        found.setdefault(kind, []).append(
            Worker(now["worker"], kind, shares, tokens, speed, spent["busy"], done["padded_tokens"], done["length_squared"])
        )
        gap = max(gap, abs(sum(shares.values()) - 1.0))
    return found, gap


def _queue(first: Event, last: Event, seconds: float) -> Queue:
    def grown(name: str) -> float:
        return float((last.get(name) or 0.0) - (first.get(name) or 0.0))

    depths: list[Any] = last.get("depth_seconds") or []
    before: list[Any] = first.get("depth_seconds") or []
    if len(before) != len(depths) or any(then > now for now, then in zip(depths, before, strict=True)):
        before = [0.0] * len(depths)  # boundaries were changed in between: the buckets' integrals began anew
    by_bucket = [float(now - then) / seconds for now, then in zip(depths, before, strict=True)]
    depth = grown("total_depth_seconds") / seconds if "total_depth_seconds" in last else sum(by_bucket)
    gets = grown("gets")
    residence = grown("residence_seconds") / gets if gets else float("nan")
    # Little's law with the items that left; those still inside at the ends belong to neither side and are small in a long stretch
    little = depth / (gets / seconds * residence) if gets and residence > 0 else float("nan")
    return Queue(
        last["queue"], depth, by_bucket, grown("empty_seconds") / seconds, grown("full_seconds") / seconds, residence, little
    )  # fmt: skip


def _between(frame: pl.DataFrame, begin: float, end: float) -> pl.DataFrame:
    return frame.filter((pl.col("at") > begin) & (pl.col("at") <= end)) if len(frame) else frame
