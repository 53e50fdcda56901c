"""Edit a config with each value checked at its field, see whether the run fits this machine, and start it in the background.

Fields are made from the config's own definition, so a setting added there is here at once. Nothing is started that the examination refuses.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import yaml

from dflash.config import RunConfig, Section, build_config, dump_config, load_config
from dflash.doctor import Examination, examine
from dflash.errors import DFlashError, RefusedInput
from dflash.runs.folder import RunFolder
from dflash.runs.launch import launch
from workbench.tables import table_html
from workbench.view import View, button, shows_errors
from workbench.worker import Worker

SHOWN = ("data", "target", "drafter", "batching", "pool", "pipeline", "optim", "telemetry", "evaluation", "checkpoint")


class RunLauncher(View):
    """Start a run.

    Args:
        config: a config, or the YAML file of one.
        runs: folder the run is made in.
        on_launch: called with the run's folder once it has started.
    """

    def __init__(
        self, config: RunConfig | str | Path, *, runs: str | Path = "runs", on_launch: Callable[[RunFolder], None] | None = None
    ) -> None:
        super().__init__()
        self.start = config if isinstance(config, RunConfig) else load_config(config)
        self.base = config if isinstance(config, str | Path) else None
        self.runs = Path(runs)
        self.run: RunFolder | None = None
        self.faults: dict[str, str] = {}
        self._on_launch = on_launch
        self._tree: dict[str, Any] = self.start.model_dump(mode="json")
        self.worker = Worker("run launcher", self.tell_error)
        self._build()
        self._tell_command()

    @property
    def config(self) -> RunConfig:
        """The config as edited.

        Raises:
            RefusedInput: a field holds a value that can't be used.
        """
        if self.faults:
            raise RefusedInput("mend these first: " + "; ".join(self.faults.values()))
        return build_config(self._tree, place="config")

    def set(self, key: str, value: Any) -> None:
        """Set `section.name`, as if it were typed into its field."""
        self.fields[key].value = _as_text(value)

    def close(self) -> None:
        """Take the view off the page; a run that was started goes on."""
        self.worker.close()
        super().close()

    def _build(self) -> None:
        self.fields: dict[str, widgets.Text] = {}
        self._marks: dict[str, widgets.HTML] = {}
        pages = [widgets.VBox(self._page(section)) for section in SHOWN]
        self.sections = widgets.Tab(children=pages, titles=SHOWN)
        self.name = widgets.Text(placeholder="name; empty: by the time", layout={"width": "240px"})
        self.check = button("check", self._check, tooltip="memory, devices, data: what the run needs and what is here")
        self.go = button("launch", self._launch, style="primary")
        self.save = button("save config", self._save)
        self.path = widgets.Text(value="run.yaml", layout={"width": "160px"})
        self.command, self.found = widgets.HTML(), widgets.HTML()
        self.name.observe(lambda _change: self._tell_command(), names="value")
        row = widgets.Layout(flex_flow="row wrap", align_items="center")
        self.compose(
            self.sections,
            self.command,
            widgets.HBox([self.name, self.check, self.go, self.path, self.save], layout=row),
            self.found,
        )

    def _page(self, section: str) -> list[widgets.Widget]:
        model = type(getattr(self.start, section))
        assert issubclass(model, Section)
        return [self._field(f"{section}.{name}", field.description or "") for name, field in model.model_fields.items()]

    def _field(self, key: str, description: str) -> widgets.Widget:
        section, _, name = key.partition(".")
        field = widgets.Text(
            value=_as_text(self._tree[section][name]), description=name, continuous_update=False, tooltip=description,
            style={"description_width": "150px"}, layout={"width": "360px"},
        )  # fmt: skip
        mark = widgets.HTML(f'<div class="dflash-note">{html.escape(description)}</div>', layout={"flex": "1 1 260px"})
        field.observe(lambda change: self._edit(key, change["new"], description), names="value")
        self.fields[key], self._marks[key] = field, mark
        return widgets.HBox([field, mark], layout={"flex_flow": "row wrap", "align_items": "center"})

    # ---- what the user does

    @shows_errors
    def _edit(self, key: str, text: str, description: str) -> None:
        section, _, name = key.partition(".")
        before = self._tree[section][name]
        kind, said = "note", description
        try:
            self._tree[section][name] = _from_text(text)
            build_config(self._tree, place="config")
            self.faults.pop(key, None)
        except DFlashError as error:
            self._tree[section][name] = before
            self.faults[key] = said = str(error).removeprefix("config: ")
            kind = "error"
        self._marks[key].value = f'<div class="dflash-{kind}">{html.escape(said)}</div>'
        self._tell_command()

    @shows_errors
    def _check(self) -> None:
        config = self.config
        self.found.value = '<div class="dflash-note">examining …</div>'
        self.worker.submit("check", partial(self._examine, config))

    @shows_errors
    def _launch(self) -> None:
        config = self.config
        self.go.disabled = True
        self.tell("examining and starting …", good=False)
        self.worker.submit("launch", partial(self._start, config, self.name.value.strip() or None))

    @shows_errors
    def _save(self) -> None:
        Path(self.path.value).write_text(dump_config(self.config), encoding="utf-8")
        self.base = self.path.value
        self.start = self.config
        self._tell_command()
        self.tell(f"{self.path.value} written")

    # ---- on the thread

    def _examine(self, config: RunConfig) -> Examination:
        found = examine(config, runs=self.runs)
        lines = [f'<div class="dflash-error">{html.escape(fault)}</div>' for fault in found.faults]
        lines += [f'<div class="dflash-note">warning: {html.escape(warning)}</div>' for warning in found.warnings]
        verdict = "" if found.faults else '<div class="dflash-good">it fits this machine</div>'
        self.found.value = verdict + "".join(lines) + table_html(["what", "needs", "has", "note"], list(found.lines()))
        return found

    def _start(self, config: RunConfig, name: str | None) -> None:
        try:
            self._examine(config).refuse_faults()
            self.run = launch(config, runs=self.runs, name=name)
        finally:
            self.go.disabled = False
        self.tell(f"{self.run.path} started; it goes on when this kernel ends")
        if self._on_launch is not None:
            self._on_launch(self.run)

    def _tell_command(self) -> None:
        self.command.value = (
            f'<div class="dflash-note">the same from a terminal: <code>{html.escape(self.command_line())}</code></div>'
        )

    def command_line(self) -> str:
        """The command that starts the same run in the background."""
        first = str(self.base) if self.base is not None else "run.yaml"
        before = self.start.model_dump(mode="json")
        parts = ["dflash", "train", first]
        for section in SHOWN:
            for name, value in self._tree[section].items():
                if value != before[section][name]:
                    parts += ["--set", f"{section}.{name}={_as_text(value)}"]
        parts += ["--name", self.name.value.strip()] if self.name.value.strip() else []
        parts += ["--runs", str(self.runs)] if str(self.runs) != "runs" else []
        return shlex.join([*parts, "--background"])


def _as_text(value: Any) -> str:
    """A setting as one line of YAML; nothing for an empty one."""
    if value is None:
        return ""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def _from_text(text: str) -> Any:
    try:
        value = yaml.safe_load(text) if text.strip() else None
    except yaml.YAMLError as error:
        raise RefusedInput(f"{text!r} is not YAML: {error}") from error
    try:
        return float(value) if isinstance(value, str) else value  # YAML 1.1 reads 3e-4 as text
    except ValueError:
        return value
