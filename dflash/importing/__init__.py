"""Logs of this trainer and of others -> runs that open in every chart and report."""
