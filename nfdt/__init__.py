"""NFDT: asynchronous training of an unmodified TensorFlow script by parameter servers."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fdt.errors import CaptureError, ScriptFailed, UsageError, UserError, WorkerError

if TYPE_CHECKING:
    from frontends.api import RunResult

__all__ = ["CaptureError", "ScriptFailed", "UsageError", "UserError", "WorkerError", "fit", "run"]


def run(
    script: str | os.PathLike[str] | None = None,
    *,
    np: int | None = None,
    args: Sequence[object] = (),
    check: bool = True,
    **options: Any,
) -> "RunResult":
    """Run a script on workers, asynchronously, as `nfdt run` does; return when it has ended.

    The script runs in a process of its own. Ctrl-C ends it, and so does the end of this process. What it prints is
    printed here, also in a notebook. It has no standard input.

    Args:
        script: The script's path; or none, and module="package.module".
        np: The number of workers; None: that of the configuration, or 2.
        args: The script's arguments.
        check: Raise ScriptFailed where the script's exit code is not 0.
        options: Any other option of `nfdt run`: log_dir="logs", algorithm="ssp", profile="cluster".

    Returns:
        The exit code, the histories of its `fit` calls, and the records.

    Raises:
        UsageError: An option is wrong.
        CaptureError: The script's training cannot be sent to workers.
        WorkerError: A worker was lost.
        ScriptFailed: The script ended with another exit code than 0.
    """
    from frontends.api import run as run_script

    return run_script("nfdt", script, args, {"np": np, **options}, check=check)


def fit(model: Any, *data: Any, np: int | None = None, **given: Any) -> Any:
    """Train a compiled Keras model on workers, asynchronously: `model.fit(*data, **given)`, on `np` workers.

    The model is trained in place. Workers are started for the call and ended with it.

    Args:
        model: A compiled model of Keras 3 or tf_keras.
        data: x and y, as for Keras's `fit`.
        np: The number of workers; None: that of the configuration, or 2.
        given: Arguments of Keras's `fit` (epochs, batch_size, callbacks, ...), and options of `nfdt run` that concern
            no script: log_dir="logs", algorithm="ssp", profile="cluster".

    Returns:
        Keras's History.

    Raises:
        UsageError: An option is wrong, or another call has not returned.
        CaptureError: The training cannot be sent to workers.
        WorkerError: A worker was lost.
    """
    from frontends.fitting import fit as fit_model

    return fit_model("nfdt", model, data, {"np": np, **given})


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%nfdt` to an IPython shell: `%load_ext nfdt` calls this."""
    from frontends.notebook.cell_magic import register
    from nfdt.cli import main

    register(shell, main)
