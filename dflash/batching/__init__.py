"""Lengths to batches: planner, figures of a plan, boundaries. numpy, numba and polars; importing it never imports torch."""
