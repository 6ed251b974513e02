"""Capture of a `fit` call: its model, data and arguments, in a form that workers can read."""
