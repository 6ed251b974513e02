"""Tracking of the variables that a script makes, and reads of those that belong to its model."""

import functools
import itertools
import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from fdt import PACKAGES

SIZE = 4096  # numbers of a sketch; a difference of sketches is the sketch of the difference


def sketch(values: Any) -> np.ndarray:
    """Sketch `values` of any shape and float dtype: float64 of shape [min(size, SIZE)].

    Up to SIZE values are kept unchanged. Of more, values get random signs and are summed in SIZE buckets. The sketch's
    norm
    then estimates that of the values with a relative standard deviation of sqrt(2 / SIZE) = 2.2 %.

    Source: M. Charikar, K. Chen, M. Farach-Colton, Finding frequent items in data streams, 2002 (count sketch).
    """
    flat: np.ndarray = np.asarray(values).astype(np.float64).reshape(-1)
    if flat.size <= SIZE:
        return flat
    padded = np.zeros(-(-flat.size // SIZE) * SIZE)
    padded[: flat.size] = flat * _signs(flat.size)
    added: np.ndarray = padded.reshape(-1, SIZE).sum(0)
    return added


@functools.lru_cache(maxsize=64)
def _signs(size: int) -> np.ndarray:
    signs: np.ndarray = np.random.Generator(np.random.PCG64(size)).integers(0, 2, size, np.int8) * 2 - 1
    return signs.astype(np.int8)


# `replica` stands between a script's call and TensorFlow: variables that are made below it are the script's.
_ENGINES = tuple(f"{package}." for package in PACKAGES if package != "replica")
_BETWEEN = ("tensorflow.", "fdt.patches", "client_shim.verify")  # modules of the variable's classes and of the recorder
# Modules whose variables belong to no model: counts of a metric, slots of an optimizer, states of generators.
_OTHERS = (".metrics", ".optimizers", ".seed_generator", ".stateful_random_ops", ".training.optimizer", "slot_creator")
_DEPTH = 30


@dataclass
class TrackedVariable:
    """A variable; `last`: its sketch at the last read, None before one; `shaken`: its sketch after `shake`."""

    name: str
    of: "weakref.ref[Any]"
    last: np.ndarray | None = None
    shaken: np.ndarray | None = None

    def note(self, values: np.ndarray | None) -> None:
        """Record the sketch of a read."""
        self.last = values

    def shake(self, variable: Any, unit: float) -> None:
        """Move each value of `variable`, which this one tracks, by one `unit` of its size, up or down.

        Zeros stay: a product with one has no rounding either, and a ReLU has another gradient beside zero than at it.
        """
        values = variable.numpy()
        if not np.any(values):
            return  # a variable of zeros is moved after its first update
        signs = np.random.Generator(np.random.PCG64(values.size)).choice([-1.0, 1.0], values.shape)
        moved = values.astype(np.float64) * (1 + signs * unit)
        variable.assign(moved.astype(values.dtype))
        self.last = self.shaken = sketch(variable.numpy())


@dataclass
class TrackedVariables:
    """All float variables that layers and the script make, in order; `coarsest`: the unit of Keras's dtype policies."""

    tracked: list[TrackedVariable] = field(default_factory=list)
    coarsest: float = 0.0
    _names: Counter[str] = field(default_factory=Counter)

    def made(self, variable: Any) -> TrackedVariable | None:
        """Track `variable`, which was just made; return None where it belongs to no model."""
        frames = _frames()
        if not variable.dtype.is_floating or not _is_models(frames) or (_is_late(frames) and not variable.trainable):
            return None
        name = variable.name.partition(":")[0]
        self._names[name] += 1
        number = self._names[name]
        numbered = name if number == 1 else f"{name}#{number}"
        each = TrackedVariable(numbered, weakref.ref(variable), _read(variable))
        self.tracked.append(each)
        return each

    def policy_made(self, computed: str | None) -> None:
        """Note the compute dtype of a policy, which some layer of the model has, or all that are made later."""
        if computed in ("float16", "bfloat16"):
            self.coarsest = max(self.coarsest, _unit(computed))

    def unit_of(self, variable: Any) -> float:
        """Return the relative distance between neighboring floats, of the variable or of a coarser compute dtype."""
        return max(_unit(variable.dtype.name), self.coarsest)

    def living(self) -> Sequence[tuple[TrackedVariable, Any]]:
        """Return the tracked variables that still exist, with the variables themselves."""
        pairs = [(each, each.of()) for each in self.tracked]
        return [(each, variable) for each, variable in pairs if variable is not None]


def _read(variable: Any) -> np.ndarray | None:
    """Return the variable's sketch; None in a graph, or where the variable is not initialized."""
    if not tf.executing_eagerly():
        return None
    try:
        values = variable.numpy()
        return sketch(values) if variable.shape.is_compatible_with(values.shape) else None  # made in a trace
    except (NotImplementedError, tf.errors.FailedPreconditionError):
        return None


def read(pairs: Sequence[tuple[TrackedVariable, Any]]) -> dict[str, np.ndarray]:
    """Return the sketches of the variables that can be read, by name."""
    found = {each.name: _read(variable) for each, variable in pairs}
    return {name: values for name, values in found.items() if values is not None}


def _unit(dtype: str) -> float:
    finfo: Any = ml_dtypes.finfo  # ml_dtypes also has bfloat16
    return float(finfo(dtype).eps)


def _frames() -> list[FrameType]:
    """Return the frames of the caller's caller and outward, innermost first."""
    return [frame for frame, _ in itertools.islice(traceback.walk_stack(sys._getframe(2)), _DEPTH)]


def _is_models(frames: Sequence[FrameType]) -> bool:
    """Return whether the variable belongs to a model: not to an engine, a metric or an optimizer."""
    names = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    caller = next((name for name in names if not name.startswith(_BETWEEN)), "")
    if f"{caller}.".startswith(_ENGINES):
        return False
    return not any(other in name for name in names for other in _OTHERS)


def _is_late(frames: Sequence[FrameType]) -> bool:
    """Return whether Keras initializes a variable it made earlier, so that the frames do not show its owner."""
    return any(frame.f_code.co_name == "initialize_all_variables" for frame in frames)
