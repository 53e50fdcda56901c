"""A real JupyterLab and a real Chromium: start both, open a notebook, run its cells, look at the charts' data.

Everything is driven by JupyterLab's own commands, never by clicks on its menus, and looked at as data, never as pixels.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
_SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none", "scrollPastEnd": False},
    "notebook-extension/panel": {},
}
_FIND = (
    "Object.values([...document.querySelectorAll('.dflash-chart')]).filter(e => e.dataset.name === name && e.offsetParent).at(-1)"
)


@contextmanager
def jupyter_lab(root: Path, work: Path, *, dark: bool = False):
    """A JupyterLab that serves `root` and keeps its own files in `work`; yields its address."""
    settings = work / "settings" / "@jupyterlab"
    themes = {"apputils-extension/themes": {"theme": "JupyterLab Dark" if dark else "JupyterLab Light"}}
    for name, values in {**_SETTINGS, **themes}.items():
        place = settings / f"{name}.jupyterlab-settings"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(values))
    port = _free_port()
    own = {
        "JUPYTERLAB_SETTINGS_DIR": settings.parent,
        "JUPYTERLAB_WORKSPACES_DIR": work / "workspaces",
        "JUPYTER_CONFIG_DIR": work / "config",
        "JUPYTER_RUNTIME_DIR": work / "runtime",
        "IPYTHONDIR": work / "ipython",
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
        "--IdentityProvider.token=", f"--ServerApp.root_dir={root}", "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    with (work / "lab.log").open("wb") as log:
        environment = {**os.environ, **{key: str(value) for key, value in own.items()}}
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        address = f"http://127.0.0.1:{port}"
        try:
            _wait_for_answer(f"{address}/api", server, work / "lab.log")
            yield address
        finally:
            server.terminate()
            server.wait(timeout=30)


@contextmanager
def chromium(*, width: int = 980, height: int = 1200):
    """A page of a headless Chromium; console messages of type error are kept in `page.errors`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.errors = []
        page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
        page.set_default_timeout(120_000)
        try:
            yield page
        finally:
            browser.close()


def write_notebook(path: Path, cells: list[str]) -> None:
    """A notebook of code cells for the Python kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, path)


def open_notebook(page: Page, address: str, name: str) -> None:
    """Open a notebook alone on the page, with its kernel ready."""
    page.goto(f"{address}/doc/tree/{name}?reset")
    page.wait_for_function("() => window.jupyterapp")
    page.evaluate("() => window.jupyterapp.restored")
    page.wait_for_function(
        """() => { const widget = window.jupyterapp.shell.currentWidget;
                   return widget?.sessionContext?.session?.kernel?.status === 'idle' && widget.content.widgets.length > 0 }"""
    )
    page.evaluate("() => { window.jupyterapp.shell.collapseLeft?.(); window.jupyterapp.shell.collapseRight?.() }")


def run_all(page: Page) -> None:
    """Start all cells; returns at once."""
    page.evaluate("() => { void window.jupyterapp.commands.execute('notebook:run-all-cells') }")


def run_cell(page: Page, source: str) -> None:
    """Append a cell with this source and start it."""
    page.evaluate(
        """async (source) => {
            const app = window.jupyterapp, notebook = app.shell.currentWidget.content;
            notebook.activeCellIndex = notebook.widgets.length - 1;
            await app.commands.execute('notebook:insert-cell-below');
            notebook.activeCell.model.sharedModel.setSource(source);
            void app.commands.execute('notebook:run-cell');
        }""",
        source,
    )


def restart_kernel(page: Page) -> None:
    """Restart the kernel without asking, and wait until it is idle."""
    page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart() }")
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'")


def points(page: Page, chart: str) -> int:
    """How many points all traces of a chart hold as drawn; 0 before it is drawn."""
    return page.evaluate(
        f"(name) => {{ const el = {_FIND}; const plot = el?.querySelector('.js-plotly-plot');"
        " return (plot?._fullData ?? []).reduce((sum, t) => sum + (t.x?.length ?? 0), 0) }",
        chart,
    )


def wait_for_points(page: Page, chart: str, least: int, seconds: float = 120.0) -> int:
    """Wait until a chart holds at least so many points."""
    deadline = time.monotonic() + seconds
    while (found := points(page, chart)) < least:
        if time.monotonic() > deadline:
            raise AssertionError(
                f"chart {chart} has {found} points after {seconds} s, expected {least}; page errors: {page.errors[-3:]}"
            )
        page.wait_for_timeout(300)
    return found


def cell_errors(page: Page) -> list[str]:
    """What cells of the notebook raised."""
    return page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets
                 .flatMap(cell => cell.model.type === 'code' ? cell.model.outputs.toJSON() : [])
                 .filter(output => output.output_type === 'error').map(output => `${output.ename}: ${output.evalue}`)"""
    )


def has_run_all(page: Page) -> bool:
    """Whether every code cell has been run to its end (or the first error stopped them) and the kernel has nothing to do."""
    return page.evaluate(
        """() => {
            const widget = window.jupyterapp.shell.currentWidget;
            const cells = widget.content.widgets.map(cell => cell.model).filter(m => m.type === 'code' && m.sharedModel.getSource().trim());
            const failed = cells.some(m => m.outputs.toJSON().some(output => output.output_type === 'error'));
            const idle = widget.sessionContext.session.kernel.status === 'idle';
            return idle && (failed || cells.every(m => m.executionCount !== null));
        }"""
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _wait_for_answer(address: str, server: subprocess.Popen, log: Path, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise AssertionError(f"JupyterLab ended at once:\n{log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"no answer from JupyterLab in {seconds} s:\n{log.read_text()[-2000:]}")
