"""NFDT: asynchronous training of an unmodified TensorFlow script by parameter servers."""
