"""Live control: commands from a run's mailbox, applied between two turns of the coordinator, each answered by a `change` event.

Every turn ends at a safe point: no job is half handed over, and the ledger knows where each batch is. A command is checked whole before
anything is changed; a refused one says why and changes nothing. What was accepted is written into the run's config.yaml, so a resume goes on
with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dflash.config import RunConfig, build_config, dump_config
from dflash.errors import RefusedInput
from dflash.pipeline.coordinator import Coordinator
from dflash.runs.control import Command, Mailbox
from dflash.runs.folder import RunFolder, write_text
from dflash.telemetry.recorder import Recorder

LIVE_KEYS = (
    "batching.boundaries",
    "batching.strategy",
    "batching.order",
    "batching.jitter",
    "pool.policy",
    "pool.wait_seconds",
    "pool.capacity_items",
    "pool.capacity_bytes",
    "pipeline.prefetch",
    "telemetry.metrics_every",
    "telemetry.log_every",
    "optim.accumulate",
    "drafter.anchors",
    "checkpoint.every",
)
POLL_SECONDS = 0.25


class LiveControl:
    """Polls a mailbox and obeys it."""

    def __init__(
        self,
        run: RunFolder,
        recorder: Recorder,
        show: Callable[[str], None],
        watch: Callable[[Coordinator], None] = lambda coordinator: None,
    ) -> None:
        """`watch` is called before the mailbox is read: it sees whether the run's folder is still there."""
        self._run, self._recorder, self._show, self._watch = run, recorder, show, watch
        self._mailbox = Mailbox(run)
        self._next_poll = 0.0

    def obey(self, coordinator: Coordinator) -> None:
        """Apply what came since the last poll; at most every `POLL_SECONDS`."""
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_SECONDS
        self._watch(coordinator)
        for command in self._mailbox.poll():
            self._answer(command, coordinator)

    def _answer(self, command: Command, coordinator: Coordinator) -> None:
        old = new = None
        outcome: dict[str, Any] = {}
        reason = command.fault
        if reason is None:
            try:
                old, new, outcome = self._apply(command, coordinator)
            except RefusedInput as error:
                reason = str(error)
        self._recorder.record(
            "change",
            id=command.id,
            who=command.who,
            action=command.action,
            key=command.key,
            old=old,
            new=new,
            accepted=reason is None,
            reason=reason,
            step=coordinator.progress.step,
            **outcome,
        )
        what = f"{command.action} {command.key or ''}".strip()
        self._show(f"{command.who}: {what}: {f'refused: {reason}' if reason else f'{old} -> {new}'}")

    def _apply(self, command: Command, coordinator: Coordinator) -> tuple[Any, Any, dict[str, Any]]:
        match command.action:
            case "set":
                return self._set(command, coordinator)
            case "checkpoint":
                coordinator.checkpoint_requested = True
                return None, "at the next safe point", {}
            case "stop":
                coordinator.stop_requested = True
                return "running", "stopping after this step with a checkpoint", {}
        old = "paused" if coordinator.paused else "running"
        coordinator.paused = command.action == "pause"
        return old, "paused" if coordinator.paused else "running", {}

    def _set(self, command: Command, coordinator: Coordinator) -> tuple[Any, Any, dict[str, Any]]:
        key = command.key or ""
        if key not in LIVE_KEYS:
            raise RefusedInput(f"{key} can't be changed while a run trains; what can: {', '.join(LIVE_KEYS)}")
        section, _, name = key.partition(".")
        tree = coordinator.config.model_dump(mode="json")
        old, tree[section][name] = tree[section][name], command.value
        config = build_config(tree, place="change")
        outcome = coordinator.change(config)
        write_text(self._run.path / "config.yaml", dump_config(config))
        return old, value_of(config, key), outcome


def value_of(config: RunConfig, key: str) -> Any:
    """The value of `section.name` in a config, as JSON."""
    section, _, name = key.partition(".")
    return config.model_dump(mode="json")[section][name]
