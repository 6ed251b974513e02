"""What a member does while the script still loads, so that its first job need not wait for it."""

import contextlib
import functools
import gc
import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fdt.environment import local_rank, share_gpus

ROOM_BYTES = 64 << 10  # more than AutoGraph writes into one file


def warm_up(run_dir: Path, *, computes: bool) -> None:
    """Import TensorFlow and Keras, settle who has which GPU, and start the runtime, which starts at first use.

    `computes`: a worker, which gets a GPU of its host where there are any; a server gets none. Raises ImportError.
    """
    with lasting():
        import tensorflow as tf

        keep_generated_code(run_dir)
        if computes:
            share_gpus(tf, local_rank())
        else:
            tf.config.set_visible_devices([], "GPU")
        importlib.import_module("tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "keras")
        tf.function(lambda x: x + 1)(tf.constant(1.0))


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """What is made within lives as long as the process: garbage is not looked for among it, now or later.

    TensorFlow's 400,000 objects would be looked through eight times while they come, a second in all (measured).
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def keep_generated_code(directory: Path) -> None:
    """AutoGraph's generated files go there. It removes them when a process ends by itself; a member is ended."""
    from tensorflow.python.autograph.pyct import loader  # no public hook

    if directory.is_dir():  # else: a run on another host
        loader.tempfile = SimpleNamespace(NamedTemporaryFile=functools.partial(_file_with_room, directory))


def _file_with_room(directory: Path, **words: Any) -> Any:
    """A named temporary file in `directory`, or where such files are by default if that has no room."""
    file: Any = tempfile.NamedTemporaryFile(**{**words, "dir": directory})  # noqa: SIM115
    try:
        os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
        os.ftruncate(file.fileno(), 0)
        return file
    except OSError:
        file.close()
        Path(file.name).unlink(missing_ok=True)
        return tempfile.NamedTemporaryFile(**words)  # noqa: SIM115
