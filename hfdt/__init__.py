"""HFDT: synchronous data-parallel training of an unmodified TensorFlow script by all-reduce."""
