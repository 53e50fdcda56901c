"""Handing the drafter to serving: export to the released layout, and speculative decoding that shows what it is worth."""
