"""Exactness: losses, gradients, states and metrics of ranks that add up to the global batch's, and its probe."""
