"""Watch and steer one run: state, progress, its last lines; pause, continue, checkpoint, stop; live changes with their effect and undo.

The console holds no state of its own: everything it shows is read from the run's folder, every command goes through the run's mailbox, and a
change counts only when the run's own event confirms it. So it may be closed, the kernel may restart, and two of them may steer at once: each
sees the other's changes, because the run answers both in the same log.
"""

from __future__ import annotations

import getpass
import html
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import yaml

from dflash.charts.run import describe_progress
from dflash.config import RunConfig
from dflash.errors import DFlashError, RefusedInput
from dflash.pipeline.live import LIVE_KEYS, value_of
from dflash.predict.changes import changed, effect_of
from dflash.predict.workload import Workload, load_workload
from dflash.runs.control import send_command, settings_changed
from dflash.runs.folder import RunFolder, open_run
from dflash.runs.launch import drive
from dflash.telemetry.reader import Tail
from dflash.telemetry.series import RunSeries
from workbench.tables import table_html
from workbench.ticker import Ticker
from workbench.view import View, button, shows_errors

LOG_BYTES = 6_000
LOG_LINES = 12


class RunConsole(View):
    """Attach to a run, from anywhere its folder is seen.

    Args:
        run: a run's folder, name or `RunFolder`.
        refresh_seconds: between looks at the folder.
    """

    def __init__(self, run: RunFolder | str | Path, *, refresh_seconds: float = 1.0) -> None:
        super().__init__()
        self.run = run if isinstance(run, RunFolder) else open_run(run)
        self.who = f"{getpass.getuser()}@{socket.gethostname()} (console)"
        self.changes: list[dict[str, Any]] = []
        self.pending: dict[str, str] = {}
        self._series = RunSeries(self.run.events, self.run.name)
        self._answers = Tail(self.run.events, kinds=("change", "run_started"), most_bytes=8 * 2**20)
        self._workload: Workload | None = None
        self._paused = False
        self._build()
        self._ticker = Ticker(self._tick_safely, refresh_seconds, f"console of {self.run.name}")
        self._effects = Ticker(self._predict_safely, 3600.0, f"effects for {self.run.name}")
        self._tick()
        self._ticker.start()
        self._effects.start()

    def close(self) -> None:
        """Let go of the run, which goes on."""
        self._ticker.close()
        self._effects.close()
        super().close()

    def send(self, action: str, *, key: str | None = None, value: Any = None) -> str:
        """Send a command; its answer appears in `changes`. Returns its id.

        Raises:
            RefusedInput: the run is not running, or there is no such action.
        """
        identity = send_command(self.run, action, key=key, value=value, who=self.who)
        self.pending[identity] = f"{action} {key or ''} {'' if value is None else value}".strip()
        self._ticker.wake()
        return identity

    def _build(self) -> None:
        self.progress = widgets.FloatProgress(min=0.0, max=1.0, layout={"width": "100%"})
        self.state = widgets.HTML()
        self.log = widgets.HTML()
        self.buttons = {name: button(name, partial(self._command, name)) for name in ("pause", "continue", "checkpoint")}
        self.buttons["stop"] = button("stop", self._ask_stop, style="danger", tooltip="finish the step, write a checkpoint, end")
        self.buttons["resume"] = button("resume", self._resume, style="success", tooltip="go on from the newest checkpoint")
        self.sure = button("yes, stop it", partial(self._command, "stop"), style="danger")
        self.sure.layout.display = "none"
        self.key = widgets.Dropdown(options=LIVE_KEYS, value="pool.policy", layout={"width": "220px"})
        self.value = widgets.Text(placeholder="new value", continuous_update=False, layout={"flex": "1 1 240px"})
        self.apply = button("apply", self._apply, style="primary")
        self.preview = widgets.HTML()
        self.history = widgets.HTML()
        self.undo = button("undo last change", self._undo)
        self.key.observe(lambda _change: self._show_old(), names="value")
        self.value.observe(lambda _change: self._preview(), names="value")
        row = widgets.Layout(flex_flow="row wrap", align_items="center")
        self.compose(
            self.state,
            self.progress,
            widgets.HBox([*self.buttons.values(), self.sure], layout=row),
            widgets.HBox([self.key, self.value, self.apply, self.undo], layout=row),
            self.preview,
            self.history,
            self.log,
        )

    # ---- what the user does

    @shows_errors
    def _command(self, action: str) -> None:
        self.sure.layout.display = "none"
        self.send(action)
        self.tell(f"{action} sent; the run answers at its next safe point", good=False)

    def _ask_stop(self) -> None:
        self.sure.layout.display = ""

    @shows_errors
    def _resume(self) -> None:
        self.tell("starting …", good=False)
        drive(self.run)
        self.tell("resumed from its newest checkpoint")
        self._ticker.wake()

    @shows_errors
    def _show_old(self) -> None:
        old = value_of(self.run.config(), self.key.value)
        self.value.value = yaml.safe_dump(old, default_flow_style=True).removesuffix("...\n").strip()
        self.preview.value = ""

    @shows_errors
    def _preview(self) -> None:
        config, key, value = self._wanted()
        old, new = value_of(config, key), value_of(changed(config, key, value), key)
        if old == new:
            self.preview.value = ""
            return
        self._say_preview(key, old, new, "predicting its effect …")
        self._effects.wake()

    @shows_errors
    def _apply(self) -> None:
        config, key, value = self._wanted()
        changed(config, key, value)  # refused here before it is sent, with the reason at the field
        self.send("set", key=key, value=value)
        self.tell(f"sent: {key} = {value}; waiting for the run", good=False)

    @shows_errors
    def _undo(self) -> None:
        mine = settings_changed(self.changes)
        if not mine:
            raise RefusedInput("nothing to undo: no setting was changed while this run trained")
        last = mine[-1]
        self.send("set", key=last["key"], value=last["old"])
        self.tell(f"sent: {last['key']} back to {last['old']}; waiting for the run", good=False)

    def _wanted(self) -> tuple[RunConfig, str, Any]:
        key, text = str(self.key.value), str(self.value.value)
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise RefusedInput(f"{key}: {text!r} is not YAML: {error}") from error
        return self.run.config(), key, value

    # ---- the thread that reads the folder

    def _tick_safely(self) -> bool:
        try:
            self._tick()
        except Exception as error:
            self.tell_error(error)
        return self.widget.comm is not None

    def _tick(self) -> None:
        while self._series.update():
            pass
        state = self.run.state()
        self._hear_answers()
        running = state == "running"
        paused = running and self._paused
        said = describe_progress("paused" if paused else state, self._series, self.run.reason())
        self._set(self.state, f"<b>{html.escape(said)}</b>{f' · {html.escape(self.run.driver())}' if running else ''}")
        total = self._series.total_steps or 0
        done = float(self._series.steps["step"][-1]) if len(self._series.steps) else 0.0
        self.progress.value = min(done / total, 1.0) if total else 0.0
        for name, each in self.buttons.items():
            wanted = {
                "pause": running and not paused,
                "continue": running and paused,
                "resume": not running and state != "imported",
            }
            each.disabled = not wanted.get(name, running)
        self._set(self.log, f'<div class="dflash-log">{html.escape(last_lines(self.run))}</div>')

    def _hear_answers(self) -> None:
        came = self._answers.new_events()
        for event in came:
            if event["event"] == "run_started":
                self._paused = False
                continue
            if event.get("accepted") and event.get("action") in ("pause", "continue"):
                self._paused = event["action"] == "pause"
            self.changes.append(event)
            sent = self.pending.pop(str(event.get("id")), None)
            if sent is None:
                continue
            if event.get("accepted"):
                self.tell(f"confirmed by the run at step {event.get('step')}: {sent}")
            else:
                self.tell_error(f"refused by the run: {sent}: {event.get('reason')}")
        if came:
            self._set(self.history, history_table(self.changes))

    def _set(self, place: widgets.HTML, text: str) -> None:
        if place.value != text:
            place.value = text

    # ---- the thread that predicts

    def _predict_safely(self) -> bool:
        if str(self.value.value).strip() and self.preview.value:
            try:
                self._predict()
            except DFlashError as error:
                self._set(self.preview, f'<div class="dflash-note">no prediction: {html.escape(str(error))}</div>')
            except Exception as error:
                self.tell_error(error)
        return self.widget.comm is not None

    def _predict(self) -> None:
        config, key, value = self._wanted()
        self._workload = self._workload or load_workload(config)
        effect = effect_of(config, key, value, self._workload)
        if (key, str(value)) == (self.key.value, str(self._wanted()[2])):
            self._say_preview(key, effect.old, effect.new, effect.sentence())

    def _say_preview(self, key: str, old: Any, new: Any, effect: str) -> None:
        self._set(self.preview, f'<div class="dflash-note">{html.escape(f"{key}: {old} → {new}")} · {html.escape(effect)}</div>')


def last_lines(run: RunFolder) -> str:
    """The run's last console lines; what its process printed when it never came to print one."""
    for path in (run.console_log, run.output_log):
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file:
                file.seek(max(path.stat().st_size - LOG_BYTES, 0))
                return "\n".join(file.read().decode("utf-8", errors="replace").splitlines()[-LOG_LINES:])
    return "no console line yet"


def history_table(changes: Sequence[dict[str, Any]], most: int = 8) -> str:
    """The newest changes, newest first."""
    rows = [
        [event.get("key") or event.get("action"), event.get("old"), event.get("new"), event.get("step"), event.get("who"),
         "yes" if event.get("accepted") else f"no: {event.get('reason')}"]
        for event in reversed(changes[-most:])
    ]  # fmt: skip
    return table_html(["change", "old", "new", "step", "by", "accepted"], rows)
