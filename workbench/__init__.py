"""JupyterLab views over `dflash`: thin widgets, no logic that could live in the engine."""

from workbench.live_charts import LiveCharts

__all__ = ["LiveCharts"]
