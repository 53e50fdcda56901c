"""What a run tells while it goes on: events for readers, console lines for people.

Ktok/s has one meaning in the project: real tokens committed by optimiser steps per second, over a stated window. The console line is the
record's, whose bracket counts what drafters got through in the last minute at most, committed or not; the `step` events carry the
committed count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash.batching.plan import EpochPlan
from dflash.config import RunConfig
from dflash.model.results import BatchResult, merged
from dflash.pipeline.coordinator import Coordinator
from dflash.pipeline.live import LiveControl
from dflash.pipeline.reports import EvaluationReport, StepReport, Trained
from dflash.runs.best import Best
from dflash.telemetry.console import ConsoleLine, format_line
from dflash.telemetry.recorder import Recorder

RATE_SECONDS = 60.0


class RunReporter:
    """The coordinator's listener: writes to the recorder, and hands a `ConsoleLine` to `show` every `telemetry.log_every` seconds.

    `run_tokens` are the real tokens of the whole run, all epochs.
    """

    def __init__(
        self,
        config: RunConfig,
        recorder: Recorder,
        show: Callable[[str], None],
        *,
        run_tokens: int,
        trained_tokens: int = 0,
        live: LiveControl | None = None,
    ) -> None:
        self.live = live
        self.config, self.recorder, self.show = config, recorder, show
        self.run_tokens, self.trained_tokens = run_tokens, trained_tokens
        self.last_step: StepReport | None = None
        self.last_metrics: BatchResult | None = None
        self.held_out: BatchResult | None = None
        self._started: float | None = None
        self._tokens_at_start = trained_tokens
        self._next_line = self._next_sample = 0.0
        self._rates: deque[tuple[float, int, int, int]] = deque()

    def planned(self, epoch: int, segment: int, plan: EpochPlan, tokens: int, padded_tokens: int) -> None:
        """An epoch (or the rest of one) was planned."""
        budget = len(plan) * self.config.batching.token_budget
        self.recorder.record(
            "plan",
            epoch=epoch,
            segment=segment,
            batches=len(plan),
            samples=len(plan.samples),
            tokens=tokens,
            padding_efficiency=tokens / padded_tokens,
            fill=padded_tokens / budget,
            strategy=self.config.batching.strategy,
            order=self.config.batching.order,
        )

    def trained(self, trained: Trained) -> None:
        """A drafter finished a batch."""
        batch, result = trained.batch, trained.result
        self.trained_tokens += batch.tokens
        if result.metrics is not None:
            self.last_metrics = result
        self.recorder.record(
            "batch",
            batch=str(batch.id),
            drafter=trained.drafter,
            samples=batch.samples.tolist(),
            rows=batch.rows,
            tokens=batch.tokens,
            padded_tokens=batch.padded_tokens,
            longest=batch.longest,
            length_squared=batch.length_squared,
            bucket=batch.bucket,
            anchors=result.anchors,
            slots=result.slots,
            loss=result.loss,
            accuracy=result.accuracy,
            streak=result.streak,
            turns=trained.turns,
            **{f"{stage}_seconds": spent for stage, spent in trained.seconds.items()},
        )

    def stepped(self, report: StepReport) -> None:
        """An optimiser step was taken."""
        self.last_step = report
        window = merged([trained.result for trained in report.batches])
        batches = [trained.batch for trained in report.batches]
        self.recorder.record(
            "step",
            step=report.step,
            epoch=report.epoch,
            loss=report.result.loss,
            cross_entropy=window.cross_entropy,
            grad_norm=report.result.grad_norm,
            lr=report.lr,
            noise=self.config.drafter.noise,
            skipped=report.result.skipped,
            reason=report.result.reason,
            accuracy=window.accuracy,
            accuracy_by_slot=window.metrics.accuracy_by_slot if window.metrics else None,
            streak=window.streak,
            acceptance_length=window.acceptance_length,
            weight_sum=report.result.weight_sum,
            batches=len(batches),
            tokens=sum(batch.tokens for batch in batches),
            padded_tokens=sum(batch.padded_tokens for batch in batches),
            loss_tokens=window.loss_tokens,
            anchors=window.anchors,
            class_tokens=[sum(classes) for classes in zip(*(batch.class_tokens for batch in batches), strict=True)],
            batch_ids=[str(batch.id) for batch in batches],
            step_seconds=report.step_seconds,
        )
        if report.result.skipped:
            self.warn(f"step {report.step} skipped: {report.result.reason}")

    def evaluated(self, report: EvaluationReport) -> None:
        """A held-out evaluation ended."""
        fields: dict[str, Any] = {}
        told: list[str] = []
        result, decoded = report.simulated, report.decoded
        if result is not None:
            self.held_out, metrics = result, result.metrics
            fields |= {
                "conversations": report.conversations,
                "loss": result.loss,
                "cross_entropy": result.cross_entropy,
                "accuracy": result.accuracy,
                "accuracy_by_slot": metrics.accuracy_by_slot if metrics else None,
                "streak": result.streak,
                "acceptance_length": result.acceptance_length,
                "blocks": metrics.blocks if metrics else 0,
                "walk_acceptance_length": result.walk_acceptance_length,
                "walk_rounds": result.walk.rounds if result.walk else 0,
            }
            told.append(
                f"loss={result.loss:.4f} acc={result.accuracy or 0:.4f} acceptance length={result.acceptance_length or 1:.3f} at "
                f"random anchors, {result.walk_acceptance_length or 1:.3f} walked, on {report.conversations} held-out conversations"
            )
        if decoded is not None:
            fields |= {
                "decode_acceptance_length": decoded.acceptance_length,
                "decoded_prompts": report.prompts,
                "decoded_tokens": decoded.tokens,
                "decode_rounds": decoded.rounds,
            }
            told.append(f"acceptance length={decoded.acceptance_length:.3f} decoding {report.prompts} held-out prompts")
        seconds = {f"{stage}_seconds": spent for stage, spent in report.seconds.items()}
        self.recorder.record("evaluation", step=report.step, **fields, **seconds)
        self.show(f"evaluation at step {report.step}: {'; '.join(told)}")

    def lost(self, worker: str, reason: str, step: int) -> None:
        """A worker died or hung."""
        self.recorder.record("worker_lost", worker=worker, reason=reason, step=step)
        self.show(f"warning: {worker} was lost ({reason}); its work is done again")

    def saved(self, step: int, folder: Path, size_bytes: int, best: Best | None = None) -> None:
        """A checkpoint is on disk; `best` if it is the best one."""
        chosen = {"acceptance_length": best.acceptance_length, "chosen_by": best.measure.by} if best else {}
        self.recorder.record("checkpoint", step=step, folder=folder.name, bytes=size_bytes, best=best is not None, **chosen)

    def warn(self, message: str) -> None:
        """Say it on the console and keep it in the events."""
        self.recorder.record("warning", message=message)
        self.show(f"warning: {message}")

    def turned(self, coordinator: Coordinator) -> None:
        """Obey commands; sample counters and print a line when they are due."""
        if self.live is not None:
            self.live.obey(coordinator)
            self.config = coordinator.config
        now = coordinator.engine.now()
        if self._started is None:
            self._started = now
            self._next_line = now + min(self.config.telemetry.log_every, 1.0)
        if now >= self._next_sample:
            self._next_sample = now + self.config.telemetry.sample_every
            self.sample(coordinator, now)
        if now >= self._next_line:
            self._next_line = now + self.config.telemetry.log_every
            self.show(format_line(self.line(coordinator, now)))

    def sample(self, coordinator: Coordinator, now: float) -> None:
        """Write each worker's and each queue's counters."""
        self.recorder.record(
            "sample",
            clock_seconds=now,
            step=coordinator.progress.step,
            committed_tokens=coordinator.progress.committed_tokens,
            workers=[account.snapshot(now) for account in coordinator.crew.accounts.values()],
            queues=[queue.snapshot(now) for queue in coordinator.stock.queues.values()],
            pool_bytes=coordinator.stock.pool.held_bytes,
            telemetry_seconds=self.recorder.write_seconds,
        )

    def close(self, coordinator: Coordinator) -> None:
        """The session is over: a last sample and a last line, so that the shortest run has one of each; and what was under way."""
        now = coordinator.engine.now()
        self.sample(coordinator, now)
        self.recorder.record("left", batches={str(batch): passage.turns for batch, passage in coordinator.stock.passages.items()})
        self.show(format_line(self.line(coordinator, now)))

    def line(self, coordinator: Coordinator, now: float) -> ConsoleLine:
        """The progress line as of now."""
        started = now if self._started is None else self._started
        target_rate, drafter_rate, token_rate = self._rates_now(coordinator, now)
        step, metrics = self.last_step, self.last_metrics
        epoch_tokens = self.run_tokens / self.config.optim.epochs
        return ConsoleLine(
            elapsed_seconds=now - started,
            step=coordinator.progress.step,
            loss=step.result.loss if step else None,
            accuracy=metrics.accuracy if metrics else None,
            streak=metrics.streak if metrics else None,
            lr=step.lr if step else None,
            noise=self.config.drafter.noise,
            target_batches_per_second=target_rate,
            drafter_batches_per_second=drafter_rate,
            ktok_per_second=token_rate / 1_000,
            prefetched=len(coordinator.stock.ready),
            pooled=len(coordinator.stock.pool),
            pool_histogram=tuple(coordinator.stock.pool.histogram()),
            epoch=self.trained_tokens / epoch_tokens,
            eta_seconds=self._eta(coordinator, now - started),
        )

    def _eta(self, coordinator: Coordinator, elapsed_seconds: float) -> float | None:
        """Time left at the session's mean rate; by steps when `optim.max_steps` ends the run early."""
        trained = self.trained_tokens - self._tokens_at_start
        if trained == 0 or elapsed_seconds <= 0:
            return None
        full_steps = coordinator.stream.full_steps(coordinator.progress.step, coordinator.window.size if coordinator.window else 0)
        tokens_to_train = self.run_tokens * coordinator.total_steps / full_steps
        return max(tokens_to_train - self.trained_tokens, 0.0) * elapsed_seconds / trained

    def _rates_now(self, coordinator: Coordinator, now: float) -> tuple[float, float, float]:
        """Target batches, drafter batches and drafter tokens per second since up to a minute ago."""
        totals = _totals(coordinator)
        if not self._rates:
            self._rates.append((self._started or now, 0, 0, 0))
        self._rates.append((now, *totals))
        while len(self._rates) > 2 and self._rates[1][0] <= now - RATE_SECONDS:
            self._rates.popleft()
        then, *before = self._rates[0]
        seconds = max(now - then, 1e-9)
        target, drafter, tokens = ((after - start) / seconds for after, start in zip(totals, before, strict=True))
        return target, drafter, tokens


def _totals(coordinator: Coordinator) -> tuple[int, int, int]:
    accounts: Any = coordinator.crew.accounts
    targets = sum(account.batches for (kind, _), account in accounts.items() if kind == "target")
    drafters = [account for (kind, _), account in accounts.items() if kind == "drafter"]
    return targets, sum(account.batches for account in drafters), sum(account.tokens for account in drafters)
