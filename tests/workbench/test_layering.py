"""Only workbench/ knows widgets, and what explores and reports needs no torch."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDGETS = {"ipywidgets", "anywidget", "traitlets", "IPython", "workbench"}


def imported(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).split(".")[0])
    return names


def test_the_engine_imports_no_widgets_and_nothing_of_the_workbench():
    offenders = {
        str(path.relative_to(ROOT)): found for path in (ROOT / "dflash").rglob("*.py") if (found := imported(path) & WIDGETS)
    }
    assert offenders == {}


def test_exploring_and_watching_need_no_torch():
    modules = "workbench, dflash.report.dashboard, dflash.charts.run, dflash.charts.explore, dflash.predict.changes, dflash.telemetry.series"
    code = f"import sys, {modules}; print([name for name in ('torch', 'ray', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
