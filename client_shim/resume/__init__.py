"""Checkpoints of a run in the client's process, and resumption from them after an interruption."""
