"""What a run's events say: throughput changes and their causes, loss jumpiness, comparison. Frames in, verdicts out."""
