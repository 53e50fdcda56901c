"""The coordinator: a single-threaded loop that turns a plan of batches into optimiser steps. It knows nothing of torch, GPUs or clocks.

    plan -> prefetch -> ready queue -> targets -> pool -> drafters -> window -> optimiser step -> ledger

Told at a whiteboard: open a window of `accumulate` batches; whichever drafter is free pulls the next item the policy chooses; when
all of the window's batches are done, every drafter takes one step on the gradient summed over the window; the ledger commits the
window's batches; then, at this safe point, evaluate and checkpoint when due. Prefetch and targets work on through all of it, held
back only by bounds: `pipeline.prefetch` batches ready, `pool.capacity_*` features.

An optimiser window holds batches of one epoch only, so the last one of an epoch may be short; at its end a drafter may wait
although the pool holds items of the next epoch.
"""

from __future__ import annotations

from typing import Any

from dflash.config import RunConfig
from dflash.errors import RunFailed
from dflash.model.results import StepResult
from dflash.pipeline.crew import Crew
from dflash.pipeline.evaluation import Due, EvaluationPass, due_after
from dflash.pipeline.jobs import Completion, Decode, Engine, Evaluate, Job, PlannedBatch, Prefetch, Produce, Save, Step, Train
from dflash.pipeline.ledger import BatchState, Ledger
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reports import Checkpointer, KeepsBest, Listener, Progress, StepReport, Window
from dflash.pipeline.schedule import learning_rate
from dflash.pipeline.stock import Stock

SKIPS_THAT_STOP = 3
LOSSES_THAT_STOP = 10


class Deadlock(RunFailed):
    """Nothing is under way and nothing can start. The message says which worker waits for what."""


class DrafterLost(RunFailed):
    """A drafter died or hung: its replicas' gradients are lost with it, and all go back to the last checkpoint."""


