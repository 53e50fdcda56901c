"""JupyterLab views over `dflash`: thin widgets, no logic that could live in the engine."""
