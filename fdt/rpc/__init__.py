"""The messages and services of proto/fdt/rpc, as generated code, and the settings with which gRPC starts."""

import os

# The first hides messages about foreign handshakes. The second: at a fork, gRPC starts its threads in the child, too.
# `subprocess` with a `preexec_fn` closes their descriptors, and the child may end with SIGABRT (2 of 100 did).
_SETTINGS = {"GRPC_VERBOSITY": "ERROR", "GRPC_ENABLE_FORK_SUPPORT": "0"}


def settings() -> dict[str, str]:
    """Return the environment variables that gRPC reads as it starts; values that the user has set remain."""
    return {name: os.environ.get(name, value) for name, value in _SETTINGS.items()}


def set_up() -> None:
    """Set the environment variables that gRPC reads as it starts, for this process and its children."""
    os.environ.update(settings())
