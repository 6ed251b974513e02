"""Runs that need no terminal: where they are noted, who keeps them, whether they live."""
