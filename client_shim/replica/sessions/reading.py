"""Agreement on the numbers that the script reads from a session's run: every rank gets rank 0's."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import of_script

_BETWEEN = ("/tensorflow/python/framework/", "/tensorflow/python/autograph/", "/fdt/patches.py", "/replica/sessions")


def read_by_script() -> bool:
    """Return whether the script itself called `run` or `eval`, in the main thread.

    Hooks and savers read on their own rank only.
    """
    frame: Any = sys._getframe(2)
    while frame is not None and any(part in frame.f_code.co_filename for part in _BETWEEN):
        frame = frame.f_back
    asked = frame is not None and of_script(frame.f_code.co_filename)
    return asked and threading.current_thread() is threading.main_thread()


def agreed_numbers(result: Any, rank_0s: Callable[[str, Any], Any]) -> Any:
    """Return `result` with rank 0's numbers; arrays and other values stay."""
    leaves = tf.nest.flatten(result)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (np.floating, np.integer, np.bool_))]
    if not places:
        return result
    agreed = rank_0s("what a session's run gives", [_plain(leaves[i]) for i in places])
    for i, number in zip(places, agreed, strict=True):
        leaves[i] = type(leaves[i])(number)
    return tf.nest.pack_sequence_as(result, leaves)


def _plain(number: Any) -> Any:
    return float(number) if isinstance(number, np.floating) else number.item()
