"""Pages that open offline: any charts on one page, and the post-mortem of a run."""
