"""Replicated scripts: every rank runs the script, and each tensor that derives from divided rows has a placement."""
