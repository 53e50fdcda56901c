"""What a drafter is trained to do: one file an objective. See docs/objectives.md."""
