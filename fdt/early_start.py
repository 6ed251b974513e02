"""The early start of a member: its preparation while the script still loads, so that the first job need not wait."""

import contextlib
import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fdt.environment import lasting, local_rank, share_gpus

ROOM_BYTES = 64 << 10  # more than AutoGraph writes into one file
# Keras imports them if they are installed, for plots and for scikit-learn's interface. They are a third of its import.
UNUSED = ("matplotlib", "sklearn")


def warm_up(run_dir: Path, *, computes: bool) -> None:
    """Import TensorFlow and Keras, select the GPU, and start the runtime, which TensorFlow starts at first use.

    Args:
        run_dir: The directory for AutoGraph's generated files.
        computes: Whether this is a worker, which uses a GPU of its host if there are any; a server uses none.

    Raises:
        ImportError: TensorFlow or Keras is missing.
    """
    with lasting(), hidden(UNUSED):
        import tensorflow as tf

        keep_generated_code(run_dir)
        if computes:
            share_gpus(tf, local_rank())
        else:
            tf.config.set_visible_devices([], "GPU")
        importlib.import_module("tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "keras")
        tf.function(lambda x: x + 1)(tf.constant(1.0))


@contextlib.contextmanager
def hidden(packages: Sequence[str]) -> Iterator[None]:
    """Make an import of any of `packages` within raise ImportError; those that are imported already stay."""
    absent = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: as if it were not installed
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def keep_generated_code(directory: Path) -> None:
    """Make AutoGraph write its files into `directory`. It removes them at a normal exit, but members are killed."""
    from fdt.compat.graphs import loader

    if directory.is_dir():  # else: a run on another host
        loader.tempfile = SimpleNamespace(NamedTemporaryFile=functools.partial(_file_with_room, directory))


def _file_with_room(directory: Path, **words: Any) -> Any:
    """Return a named temporary file in `directory`, or in the default directory if `directory` has no room."""
    file: Any = tempfile.NamedTemporaryFile(**{**words, "dir": directory})  # noqa: SIM115
    try:
        os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
        os.ftruncate(file.fileno(), 0)
        return file
    except OSError:
        file.close()
        Path(file.name).unlink(missing_ok=True)
        return tempfile.NamedTemporaryFile(**words)  # noqa: SIM115
