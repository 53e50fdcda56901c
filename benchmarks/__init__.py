"""Measured comparisons: each prints its table and says how to rerun it."""
