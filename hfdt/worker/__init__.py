"""A worker process: one rank, which trains its part of each global batch."""
