"""JupyterLab views over `dflash`: thin widgets, no logic that could live in the engine."""

from workbench.length_explorer import LengthExplorer
from workbench.live_charts import LiveCharts

__all__ = ["LengthExplorer", "LiveCharts"]
