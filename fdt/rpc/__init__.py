"""The messages and services of proto/fdt/rpc, as generated code."""