class Coordinator:
    """One run (or the rest of one) on one engine."""

    def __init__(
        self,
        config: RunConfig,
        stream: PlanStream,
        ledger: Ledger,
        engine: Engine,
        listener: Listener,
        *,
        feature_bytes_per_token: int,
        checkpointer: Checkpointer | None = None,
        holdout: list[PlannedBatch] | None = None,
        prompts: list[int] | None = None,
        best: KeepsBest | None = None,
        progress: Progress | None = None,
        saved_policy: dict[str, Any] | None = None,
    ) -> None:
        self.config, self.stream, self.ledger, self.engine, self.listener = config, stream, ledger, engine, listener
        self.checkpointer = checkpointer
        self.holdout, self.prompts, self.best = holdout or [], prompts or [], best
        self.progress = progress or Progress()
        self.stop_requested = self.paused = self.checkpoint_requested = False
        self.stock = Stock(config, stream, ledger, engine, feature_bytes_per_token)
        if saved_policy is not None:
            self.stock.policy_state.restore(saved_policy)
        self.window: Window | None = None
        self.evaluation: EvaluationPass | None = None
        self._ended: dict[type[Job], Completion] = {}
        self._losses = 0
        self.crew = Crew(engine)

    # ---- the run, top down

    def run(self) -> str:
        """Train until the plan is done or a stop is asked for. Returns `finished` or `stopped`.

        Raises:
            Deadlock: no worker can go on.
            RunFailed: three steps in a row were not finite; a checkpoint of the weights before them is kept.
        """
        if self.progress.step == 0:
            self._evaluate(due_after(0, self.config.evaluation))
        while self.progress.step < self.total_steps and not self.stop_requested:
            self._train_window()
            self._at_safe_point()
        finished = not self.stop_requested
        if finished:
            self._evaluate(Due(simulate=True, decode=self.config.evaluation.decode_every > 0))
        self._checkpoint()
        return "finished" if finished else "stopped"

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run as planned now."""
        return self.stream.total_steps(self.progress.step, self.window.size if self.window else 0)

    def _train_window(self) -> None:
        epoch = self.ledger.epochs_done
        self.stream.peek()  # opens the epoch, if nothing of it has been read yet
        size = min(self.config.optim.accumulate, self.ledger.left_in_epoch(epoch))
        self.window = window = Window(size, epoch)
        self.stock.policy_state.shares = self.stream.bucket_shares(epoch)
        while len(window.done) < window.size:
            self._turn()
            if self.checkpoint_requested and 0 in self.crew.idle("drafter"):
                self._checkpoint()
            if self.stop_requested and self.paused:
                return self._abandon(window)
        lr = learning_rate(self.progress.step, self.total_steps, self.config.optim)
        ended = self._do_and_wait(Step(self.progress.step + 1, lr))
        self._commit(window, lr, ended)
        self.window = None

    def _abandon(self, window: Window) -> None:
        """Stop without this step: what was taken into its window is not committed, and so it is trained on after a resume."""
        while self.crew.busy("drafter"):
            self._turn()
        self.window = None

    def _commit(self, window: Window, lr: float, ended: Completion) -> None:
        result: StepResult = ended.result
        for trained in window.done:
            self.ledger.advance(trained.batch.id, BatchState.COMMITTED)
        self._losses = 0
        self.progress.step += 1
        self.progress.committed_tokens += sum(trained.batch.tokens for trained in window.done)
        self.progress.committed_batches += len(window.done)
        self.progress.skips_in_a_row = self.progress.skips_in_a_row + 1 if result.skipped else 0
        if self.ledger.left_in_epoch(window.epoch) == 0:
            self.stream.close_epoch(window.epoch)
        self.listener.stepped(StepReport(self.progress.step, window.epoch, lr, result, window.done, ended.busy_seconds))

    def _at_safe_point(self) -> None:
        step = self.progress.step
        if self.progress.skips_in_a_row >= SKIPS_THAT_STOP:
            self._checkpoint()
            raise RunFailed(
                f"step {step}: loss or gradient not finite {SKIPS_THAT_STOP} times in a row; those steps changed nothing and the "
                "weights before them are in the checkpoint. Lower optim.lr or look at the batches in the events, then resume"
            )
        if step < self.total_steps:
            self._evaluate(due_after(step, self.config.evaluation))
        every = self.config.checkpoint.every
        if (every and step % every == 0 and step < self.total_steps and not self.stop_requested) or self.checkpoint_requested:
            self._checkpoint()

    def _evaluate(self, due: Due) -> None:
        if not self.holdout or not any(due):
            return
        started, prompts = self.engine.now(), self.prompts if due.decode else []
        self.evaluation = EvaluationPass(self.holdout if due.simulate else [], self.engine.drafters, prompts)
        while not self.evaluation.complete:
            self._turn()
        report = self.evaluation.report(self.progress.step, self.engine.now() - started)
        self.evaluation = None
        self.listener.evaluated(report)
        if self.best is not None:
            self.best.offer(report, self._do_and_wait)

    def _checkpoint(self) -> None:
        self.checkpoint_requested = False
        if self.checkpointer is not None:
            self._do_and_wait(self.checkpointer.begin(self.progress.step))
            self.checkpointer.commit(self.progress.step, self.saved())

    def saved(self) -> dict[str, Any]:
        """What a resumed run needs besides the weights, as JSON."""
        return {"progress": vars(self.progress), "ledger": self.ledger.saved(), "policy": self.stock.saved_policy()}

    # ---- changed while it runs

    def change(self, config: RunConfig) -> dict[str, Any]:
        """Take over changed settings between two turns; the open window keeps its size. Returns what followed from it.

        Raises:
            RefusedInput: the settings don't fit the data or the pool; nothing has changed then.
        """
        self.stock.refuse_items_larger_than_the_pool(config)
        places = self.window.size - self.window.taken if self.window else 0
        boundaries = self.stream.boundaries
        replanned = self.stream.replan(config, places)
        self.config = config
        self.stock.change(config)
        if self.stream.boundaries != boundaries:
            self.stock.sort_into_new_buckets()
        return {"batches_planned_anew": replanned, "total_steps": self.total_steps}

    # ---- one turn of the loop

    def _turn(self) -> None:
        self.stock.turn += 1
        if not self.paused:
            self._feed_prefetch()
            self._feed_targets()
            self._feed_drafters()
        self.crew.name_idle(self._reason_idle)
        policy_wait = self._policy_wait()
        if not self.crew.under_way and policy_wait is None and not self.paused:
            raise Deadlock(self._who_waits_for_what())
        completions = self.engine.wait(_shorter(policy_wait, self.engine.longest_wait_seconds))
        for completion in sorted(completions, key=_plan_place):  # in which order an engine tells them is chance
            self._handle(completion)
        self.listener.turned(self)

    def _do_and_wait(self, job: Step | Save) -> Completion:
        self.crew.start(job)
        while type(job) not in self._ended:
            self._turn()
        return self._ended.pop(type(job))

    def _feed_prefetch(self) -> None:
        for worker in self.crew.idle("prefetch"):
            batch = self.evaluation.next_to_read() if self.evaluation else None
            batch = batch or self.stock.next_to_read(self.crew.busy("prefetch"))
            if batch is None:
                return
            self.crew.start(Prefetch(worker, batch))

    def _feed_targets(self) -> None:
        for worker in self.crew.idle("target"):
            batch = self.evaluation.next_to_produce() if self.evaluation else None
            batch = batch or self.stock.next_to_produce()
            if batch is None:
                break
            self.crew.start(Produce(worker, batch))
        self.stock.mark_full()

    def _feed_drafters(self) -> None:
        for worker in self.crew.idle("drafter"):
            if self.evaluation is not None:
                held_out = self.evaluation.next_for_drafter(worker)
                if held_out is not None:
                    self.crew.start(held_out)
                continue
            window = self.window
            if window is None or window.taken >= window.size:
                return
            batch = self.stock.pull(worker, window.epoch)
            if batch is not None:
                window.taken += 1
                ordinal = self.progress.committed_batches + window.taken - 1
                with_metrics = ordinal % self.config.telemetry.metrics_every == 0
                self.crew.start(Train(worker, batch, self.config.drafter.anchors, with_metrics))

    def _handle(self, completion: Completion) -> None:
        job = completion.job
        self.crew.end(completion)
        if completion.fault is not None:
            return self._lost(job, completion.fault)
        match job:
            case Step() | Save():
                self._ended[type(job)] = completion
            case Evaluate() | Decode():
                assert self.evaluation is not None
                self.evaluation.evaluated(completion)
                if isinstance(job, Evaluate):
                    self.engine.forget(job.batch.id)
            case Prefetch(batch=batch) | Produce(batch=batch) if self.evaluation and batch.id.epoch < 0:
                self.evaluation.advance(job, completion.busy_seconds)
            case Prefetch(batch=batch):
                self.stock.was_read(batch, completion.busy_seconds)
            case Produce(batch=batch):
                self.stock.was_produced(batch.id, completion.busy_seconds)
            case Train(batch=batch):
                assert self.window is not None
                trained = self.stock.was_trained(batch.id, job.worker, completion)
                self.window.done.append(trained)
                self.listener.trained(trained)

    def _lost(self, job: Job, fault: str) -> None:
        """A worker is gone: a reader's or a target's batch is done again from the start."""
        who = self.crew.names(job)
        self.listener.lost(who, fault, self.progress.step)
        self._losses += 1
        if not isinstance(job, Prefetch | Produce):
            raise DrafterLost(f"{who} was lost at step {self.progress.step}: {fault}")
        if self._losses > LOSSES_THAT_STOP:
            raise RunFailed(f"{self._losses} workers lost since the last step, now {who}: {fault}; mend that, then `dflash resume`")
        if job.batch.id.epoch >= 0:
            return self.stock.was_lost(job)
        assert self.evaluation is not None
        self.engine.forget(job.batch.id)
        self.evaluation.read_again(job.batch)

    # ---- who is free, and why

    def _reason_idle(self, kind: str) -> str:
        if self.paused:
            return "paused"
        if kind == "prefetch":
            return "blocked" if self.stream.peek() is not None else "starved"
        if kind == "target":
            return "blocked" if self.stock.ready else "starved"
        if self.evaluation is not None:
            return "evaluation"
        window = self.window
        return "blocked" if window is None or window.taken >= window.size else "starved"

    def _policy_wait(self) -> float | None:
        """Seconds until the first drafter whose policy waits may move on; None if none waits with an end."""
        state, now = self.stock.policy_state, self.engine.now()
        if state.wait_seconds is None:
            return None
        waits = (since + state.wait_seconds - now for since in state.waiting_since.values())
        return min((wait for wait in waits if wait > 0), default=None)

    def _who_waits_for_what(self) -> str:
        waits = [f"{account.name} is {account.state}" for account in self.crew.accounts.values()]
        for drafter in self.stock.policy_state.waiting_since:
            bucket = self.stock.policy_state.cursors.get(drafter, 0)
            waits.append(f"drafter-{drafter} waits for an item of length bucket {bucket}")
        return (
            f"deadlock at step {self.progress.step}: pool.policy={self.config.pool.policy}, pool by bucket "
            f"{self.stock.pool.histogram()} of at most {self.stock.pool.capacity_items} items; " + "; ".join(waits)
        )


def _plan_place(completion: Completion) -> tuple[int, ...]:
    """Plan order of completions; those without a batch first."""
    job = completion.job
    return () if isinstance(job, Step | Save | Decode) else job.batch.id


def _shorter(one: float | None, other: float | None) -> float | None:
    """The shorter of two waits; None is for ever."""
    return min((wait for wait in (one, other) if wait is not None), default=None)
