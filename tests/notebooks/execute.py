"""Run a notebook top to bottom in a folder of its own, as a user without a browser would."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def execute(name: str, folder: Path, *, cell_seconds: int = 600):
    """Execute `notebooks/<name>` with `folder` as its working directory; returns the executed notebook. A cell's error is raised."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = NotebookClient(notebook, timeout=cell_seconds, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()
    return notebook


def texts(notebook) -> str:
    """Everything the cells put out, as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(str(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in outputs)
