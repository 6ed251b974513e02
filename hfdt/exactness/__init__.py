"""Exactness: losses, gradients, states and metrics of ranks that add up to the global batch's, and the probe of
them.
"""
