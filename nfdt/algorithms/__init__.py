"""One algorithm per file; the file's name is the rule's (nfdt/algorithm_registry.py)."""
