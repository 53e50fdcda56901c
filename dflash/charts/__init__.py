"""Plotly figures: pure functions of frames, used by widgets and reports alike."""
