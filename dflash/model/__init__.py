"""Drafter, block attention, loss, and the capture of a frozen target's features."""
