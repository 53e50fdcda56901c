"""What a run writes down while it goes on, and how to read it again."""
