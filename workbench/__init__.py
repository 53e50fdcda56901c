"""JupyterLab views over `dflash`: thin widgets, no logic that could live in the engine.

import workbench
workbench.app(data="tokens", config="run.yaml")          # everything, in tabs

workbench.LengthExplorer("tokens")                       # or one view at a time; each takes a model, and shows one widget
"""

from workbench.app import app
from workbench.batching_lab import BatchingLab
from workbench.length_explorer import LengthExplorer
from workbench.live_charts import LiveCharts
from workbench.post_mortem import PostMortem
from workbench.run_console import RunConsole
from workbench.run_launcher import RunLauncher
from workbench.run_table import RunTable

__all__ = ["BatchingLab", "LengthExplorer", "LiveCharts", "PostMortem", "RunConsole", "RunLauncher", "RunTable", "app"]
