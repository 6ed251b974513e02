"""Scripts that train by loops of their own: every rank runs the script, and gradients meet at the optimizer's apply.

look.py: which scripts are such; steps.py: which of their loops and functions train; agreement.py: ranks read the same;
scratch.py: only rank 0 leaves something behind.
"""
