"""NFDT: asynchronous training of an unmodified TensorFlow script by parameter servers."""

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%nfdt` to an IPython shell: `%load_ext nfdt` calls this."""
    from frontends.notebook.cell_magic import register
    from nfdt.cli import main

    register(shell, main)
