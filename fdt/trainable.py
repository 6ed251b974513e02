"""A rebuilt program: the model that a worker or a server trains, with its variables."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fdt.blobs import Blobs
from fdt.errors import CaptureError
from fdt.job import Program, State
from fdt.keras import Flavor, named
from fdt.typing import Array, Variable

LEFT_OUT = np.empty(0, np.bytes_)  # in a group of a State: the variable keeps its value


@dataclass
class Trainable:
    """A built, compiled model and its variables by group. Every process that builds the program has the same order.

    `State.model` is `trainable` followed by `non_trainable`; `seeds` (states of random generators) is a part of the
    latter, and so are `script_variables`, which the model's code refers to without owning them.
    """

    flavor: Flavor
    model: Any
    script_variables: Sequence[Any] = ()
    trainable: list[Any] = field(init=False)
    non_trainable: list[Any] = field(init=False)
    seeds: list[Any] = field(init=False)
    optimizer: list[Any] = field(init=False)
    metrics: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.trainable = self.flavor.trainable(self.model)
        self.non_trainable = [*self.flavor.non_trainable(self.model), *self.script_variables]
        self.seeds = self.flavor.seeds(self.model)
        self.optimizer = self.flavor.optimizer(self.model)
        self.metrics = self.flavor.metrics(self.model)

    def model_arrays(self) -> list[Array]:
        """Return copies of the values of `trainable` followed by `non_trainable`."""
        return read([*self.trainable, *self.non_trainable])

    def optimizer_arrays(self) -> list[Array]:
        return read(self.optimizer)

    def metric_arrays(self) -> list[Array]:
        return read(self.metrics)

    def write_model(self, arrays: list[Array]) -> None:
        """Assign the values that are not LEFT_OUT. Raises CaptureError that names the variable that does not fit."""
        self._write([*self.trainable, *self.non_trainable], arrays)

    def write_optimizer(self, arrays: list[Array]) -> None:
        """Assign the values that are not LEFT_OUT. Raises CaptureError that names the variable that does not fit."""
        self._write(self.optimizer, arrays)

    def write_metrics(self, arrays: list[Array]) -> None:
        write(self.metrics, arrays)

    def load(self, state: State, blobs: Blobs) -> None:
        """Assign the groups that `state` has. No blob is dropped."""
        if state.model.id:
            self.write_model(blobs.get_arrays(state.model))
        if state.optimizer.id:
            self.write_optimizer(blobs.get_arrays(state.optimizer))

    def _write(self, variables: list[Any], arrays: list[Array]) -> None:
        left_out = {i for i, array in enumerate(arrays) if is_left_out(array)}
        given = [v for i, v in enumerate(variables) if i not in left_out]
        write(given, [a for i, a in enumerate(arrays) if i not in left_out])

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Let the model's and the optimizer's variables change within; at the end they have their values again."""
        model, optimizer = self.model_arrays(), self.optimizer_arrays()
        try:
            yield
        finally:
            self.write_model(model)
            self.write_optimizer(optimizer)

    def layout(self) -> dict[str, list[list[Any]]]:
        """Return shape, dtype and name of every variable by group, as JSON. Shapes and dtypes are equal everywhere."""
        groups = {name: getattr(self, name) for name in ("trainable", "non_trainable", "optimizer", "metrics")}
        return {name: [_describe(v) for v in variables] for name, variables in groups.items()}


def is_left_out(array: Array) -> bool:
    """Return whether an array of a State is LEFT_OUT."""
    return array.dtype == object and array.shape == (0,)


def read(variables: Sequence[Variable]) -> list[Array]:
    """Return copies of the values: variables are assigned in place, so views would change later."""
    return [np.array(np.asarray(variable)) for variable in variables]


def write(variables: Sequence[Variable], arrays: Sequence[Array]) -> None:
    """Assign `arrays` to `variables`. Raises CaptureError, before any assignment, when number or shape differ."""
    if len(variables) != len(arrays):
        raise CaptureError(
            f"a state must hold one array per variable. Received: {len(arrays)} for {len(variables)} variables"
        )
    for variable, array in zip(variables, arrays, strict=True):
        if not variable.shape.is_compatible_with(array.shape):
            name = getattr(variable, "path", variable.name)
            raise CaptureError(
                f"an array of the state has another shape than its variable: {array.shape}, {name} has {variable.shape}"
            )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def build(program: Program, blobs: Blobs) -> Trainable:
    """Build and compile the model of `program`; its variables are zero until a State is loaded.

    Raises CaptureError when the result has other variables than the client's model.
    """
    from fdt.keras import pickling  # imports TensorFlow, which the script must import first
    from fdt.keras.variables import undecorate_steps

    config = json.loads(bytes(blobs.get(program.config)))
    flavor = named(program.flavor)
    flavor.apply_settings(config["settings"])
    trainable = Trainable(flavor, *pickling.loads(blobs.get(program.objects)))
    _check(config["layout"], trainable)
    undecorate_steps(trainable.model)
    return trainable


def _check(expected: dict[str, list[list[Any]]], trainable: Trainable) -> None:
    for group, variables in trainable.layout().items():
        wanted = expected[group]
        for (shape, dtype, name), (got_shape, got_dtype, _) in zip(wanted, variables, strict=False):
            if (shape, dtype) != (got_shape, got_dtype):
                got = f"{got_shape} {got_dtype} for {name} {shape} {dtype}"
                raise CaptureError(f"a worker built other variables than the client: {got}")
        if len(wanted) != len(variables):
            raise CaptureError(
                f"a worker built other variables than the client: {len(variables)} {group} for {len(wanted)}"
            )


def _describe(variable: Any) -> list[Any]:
    dtype = getattr(variable.dtype, "name", variable.dtype)
    return [list(variable.shape), dtype, getattr(variable, "path", variable.name)]


def change(now: Array, start: Array) -> Array:
    """Return the change of a metric's state. A flag keeps its value: the sum of flags over workers is a logical or."""
    return now if now.dtype == bool else now - start


def same_bits(a: Sequence[Array], b: Sequence[Array]) -> bool:
    """Return whether all arrays are equal, bit for bit."""
    return all(_equal(x, y) for x, y in zip(a, b, strict=True))


def left_out(arrays: list[Array], sent: list[Array]) -> list[Array]:
    """Return `arrays`, with LEFT_OUT for those that equal `sent`."""
    return [LEFT_OUT if _equal(a, b) else a for a, b in zip(arrays, sent, strict=True)]


def _equal(a: Array, b: Array) -> bool:
    """Compare bit for bit, so that NaN equals itself."""
    return a.shape == b.shape and np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8))
