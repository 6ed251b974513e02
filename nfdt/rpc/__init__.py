"""The messages and services of proto/nfdt/rpc, as generated code."""
