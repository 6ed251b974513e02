"""A script without TensorFlow: the command's remaining time is the shim's."""

print("hi")
print("bench {}")  # for benchmarks/harness.py
