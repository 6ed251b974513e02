"""Replicated scripts: every rank runs a script with training loops of its own.

Gradients are exchanged where the optimizer applies them.

detection.py: which scripts are replicated; steps.py: which of their loops and functions train; agreement.py: all ranks
read the same values; scratch.py: only rank 0's files remain.
"""
