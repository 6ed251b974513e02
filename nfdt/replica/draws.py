"""Random numbers that a step draws from the script's generators: every worker is to draw as many."""

import contextlib
import pickle
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
from tensorflow.python.eager import context


class Draws:
    """`values`: what the step reads. Of TensorFlow's generators it says nothing: these are a worker's own."""

    def __init__(self, values: Iterable[Any]) -> None:
        kinds = np.random.Generator, np.random.RandomState, random.Random
        self._generators = [value for value in values if isinstance(value, kinds)]
        self._before = self._states()

    def drawn(self) -> bool:
        """Has any number been drawn since this was made?"""
        return self._states() != self._before

    def _states(self) -> bytes:
        states = [np.random.get_state(), random.getstate(), *map(_state, self._generators)]
        return pickle.dumps(states)


def apart(seed: str, stack: contextlib.ExitStack) -> None:
    """Until `stack` closes TensorFlow's eager operations draw by `seed`: what is drawn behind it, the order of a
    shuffled dataset, is the same on workers that have not come here."""
    known = context.context()
    if getattr(known, "_rng", None) is not None:  # it has a seed
        stack.callback(setattr, known, "_rng", known._rng)
        known._rng = random.Random(seed)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()
