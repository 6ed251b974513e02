"""Variables that the script trains without an optimizer, besides those of one: `temperature.assign_sub(rate * change)`.

No worker pushes their gradients. So every worker computes each step of such a script, as one machine would, and all get
rank 0's values when they synchronise.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.keras.variables import tensor_variable
from fdt.patches import Patch

_Known = dict[int, weakref.ref[Any]]  # variables by id


class AssignedWeights:
    """Finds these variables: a tape gives their gradients, their values change, and no optimizer updates them.

    `owned` returns the variables that optimizers update.
    """

    def __init__(self, owned: Callable[[], Sequence[tf.Variable]]) -> None:
        self._owned = owned
        self._values: dict[int, Any] = {}  # by id: the first value of a variable that no optimizer has updated yet
        self._sources: _Known = {}
        self._found: _Known = {}

    def patch(self) -> Patch:
        """Return the patch of TensorFlow's tape."""
        return Patch(tf.GradientTape, "gradient", self._gradient)

    def variables(self) -> list[tf.Variable]:
        """Return the variables, in the order in which they were found."""
        if not (self._values or self._found):
            return []
        owned = {id(variable) for variable in self._owned()}
        for key, before in list(self._values.items()):
            variable = self._sources[key]()
            if variable is None or key in owned:
                del self._values[key]
            elif not np.array_equal(variable.numpy(), before):
                self._found[key] = self._sources[key]
                del self._values[key]
        found = (known() for key, known in self._found.items() if key not in owned)
        return [variable for variable in found if variable is not None]

    def _gradient(self, original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = original(tape, target, sources, *args, **kwargs)
        for source, gradient in zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True):
            variable = tensor_variable(source)
            if gradient is not None and isinstance(variable, tf.Variable):
                self._note(variable)
        return gradients

    def _note(self, variable: tf.Variable) -> None:
        key = id(variable)
        if key in self._sources and self._sources[key]() is variable:
            return
        self._found.pop(key, None)  # of another variable that is gone
        with tf.init_scope():
            if tf.executing_eagerly() and variable.is_initialized():
                self._sources[key], self._values[key] = weakref.ref(variable), variable.numpy()
