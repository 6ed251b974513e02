"""A script without TensorFlow: what is left of the command is the shim's."""

print("hi")
print("bench {}")  # for benchmarks/harness.py
