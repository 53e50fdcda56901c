"""From text in many shapes to a memory-mapped token dataset, and a sample corpus made on the spot."""
