"""Agreement on unseeded random numbers: replacements of the system's, NumPy's and TensorFlow's entropy.

Each line of the script has a stream of its own, derived from the run's seed. So a rank that runs one line more often,
in a thread or in its own steps, does not shift the numbers of other lines.
"""

import contextlib
import functools
import hashlib
import inspect
import os
import random
import secrets
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import wrapt

from client_shim.replica.steps import of_script, script_frames
from fdt.patches import replace

_GIVING = tuple(inspect.getfile(module) for module in (random, secrets, uuid))
_STATE_BITS = 19968  # state size of a Mersenne twister, by which Python seeds it, too


class Streams:
    """Streams of random bytes, one for each line of the script, all derived from the run's `seed`."""

    def __init__(self, seed: int) -> None:
        self._seed, self._process = seed, os.getpid()
        self._asked: Counter[str] = Counter()  # number of draws by line
        self._lock = threading.Lock()

    def bytes(self, count: int) -> bytes | None:
        """Return the next `count` bytes of the stream of the script's line that runs in this thread.

        Return None where no line of the script runs, and in a child process, because copies of a process are to differ.
        """
        frame = next(script_frames(), None)
        if frame is None or os.getpid() != self._process:
            return None
        line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        with self._lock:
            self._asked[line] += 1
            number = self._asked[line]
        return hashlib.shake_256(f"{self._seed} {line} {number}".encode()).digest(count)

    def bits(self, count: int) -> int | None:
        """Return an integer of `count` random bits, or None as `bytes` does."""
        found = self.bytes(-(-count // 8))
        return None if found is None else int.from_bytes(found, "little") >> (-count % 8)


def shared(stack: contextlib.ExitStack, seed: int) -> None:
    """Replace the sources of unseeded random numbers until `stack` closes: every rank draws the same.

    Args:
        stack: Undoes the patches when it closes.
        seed: The run's seed.
    """
    streams = Streams(seed)
    of_system = functools.partial(_of_system, os.urandom, streams)
    for owner, name in ((os, "urandom"), (os, "getrandom"), (random, "_urandom")):
        replace(stack, owner, name, of_system)
    replace(stack, uuid, "uuid1", functools.partial(_uuid1, uuid.uuid1, streams))
    numpys = vars(np.random.bit_generator)["randbits"]
    replace(stack, np.random.bit_generator, "randbits", functools.partial(_bits, numpys, streams))
    replace(stack, random.Random, "seed", _seeding(random.Random.seed, streams))
    replace(stack, random, "seed", functools.partial(_seeding_global, random.seed, streams))
    wrapt.register_post_import_hook(functools.partial(_tensorflows, stack, streams), "tensorflow")


def _asked_by_script() -> bool:
    """Return whether the script itself draws, also through Python's own `random`, `secrets` or `uuid`.

    Libraries keep their own entropy: the names and keys that they make of it have to differ between ranks.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in _GIVING:
        frame = frame.f_back
    return of_script(frame.f_code.co_filename)


def _of_system(original: Callable[[int], bytes], streams: Streams, size: int, flags: int = 0) -> bytes:
    found = streams.bytes(size) if _asked_by_script() else None
    return original(size) if found is None else found


def _bits(original: Callable[[int], int], streams: Streams, count: int) -> int:
    """Replace the entropy that seeds all of NumPy's generators, `RandomState()` and `seed()`, also in libraries."""
    found = streams.bits(count)
    return original(count) if found is None else found


def _uuid1(original: Callable[..., uuid.UUID], streams: Streams, *args: Any, **kwargs: Any) -> uuid.UUID:
    found = streams.bytes(16) if _asked_by_script() else None
    return original(*args, **kwargs) if found is None else uuid.UUID(bytes=found, version=1)


def _seeding(original: Any, streams: Streams) -> Any:
    @functools.wraps(original)
    def seed(generator: Any, a: Any = None, *args: Any, **kwargs: Any) -> None:
        if a is None and _asked_by_script():
            a = streams.bits(_STATE_BITS)
        original(generator, a, *args, **kwargs)

    return seed


def _seeding_global(original: Any, streams: Streams, a: Any = None, *args: Any, **kwargs: Any) -> None:
    original(streams.bits(_STATE_BITS) if a is None and _asked_by_script() else a, *args, **kwargs)


# -- TensorFlow --------------------------------------------------------------------------------------------------------
def _tensorflows(stack: contextlib.ExitStack, streams: Streams, _: Any) -> None:
    from fdt.compat.tensorflow import gen_dataset_ops, gen_experimental_dataset_ops, gen_stateful_random_ops

    original = gen_stateful_random_ops.non_deterministic_ints
    ints = functools.partial(_non_deterministic_ints, original, streams)
    replace(stack, gen_stateful_random_ops, "non_deterministic_ints", ints)
    for module in (gen_dataset_ops, gen_experimental_dataset_ops):
        for name, function in list(vars(module).items()):
            if inspect.isfunction(function) and "deterministic" in inspect.signature(function).parameters:
                replace(stack, module, name, _in_order(function))


def _non_deterministic_ints(original: Any, streams: Streams, shape: Any, dtype: Any = None, name: Any = None) -> Any:
    import tensorflow as tf

    dtype = tf.as_dtype(dtype or tf.int64)
    size = int(np.prod(np.asarray(shape, int)))
    found = streams.bytes(size * dtype.size)
    if found is None:
        return original(shape, dtype, name)
    return tf.constant(np.frombuffer(found, dtype.as_numpy_dtype).reshape(shape), name=name)


def _in_order(operation: Any) -> Any:
    """Return a dataset operation that yields its elements in one order, even where the script allows any order."""
    signature = inspect.signature(operation)

    @functools.wraps(operation)
    def made(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["deterministic"] = "true"
        return operation(*bound.args, **bound.kwargs)

    return made
