"""Detached runs, which need no terminal: their registry, their supervisor process, and whether they still run."""
