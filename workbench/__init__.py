"""JupyterLab views over `dflash`: thin widgets, no logic that could live in the engine."""

from workbench.length_explorer import LengthExplorer
from workbench.live_charts import LiveCharts
from workbench.run_console import RunConsole

__all__ = ["LengthExplorer", "LiveCharts", "RunConsole"]
