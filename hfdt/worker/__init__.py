"""A worker process: one rank, which trains on its part of each global batch."""
