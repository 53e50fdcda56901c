"""Importable trainer of DFlash drafters; see docs/architecture.md for the rooms."""
