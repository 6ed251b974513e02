"""Elastic workers, which join a run: `nfdt run --join-at` accepts them, `nfdt join` adds them.

They are members like all others (fdt/supervise/processes.py), with the same module and the same sessions. The
settings that a launcher would pass arrive over a separate call with a token of its own (rendezvous.py, join.py).
"""
