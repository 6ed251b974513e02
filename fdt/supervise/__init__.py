"""Supervision of an engine's worker and server processes: start, watch, restart, end."""
