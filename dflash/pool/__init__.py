"""The bounded pool of ready features, and the pull policies. Standard library only."""
