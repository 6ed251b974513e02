"""Replicated scripts: every rank runs the script, and each tensor that comes of divided rows carries a placement."""
