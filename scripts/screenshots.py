"""Pictures of every notebook as it looks in JupyterLab, for the README and for looking at: `make screenshots`.

Each notebook is run top to bottom in a real JupyterLab in headless Chromium, in one folder so that the sample data is made once, and taken
at 900 pixels of notebook width, light and dark. Needs chromium; takes some minutes, for the notebooks train.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.browser.lab import CHROMIUM, cell_errors, chromium, has_run_all, jupyter_lab, open_notebook, run_all

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
WIDTH = 980  # 900 of notebook and JupyterLab's two side bars
MOST_SECONDS = 1_200
_ALL_DRAWN = "() => [...document.querySelectorAll('.dflash-chart')].every(e => e.dataset.drawn)"
_FULL_HEIGHT = """() => {
    const cells = [...document.querySelectorAll('.jp-Notebook .jp-Cell')].filter(e => e.offsetParent);
    return Math.ceil(cells.reduce((sum, e) => sum + e.getBoundingClientRect().height + 12, 0)) + 160
}"""


def main() -> int:
    """Take the pictures; returns 1 if a notebook had an error."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("names", nargs="*", help="notebooks; all if none is named")
    arguments.add_argument("--out", type=Path, default=Path("screenshots-new"), help="folder for the pictures")
    chosen = arguments.parse_args()
    if CHROMIUM is None:
        print("no chromium on this machine: apt-get install chromium", file=sys.stderr)
        return 1
    names = chosen.names or sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
    chosen.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        root, work = Path(folder) / "root", Path(folder) / "work"
        root.mkdir()
        work.mkdir()
        with jupyter_lab(root, work) as address, chromium(width=WIDTH, height=1_400) as page:
            for name in names:
                shutil.copy(NOTEBOOKS / name, root)
                started = time.monotonic()
                open_notebook(page, address, name)
                run_all(page)
                while not has_run_all(page) and time.monotonic() - started < MOST_SECONDS:
                    page.wait_for_timeout(500)
                page.wait_for_timeout(5_000)  # threads draw on after the last cell
                page.set_viewport_size({"width": WIDTH, "height": min(page.evaluate(_FULL_HEIGHT), 8_000)})
                for theme in ("Light", "Dark"):
                    page.evaluate(
                        f"() => window.jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})"
                    )
                    page.wait_for_timeout(2_500)
                    page.wait_for_function(_ALL_DRAWN)
                    page.screenshot(path=chosen.out / f"{Path(name).stem}-{theme.lower()}.png")
                errors = cell_errors(page) + page.errors
                failed += bool(errors)
                print(f"{name}: {time.monotonic() - started:.0f} s", *errors, sep="\n  ")
                page.errors.clear()
                page.set_viewport_size({"width": WIDTH, "height": 1_400})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
