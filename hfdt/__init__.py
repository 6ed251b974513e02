"""HFDT: synchronous data-parallel training of an unmodified TensorFlow script by all-reduce."""

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%hfdt` to an IPython shell: `%load_ext hfdt` calls this."""
    from frontends.notebook.cell_magic import register
    from hfdt.cli import main

    register(shell, main)
