"""The expected cost of a run: memory of a rank and time of a step, from short runs on real ranks and the traced step.

ranks.py    runs the captured job for a few steps on 1, 2, 4, 8 ranks, as far as this machine has cores for them
step.py     traces and times the step in this process: how activations and computing depend on the rows of a rank
estimate.py computes from both what was not measured, and what each option would change; it does no I/O
report.py   the lines of `hfdt inspect`
"""
