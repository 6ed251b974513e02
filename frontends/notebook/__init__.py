"""Training from a Jupyter kernel: `%load_ext hfdt`, then `%%hfdt -np 2` above a cell that calls `fit`.

The cell runs in the kernel's own namespace, as if the magic were not there. Only `fit` is patched while it runs, so the
model that the kernel holds is the one that is trained. Workers start with the cell and end with it.
"""
