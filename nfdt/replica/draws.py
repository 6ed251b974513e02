"""Detection of random numbers that a step draws from the script's generators: every worker must draw equally many."""

import contextlib
import pickle
import random
from collections.abc import Iterable
from typing import Any

import numpy as np

from fdt.compat.eager import context


class Draws:
    """State of the random generators that a step may use: NumPy's and Python's global ones, and those in `values`.

    `values` are the values that the step reads. TensorFlow's generators are a worker's own and not included.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        kinds = np.random.Generator, np.random.RandomState, random.Random
        self._generators = [value for value in values if isinstance(value, kinds)]
        self._before = self._states()

    def drawn(self) -> bool:
        """Return whether a number was drawn since this object was created."""
        return self._states() != self._before

    def _states(self) -> bytes:
        states = [np.random.get_state(), random.getstate(), *map(_state, self._generators)]
        return pickle.dumps(states)


def apart(seed: str, stack: contextlib.ExitStack) -> None:
    """Seed TensorFlow's eager operations by `seed` until `stack` closes.

    Later draws, such as the order of a shuffled dataset, stay equal on workers that did not execute this code.
    """
    known = context.context()
    if getattr(known, "_rng", None) is not None:  # the script has set a seed
        stack.callback(setattr, known, "_rng", known._rng)
        known._rng = random.Random(seed)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()
