"""HFDT for scripts with training loops of their own: see client_shim/replica."""
