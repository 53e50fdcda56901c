"""Runs on disk: their folders, their processes, and how to start one in the background."""
