"""What stands around a run: configuration, the Python API, completion of command lines."""
