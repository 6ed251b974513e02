"""Asynchronous algorithms, one per file; the file's name is the algorithm's name (nfdt/algorithm_registry.py)."""
