"""The workers of a run: who is free, who does what, and where each one's seconds went."""

from __future__ import annotations

import bisect
from collections.abc import Callable

from dflash.pipeline.jobs import Completion, Decode, Engine, Evaluate, Job, PlannedBatch, Prefetch, Produce, Save, Step, Train
from dflash.telemetry.accounts import WorkerAccount

_STATE_OF = {Evaluate: "evaluation", Decode: "evaluation", Save: "checkpoint"}


class Crew:
    """Prefetch workers, targets and drafters of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.counts = {"prefetch": engine.prefetch_workers, "target": engine.targets, "drafter": engine.drafters}
        now = engine.now()
        self.accounts = {
            (kind, number): WorkerAccount(f"{kind}-{number}", now) for kind, count in self.counts.items() for number in range(count)
        }
        self.under_way: dict[tuple[str, int], Job] = {}
        self._free = {kind: list(range(count)) for kind, count in self.counts.items()}

    def idle(self, kind: str) -> list[int]:
        """Numbers of the workers of a kind that are free now, ascending."""
        return self._free[kind].copy()

    def busy(self, kind: str) -> int:
        """How many workers of a kind have a job."""
        return self.counts[kind] - len(self._free[kind])

    def start(self, job: Job) -> None:
        """Give a job to the worker (or, for a step, the workers) it names."""
        now = self.engine.now()
        for worker in self._doers(job):
            self.under_way[worker] = job
            self._free[worker[0]].remove(worker[1])
            self.accounts[worker].enter("busy", now)
        self.engine.submit(job)

    def end(self, completion: Completion) -> None:
        """Enter a finished job into the accounts; its worker is free again."""
        now, job = self.engine.now(), completion.job
        for worker in self._doers(job):
            del self.under_way[worker]
            bisect.insort(self._free[worker[0]], worker[1])
            account = self.accounts[worker]
            account.finish(now, completion.busy_seconds, _STATE_OF.get(type(job), "busy"), completion.extra_seconds)
            if completion.fault is None and isinstance(job, Prefetch | Produce | Train):
                _count(account, job.batch)

    def name_idle(self, reason: Callable[[str], str]) -> None:
        """Enter why each free worker is free; `reason` gives the state for a kind of worker."""
        now = self.engine.now()
        for kind, free in self._free.items():
            state = reason(kind) if free else ""
            for number in free:
                account = self.accounts[kind, number]
                if state != account.state:
                    account.enter(state, now)

    def names(self, job: Job) -> str:
        """Who has a job, as people read it."""
        return ", ".join(f"{kind}-{number}" for kind, number in self._doers(job))

    def _doers(self, job: Job) -> list[tuple[str, int]]:
        match job:
            case Prefetch(worker=worker):
                return [("prefetch", worker)]
            case Produce(worker=worker):
                return [("target", worker)]
            case Train(worker=worker) | Evaluate(worker=worker) | Decode(worker=worker):
                return [("drafter", worker)]
            case Save():
                return [("drafter", 0)]
            case Step():
                return [("drafter", number) for number in range(self.counts["drafter"])]


def _count(account: WorkerAccount, batch: PlannedBatch) -> None:
    account.batches += 1
    account.tokens += batch.tokens
    account.padded_tokens += batch.padded_tokens
    account.length_squared += batch.length_squared
