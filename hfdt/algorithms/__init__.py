"""One synchronous algorithm a file."""
