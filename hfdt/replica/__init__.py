"""HFDT for replicated scripts, which have training loops of their own; see client_shim/replica."""
